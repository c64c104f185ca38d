"""What psrun adds to a run, against the same run written by hand (benchmarks/handwritten.py).

    python benchmarks/overhead.py [--repetitions N] [--epochs N] [--steps-per-epoch N] [--json FILE]

Each repetition is a fresh process of each kind, one after the other, in turns of who goes first. Times count from the
start of the process. The goals: at most 5 % more wall time and at most 1 s more to the first step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from measured import Summary, run_python
from rich.console import Console
from rich.table import Table

MAX_RATIO = 1.05
MAX_FIRST_STEP_DIFFERENCE_S = 1.0
STEPS_PER_EXECUTION = 10
_ATTEMPTS = 4  # pairs tried for each one wanted
LOOPS = {"custom": "custom_loop", "fit": "fit"}  # how handwritten.py and psrun call them


@dataclass(frozen=True)
class Measured:
    """One process.

    Attributes:
      wall_s: seconds in all.
      first_step_s: seconds from its start until its first step was seen to be applied.
      cpu_s: processor seconds of all its threads.
      others_cpu_s: processor seconds that everything else on the machine took meanwhile.
    """

    wall_s: float
    first_step_s: float
    cpu_s: float
    others_cpu_s: float

    @property
    def after_first_step_s(self) -> float:
        return self.wall_s - self.first_step_s


class Pair(NamedTuple):
    """One process of each kind, run one after the other."""

    psrun: Measured
    by_hand: Measured


def run_psrun(loop: str, options: argparse.Namespace, folder: Path) -> Measured:
    """One run of the psrun command."""
    command = ["-m", "psrun", "cluster=inprocess", "model=embedding", "partitioner=fixed_shards"]
    command += ["evaluation=none", "checkpoint=none", f"trainer={LOOPS[loop]}", f"hydra.run.dir={folder / 'run'}"]
    command += [f"trainer.{name}={value}" for name, value in _steps(options).items()]
    spent = run_python(command, folder)
    result = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    _check_steps(result["steps"]["applied"], options)
    # psrun's own clock starts when Python and Hydra are loaded; a person waits for those too.
    first_step_at_s = result["started_s"] + result["time_to_first_step_s"]
    return Measured(spent.wall_s, first_step_at_s - spent.began_s, spent.cpu_s, spent.others_cpu_s)


def run_by_hand(loop: str, options: argparse.Namespace, folder: Path) -> Measured:
    """One run of the hand-written script."""
    report = folder / "report.json"
    command = [str(Path(__file__).with_name("handwritten.py")), "--loop", loop, "--report", str(report)]
    for name, value in _steps(options).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    spent = run_python(command, folder)
    result = json.loads(report.read_text(encoding="utf-8"))
    _check_steps(result["steps"], options)
    return Measured(spent.wall_s, result["first_step_at_s"] - spent.began_s, spent.cpu_s, spent.others_cpu_s)


def _steps(options: argparse.Namespace) -> dict[str, int]:
    return {
        "epochs": options.epochs,
        "steps_per_epoch": options.steps_per_epoch,
        "steps_per_execution": STEPS_PER_EXECUTION,
    }


def _check_steps(applied: int, options: argparse.Namespace) -> None:
    planned = options.epochs * options.steps_per_epoch
    if applied < planned:
        raise RuntimeError(f"{applied} steps were applied, not {planned}: these are not the same run")


RUNNERS: dict[str, Callable[[str, argparse.Namespace, Path], Measured]] = {"psrun": run_psrun, "by_hand": run_by_hand}


def measure(loop: str, options: argparse.Namespace, console: Console) -> list[Pair]:
    """As many pairs as there are to be repetitions, in the order they were run.

    Raises:
      RuntimeError: too many pairs were disturbed by what else runs on this machine.
    """
    pairs: list[Pair] = []
    for attempt in range(_ATTEMPTS * options.repetitions):
        if len(pairs) == options.repetitions:
            return pairs
        # Taking turns in who goes first: what the machine does meanwhile then weighs on both alike.
        kinds = list(RUNNERS) if attempt % 2 else list(reversed(RUNNERS))
        pair = {kind: _measured(kind, loop, options, console) for kind in kinds}
        if max(run.others_cpu_s for run in pair.values()) <= options.max_others_cpu_s:
            pairs.append(Pair(**pair))
        else:
            console.print("  disturbed: not counted")
    if len(pairs) < options.repetitions:
        raise RuntimeError(f"only {len(pairs)} pairs of runs were left undisturbed; try again on a machine at rest")
    return pairs


def _measured(kind: str, loop: str, options: argparse.Namespace, console: Console) -> Measured:
    with tempfile.TemporaryDirectory(prefix="psrun-overhead-") as folder:
        measured = RUNNERS[kind](loop, options, Path(folder))
    console.print(
        f"{LOOPS[loop]} {kind}: {measured.wall_s:.2f} s, first step after {measured.first_step_s:.2f} s, "
        f"processor {measured.cpu_s:.1f} s (others {measured.others_cpu_s:.1f} s)"
    )
    return measured


def compared(pairs: Sequence[Pair]) -> dict[str, Summary]:
    """Medians of both kinds, and of what each pair says of their ratio or difference."""
    rows = {}
    for name in ("wall_s", "first_step_s", "after_first_step_s", "cpu_s"):
        ours, theirs = ([getattr(run, name) for run in runs] for runs in zip(*pairs))
        rows[f"{name} psrun"], rows[f"{name} by hand"] = Summary.of(ours), Summary.of(theirs)
        if name == "first_step_s":
            rows[f"{name} difference"] = Summary.of([a - b for a, b in zip(ours, theirs)])
        else:
            rows[f"{name} ratio"] = Summary.of([a / b for a, b in zip(ours, theirs)])
    rows["others_cpu_s"] = Summary.of([run.others_cpu_s for pair in pairs for run in pair])
    return rows


def judged(loop: str, rows: dict[str, Summary]) -> str:
    """The two goals and what became of them."""
    ratio = rows["wall_s psrun"].median / rows["wall_s by hand"].median
    difference_s = rows["first_step_s psrun"].median - rows["first_step_s by hand"].median
    return (
        f"{LOOPS[loop]}: psrun takes {ratio:.3f} times the wall time (goal {MAX_RATIO}: "
        f"{'met' if ratio <= MAX_RATIO else 'missed'}), {difference_s:+.2f} s to the first step "
        f"(goal {MAX_FIRST_STEP_DIFFERENCE_S}: {'met' if difference_s <= MAX_FIRST_STEP_DIFFERENCE_S else 'missed'})"
    )


def show(loop: str, pairs: Sequence[Pair], console: Console) -> dict[str, object]:
    """Prints what `pairs` say; returns it, with every measurement, as values that JSON knows."""
    rows = compared(pairs)
    table = Table("median (least to most)", LOOPS[loop], box=None, pad_edge=False)
    for name, summary in rows.items():
        table.add_row(name, str(summary))
    console.print(table, judged(loop, rows), sep="\n")
    return {
        "pairs": [{kind: asdict(run) for kind, run in pair._asdict().items()} for pair in pairs],
        "summaries": {name: asdict(summary) for name, summary in rows.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=800, help=f"a multiple of {STEPS_PER_EXECUTION}")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="only this one (default: both)")
    parser.add_argument(
        "--max-others-cpu-s",
        type=float,
        default=math.inf,
        help="do not count pairs with a run during which everything else took more processor seconds than this",
    )
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    options = parser.parse_args()
    if options.steps_per_epoch % STEPS_PER_EXECUTION:
        parser.error(f"--steps-per-epoch must be a multiple of {STEPS_PER_EXECUTION}")
    console = Console(highlight=False, soft_wrap=True)
    record: dict[str, object] = {"load_average_before": os.getloadavg(), **_steps(options)}
    for loop in options.loop or LOOPS:
        record[LOOPS[loop]] = show(loop, measure(loop, options, console), console)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
