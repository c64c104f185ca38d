"""Common code of the benchmarks: measured processes, medians with their spread, rounds in turns, tables."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil
from rich.console import Console
from rich.table import Table

_T = TypeVar("_T")
BENCHMARKS = Path(__file__).parent


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
        return self.text(2)

    def text(self, digits: int) -> str:
        """Rounded to `digits` decimal places."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f} to {self.most:,.{digits}f})"


class Spent(NamedTuple):
    """The time a process took, in seconds; `began_s` counts from 1970.

    Attributes:
      cpu_s: processor seconds of all its threads.
      others_cpu_s: processor seconds that everything else on the machine took meanwhile.
    """

    began_s: float
    wall_s: float
    cpu_s: float
    others_cpu_s: float


def python_of(checkout: Path) -> str:
    """The Python that runs the psrun of a checkout: this one for the checkout of this file."""
    return sys.executable if checkout == BENCHMARKS.parent else str(checkout / ".venv" / "bin" / "python")


def run_python(
    arguments: Sequence[str],
    folder: Path,
    *,
    python: str = sys.executable,
    expected_code: int = 0,
    within_s: float = 3600.0,
) -> Spent:
    """Runs Python in `folder` to its end, with this folder's modules at hand; it is killed after `within_s` seconds.

    Raises:
      RuntimeError: it ended with another code than `expected_code`, or was killed.
    """
    # As for an installed psrun: its modules are compiled once, not at every start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(BENCHMARKS), environment.get("PYTHONPATH"))))
    log = folder / "output.log"
    with log.open("wb") as output:
        began_s = time.time()
        before_s = busy_s()
        process = subprocess.Popen(
            [python, *arguments], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        killer = threading.Timer(within_s, process.kill)
        killer.start()
        try:
            # Not Popen.wait: only wait4 tells the processor time of this one child.
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            killer.cancel()
        wall_s = time.time() - began_s
        all_cpu_s = busy_s() - before_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected_code:
        raise RuntimeError(
            f"{' '.join(arguments)} ended with {process.returncode} after {wall_s:.0f} s:\n"
            f"{log.read_text(errors='replace')[-2000:]}"
        )
    cpu_s = usage.ru_utime + usage.ru_stime
    return Spent(began_s, wall_s, cpu_s, max(0.0, all_cpu_s - cpu_s))


def wait_for(
    condition: Callable[[], object], process: subprocess.Popen, *, within_s: float, otherwise: Callable[[], str]
) -> None:
    """Waits until `condition` is true; exits with the text of `otherwise` if the process ends before, or time is up."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(otherwise())
        time.sleep(0.02)


def busy_s() -> float:
    """Processor seconds that were not idle since the machine was started, over all cores."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def in_turns(things: Sequence[_T], rounds: int) -> Iterator[Sequence[_T]]:
    """`things` once for each round; who goes first changes, so that what else the machine does weighs on all alike."""
    for index in range(rounds):
        first = index % max(len(things), 1)
        yield [*things[first:], *things[:first]]


Rates = Mapping[str, float]  # of one round: a rate by name


@dataclass(frozen=True)
class Goal:
    """That what is measured as `over` be at least `at_least` times what is measured as `under`."""

    over: str
    under: str
    at_least: float

    @property
    def name(self) -> str:
        return f"{self.over} / {self.under}"

    def ratio(self, rounds: Sequence[Rates]) -> Summary | None:
        """Of the ratios of each round; None where one of the two was not measured."""
        ratios = [rates[self.over] / rates[self.under] for rates in rounds if {self.over, self.under} <= rates.keys()]
        return Summary.of(ratios) if ratios else None

    def verdict(self, ratio: Summary) -> str:
        return "met" if ratio.median >= self.at_least else "missed"


def show_goals(goals: Sequence[Goal], rounds: Sequence[Rates], console: Console) -> dict[str, object]:
    """Prints what became of those goals that were measured; returns it as values that JSON knows."""
    table = Table("ratio within a round", "median (least to most)", "goal", "", box=None, pad_edge=False)
    reached: dict[str, object] = {}
    for goal in goals:
        ratio = goal.ratio(rounds)
        if ratio is not None:
            table.add_row(goal.name, str(ratio), f"at least {goal.at_least:g}", goal.verdict(ratio))
            reached[goal.name] = {**vars(ratio), "goal": goal.at_least, "verdict": goal.verdict(ratio)}
    if reached:
        console.print(table)
    return reached


def drawn(path: Path, draw: Callable[..., None], *arguments: object, height: float = 4.0) -> None:
    """Writes the picture that `draw(axes, *arguments)` makes."""
    from matplotlib.figure import Figure  # only needed for --plot

    figure = Figure(figsize=(8.0, height), layout="constrained")
    draw(figure.add_subplot(), *arguments)
    figure.savefig(path, dpi=150)


def plot_problem() -> str | None:
    """The reason why nothing can be drawn, for a message before the measurement."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        return f"--plot needs matplotlib, which is not there ({error}): pip install 'psrun[benchmarks]'"
    return None
