"""What the measurement of staleness costs: the same steps with and without it, in turns in one process.

    python benchmarks/staleness.py [--windows N] [--steps N] [--model clicks_table] [PSRUN OVERRIDES ...]

One run with two kinds of steps, which differ in nothing else: one is traced while the measurement is replaced by
nothing. Windows of both follow each other, in turns of which is first; the ratio is taken within each pair. The goal:
at most 1 % more processor time for a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from measured import BENCHMARKS, Summary, run_python

KINDS = ("with", "without")
MAX_RATIO = 1.01
_WARM_UP = 300  # more than the steps after which psrun unrolls them


class Idle:
    """Stands for what measures the updates of a closure, and does nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Closures of steps named 'without' carry no counts."""
    from psrun.closures import asynchronous_steps, dense_bundles

    make = asynchronous_steps.stages.on_workers

    def without(program: Any, profiler: Any, meter: Any) -> list[Any]:
        made = make(program, profiler, meter)
        (bundles,) = (each for each in made if isinstance(each, dense_bundles.DenseBundles))
        bundles._carrier = None
        bundles.unrolled = _replacing(bundles.unrolled, dense_bundles)
        return made

    begin = asynchronous_steps.AsynchronousSteps.__init__

    def begins(self: Any, *arguments: Any, **options: Any) -> None:
        on_workers = without if options["step"].__name__ == "without" else make
        with mock.patch.object(asynchronous_steps.stages, "on_workers", on_workers):
            begin(self, *arguments, **options)

    # However slow this machine is, steps of both kinds are unrolled.
    unrolled = mock.patch.object(asynchronous_steps, "_SLOW_STEP_S", math.inf)
    with mock.patch.object(asynchronous_steps.AsynchronousSteps, "__init__", begins), unrolled:
        yield


def _replacing(unrolled: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @contextlib.contextmanager
    def unmetered(num_steps: int) -> Iterator[None]:
        with mock.patch.object(module, "UpdatesInClosure", Idle), unrolled(num_steps):
            yield

    return unmetered


def loop(program: Any, session: Any, steps: int, windows: int, report: str) -> None:
    """The training loop: windows of `steps` steps of both kinds, after one of each in which they are traced."""
    kinds = [_step(program, name) for name in KINDS]
    spent: dict[str, list[list[float]]] = {name: [] for name in KINDS}
    with unmeasured():
        for window in range(windows + 1):
            for step in kinds if window % 2 else reversed(kinds):
                began_s, cpu_s = time.monotonic(), time.process_time()
                session.schedule(step, steps if window else _WARM_UP)
                session.join()
                each = [(time.process_time() - cpu_s) / steps, (time.monotonic() - began_s) / steps]
                spent[step.__name__] += [each] if window else []
    Path(report).write_text(json.dumps(spent), encoding="utf-8")


def _step(program: Any, name: str) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        program.network.train_step(batch)

    step.__name__ = name
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200, help="of each window")
    parser.add_argument("--model", default="clicks_table")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="psrun-staleness-") as name:
        folder = Path(name)
        total = 2 * (options.steps * options.windows + _WARM_UP)
        run_python([
            "-m", "psrun", f"--config-dir={BENCHMARKS / 'conf'}", "cluster=inprocess", f"model={options.model}",
            "trainer=own_loop", "trainer._target_=staleness.loop", f"+trainer.steps={options.steps}",
            f"+trainer.windows={options.windows}", f"+trainer.report={folder / 'report.json'}", "trainer.epochs=1",
            f"trainer.steps_per_epoch={max(total, 10_000)}", "optimizer=sparse_adagrad", "partitioner=min_size",
            "evaluation=none", "checkpoint=none", "tracker=none", f"hydra.run.dir={folder / 'run'}",
            *options.overrides,
        ], folder)  # fmt: skip
        spent = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        recorded = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["staleness"]
    if recorded["updates"] != total // 2:
        raise RuntimeError(f"{recorded['updates']} updates were measured, not {total // 2}")
    for index, kind in enumerate(("processor", "wall")):
        times = {name: [each[index] * 1000 for each in spent[name]] for name in KINDS}
        ratio = Summary.of([a / b for a, b in zip(times["with"], times["without"])])
        rows = ", ".join(f"{name} {Summary.of(times[name])}" for name in KINDS)
        sys.stdout.write(f"{kind} ms a step: {rows}; ratio {ratio.text(4)} (goal for processor: {MAX_RATIO})\n")
    sys.stdout.write(f"staleness: mean {recorded['mean']}, p95 {recorded['p95']}, max {recorded['max']}\n")


if __name__ == "__main__":
    main()
