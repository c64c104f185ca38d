"""Two versions or two configurations of psrun at the same time, and the ratio of what a step costs them.

    python benchmarks/beside.py [--checkout FOLDER] [--this "OVERRIDES"] [--other "OVERRIDES"] [OVERRIDES ...]

`--checkout` is another version of psrun, installed in FOLDER/.venv; `--other` has its overrides, or those of the second
configuration. Whatever else the machine does slows both down alike, so that differences of 2 % are seen; runs that
follow each other differ by more. Both have two workers and two parameter servers in one process. A ratio is that of
`this` to `other`, over the same seconds; in each round the other one starts first.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measured import BENCHMARKS, Summary, in_turns, processor_s, python_of, wait_for
from rich.console import Console

_COMMON = (
    "cluster=inprocess", "cluster.num_workers=2", "cluster.num_ps=2", "evaluation=none", "checkpoint=none",
    "tracker=none", "trainer.epochs=1000000", "trainer.steps_per_execution=10",
)  # fmt: skip
_CLICKS = (
    "model=clicks", "optimizer=sparse_adagrad", "partitioner=min_size", "partitioner.max_shards=2",
    "data.rows=1000000", "data.global_batch_size=1024",
)  # fmt: skip
_WARM_EPOCHS = 2  # more than the steps after which psrun unrolls them
_STARTS_WITHIN_S, _ENDS_WITHIN_S = 300.0, 60.0


@dataclass(frozen=True)
class Side:
    """A version of psrun, and its overrides."""

    name: str
    checkout: Path
    overrides: tuple[str, ...]

    def start(self, folder: Path) -> subprocess.Popen:
        benchmarks = self.checkout / "benchmarks"
        command = [python_of(self.checkout), "-m", "psrun", "--config-dir", str(benchmarks / "conf"), *self.overrides]
        with (folder / "output.log").open("wb") as log:
            return subprocess.Popen(
                [*command, f"hydra.run.dir={folder / 'run'}"], cwd=folder, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(benchmarks)},
            )  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What a process had done at the end of an epoch."""

    epochs: int
    cpu_s: float
    at_s: float

    @classmethod
    def next(cls, process: subprocess.Popen, folder: Path) -> Reading:
        """Waits for the end of an epoch."""
        now = _epochs(folder)
        _await(lambda: _epochs(folder) > now, process, folder)
        return cls(_epochs(folder), processor_s(process.pid), time.monotonic())

    def since(self, first: Reading) -> tuple[float, float]:
        """Processor seconds per epoch, and epochs per second."""
        epochs = self.epochs - first.epochs
        return (self.cpu_s - first.cpu_s) / epochs, epochs / (self.at_s - first.at_s)


def main() -> None:
    options = _options()
    common = (*_COMMON, f"trainer.steps_per_epoch={options.steps}", *options.overrides)
    sides = [
        Side("this", BENCHMARKS.parent, (*common, *shlex.split(options.this))),
        Side("other", options.checkout.resolve(), (*common, *shlex.split(options.other))),
    ]
    cpu, rate, console = [], [], Console(highlight=False, width=120)
    for order in in_turns(sides, options.rounds):
        measured = dict(zip((side.name for side in order), _measured(order, options.seconds)))
        this, other = measured["this"], measured["other"]
        cpu.append(this[0] / other[0])
        rate.append(this[1] / other[1])
        console.print(f"processor time per step {cpu[-1]:.3f}, steps/s {rate[-1]:.3f}")
    console.print(
        f"this / other: processor time per step {Summary.of(cpu).text(3)}, steps/s {Summary.of(rate).text(3)}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", default=_CLICKS, help="of both; by default model=clicks and its data")
    parser.add_argument("--checkout", type=Path, default=BENCHMARKS.parent, help="of the other version")
    parser.add_argument("--this", default="", metavar="OVERRIDES")
    parser.add_argument("--other", default="", metavar="OVERRIDES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of measurement in each round")
    parser.add_argument("--steps", type=int, default=400, help="of an epoch")
    return parser.parse_args()


def _measured(sides: Sequence[Side], seconds: float) -> list[tuple[float, float]]:
    """Processor seconds per epoch, and epochs per second, of each side."""
    with tempfile.TemporaryDirectory(prefix="beside-") as root:
        folders = [Path(root, side.name) for side in sides]
        for folder in folders:
            folder.mkdir()
        running = [side.start(folder) for side, folder in zip(sides, folders)]
        try:
            for process, folder in zip(running, folders):
                _await(lambda: _epochs(folder) >= _WARM_EPOCHS, process, folder)  # noqa: B023
            began = [Reading.next(*each) for each in zip(running, folders)]
            time.sleep(seconds)
            ended = [Reading.next(*each) for each in zip(running, folders)]
        finally:
            for process in running:
                process.terminate()
            for process in running:
                _end(process)
    return [last.since(first) for first, last in zip(began, ended)]


def _end(process: subprocess.Popen) -> None:
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _epochs(folder: Path) -> int:
    try:
        return (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").count('"event": "epoch"')
    except FileNotFoundError:
        return 0


def _await(condition: Callable[[], bool], process: subprocess.Popen, folder: Path) -> None:
    log = folder / "output.log"
    wait_for(
        condition,
        process,
        within_s=_STARTS_WITHIN_S,
        otherwise=lambda: log.read_text(encoding="utf-8", errors="replace")[-2000:],
    )


if __name__ == "__main__":
    main()
