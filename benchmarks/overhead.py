"""What psrun adds to a run, against the same run written by hand (benchmarks/handwritten.py).

    python benchmarks/overhead.py [--repetitions N] [--epochs N] [--steps-per-epoch N] [--json FILE]

Each repetition is a fresh process of each kind, one after the other, in turns of who goes first. Times count from the
start of the process. The goals: at most 5 % more wall time and at most 1 s more to the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

MAX_RATIO = 1.05
MAX_FIRST_STEP_DIFFERENCE_S = 1.0
STEPS_PER_EXECUTION = 10
LOOPS = {"custom": "custom_loop", "fit": "fit"}  # how handwritten.py and psrun call them


@dataclass(frozen=True)
class Measured:
    """One process: seconds in all, to its first step, and of processor time (all its threads)."""

    wall_s: float
    first_step_s: float
    cpu_s: float


@dataclass(frozen=True)
class Summary:
    """A median with the least and the greatest of what it was taken of."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


Runner = Callable[[str, argparse.Namespace, Path], Measured]


def run_psrun(loop: str, options: argparse.Namespace, folder: Path) -> Measured:
    """One run of the psrun command."""
    command = ["-m", "psrun", "cluster=inprocess", "model=embedding", "partitioner=fixed_shards"]
    command += ["evaluation=none", "checkpoint=none", f"trainer={LOOPS[loop]}", f"hydra.run.dir={folder / 'run'}"]
    command += [f"trainer.{name}={value}" for name, value in _steps(options).items()]
    began_s, wall_s, cpu_s = _run(command, folder)
    result = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    _check_steps(result["steps"]["applied"], options)
    # psrun's own clock starts when Python and Hydra are loaded; a person waits for those too.
    first_step_at_s = result["started_s"] + result["time_to_first_step_s"]
    return Measured(wall_s, first_step_at_s - began_s, cpu_s)


def run_by_hand(loop: str, options: argparse.Namespace, folder: Path) -> Measured:
    """One run of the hand-written script."""
    report = folder / "report.json"
    command = [str(Path(__file__).with_name("handwritten.py")), "--loop", loop, "--report", str(report)]
    for name, value in _steps(options).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    began_s, wall_s, cpu_s = _run(command, folder)
    result = json.loads(report.read_text(encoding="utf-8"))
    _check_steps(result["steps"], options)
    return Measured(wall_s, result["first_step_at_s"] - began_s, cpu_s)


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


def _run(arguments: list[str], folder: Path) -> tuple[float, float, float]:
    """Runs Python in `folder`: when it was started (seconds since 1970), seconds it took, its processor seconds."""
    # As for an installed psrun: its modules are compiled once, not at every start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    log = folder / "output.log"
    with log.open("wb") as output:
        began_s = time.time()
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        # Not Popen.wait: only wait4 tells the processor time of this one child.
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.time() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
    return began_s, wall_s, usage.ru_utime + usage.ru_stime


def measure(loop: str, options: argparse.Namespace, console: Console) -> dict[str, list[Measured]]:
    """All repetitions of both kinds, in the order they were run."""
    kinds: list[tuple[str, Runner]] = [("psrun", run_psrun), ("by hand", run_by_hand)]
    found: dict[str, list[Measured]] = {kind: [] for kind, _ in kinds}
    for repetition in range(options.repetitions):
        # Taking turns: what the machine does meanwhile then weighs on both alike.
        for kind, runner in kinds if repetition % 2 else reversed(kinds):
            with tempfile.TemporaryDirectory(prefix="psrun-overhead-") as folder:
                measured = runner(loop, options, Path(folder))
            found[kind].append(measured)
            console.print(
                f"{LOOPS[loop]} {repetition + 1}/{options.repetitions} {kind}: {measured.wall_s:.2f} s, first step "
                f"after {measured.first_step_s:.2f} s, processor {measured.cpu_s:.1f} s"
            )
    return found


def compared(found: dict[str, list[Measured]]) -> dict[str, Summary]:
    """Medians of both kinds, and of what each pair of neighbouring runs says of their ratio and difference."""
    psrun, by_hand = found["psrun"], found["by hand"]
    pairs = list(zip(psrun, by_hand))
    return {
        "wall_s psrun": Summary.of([run.wall_s for run in psrun]),
        "wall_s by hand": Summary.of([run.wall_s for run in by_hand]),
        "wall ratio of pairs": Summary.of([ours.wall_s / theirs.wall_s for ours, theirs in pairs]),
        "first_step_s psrun": Summary.of([run.first_step_s for run in psrun]),
        "first_step_s by hand": Summary.of([run.first_step_s for run in by_hand]),
        "first_step_s difference of pairs": Summary.of([a.first_step_s - b.first_step_s for a, b in pairs]),
        "after first step ratio of pairs": Summary.of(
            [(a.wall_s - a.first_step_s) / (b.wall_s - b.first_step_s) for a, b in pairs]
        ),
        "processor_s psrun": Summary.of([run.cpu_s for run in psrun]),
        "processor_s by hand": Summary.of([run.cpu_s for run in by_hand]),
        "processor ratio of pairs": Summary.of([ours.cpu_s / theirs.cpu_s for ours, theirs in pairs]),
    }


def judged(loop: str, found: dict[str, Summary]) -> str:
    """The two goals and what became of them."""
    ratio = found["wall_s psrun"].median / found["wall_s by hand"].median
    difference_s = found["first_step_s psrun"].median - found["first_step_s by hand"].median
    return (
        f"{LOOPS[loop]}: psrun takes {ratio:.3f} times the wall time (goal {MAX_RATIO}: "
        f"{'met' if ratio <= MAX_RATIO else 'missed'}), {difference_s:+.2f} s to the first step "
        f"(goal {MAX_FIRST_STEP_DIFFERENCE_S}: {'met' if difference_s <= MAX_FIRST_STEP_DIFFERENCE_S else 'missed'})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=1000, help=f"a multiple of {STEPS_PER_EXECUTION}")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="only this one (default: both)")
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    options = parser.parse_args()
    if options.steps_per_epoch % STEPS_PER_EXECUTION:
        parser.error(f"--steps-per-epoch must be a multiple of {STEPS_PER_EXECUTION}")
    console = Console(highlight=False, soft_wrap=True)
    record: dict[str, object] = {"load_average_before": os.getloadavg(), **_steps(options)}
    for loop in options.loop or LOOPS:
        found = measure(loop, options, console)
        summaries = compared(found)
        table = Table("median (least to most)", LOOPS[loop], box=None, pad_edge=False)
        for name, summary in summaries.items():
            table.add_row(name, str(summary))
        console.print(table, judged(loop, summaries), sep="\n")
        record[LOOPS[loop]] = {
            "runs": {kind: [asdict(run) for run in runs] for kind, runs in found.items()},
            "summaries": {name: asdict(summary) for name, summary in summaries.items()},
        }
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
