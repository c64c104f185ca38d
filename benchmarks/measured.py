"""Common code of the benchmarks: measured processes, rounds in turns, tables, and ways to train the clicks model."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

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
    watch: Callable[[int], None] = lambda process: None,
    more_environment: Mapping[str, str] | None = None,
) -> Spent:
    """Runs Python in `folder` to its end, with this folder's modules at hand; it is killed after `within_s` seconds.

    Args:
      watch: called with the number of the process while that runs.

    Raises:
      RuntimeError: it ended with another code than `expected_code`, or was killed.
    """
    # As for an installed psrun: its modules are compiled once, not at every start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(BENCHMARKS), environment.get("PYTHONPATH"))))
    environment |= more_environment or {}
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
            watch(process.pid)
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


def processor_s(process: int) -> float:
    """Processor seconds that a process and all that it started took so far."""
    seconds = 0.0
    root = psutil.Process(process)
    for each in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            # With the times of children that have ended.
            seconds += sum(each.cpu_times()[:4])
    return seconds


def has_ended(process: int) -> bool:
    """Whether a child of this process has ended. It can still be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name fits one of the patterns of `--only`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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


def write_between(page: Path, name: str, text: str) -> None:
    """Replaces what is between `<!-- NAME -->` and `<!-- end of NAME -->` of a page.

    Raises:
      ValueError: the page does not have both once.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    old = page.read_text(encoding="utf-8")
    if old.count(begin) != 1 or old.count(end) != 1:
        raise ValueError(f"{page} must have {begin.strip()} and {end} once")
    before, _, rest = old.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


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


CONF = BENCHMARKS / "conf"
STEPS_PER_EXECUTION = 20


@dataclass(frozen=True)
class Setting:
    """Model, data and cluster, the same by hand and with psrun.

    Attributes:
      skew: of the ids, see `by_hand.generated`.
      steps: of each window that is timed; rounded up to whole closures, as many on each worker.
      windows: how many are timed in a process; what comes before them, to warm up, is not.
    """

    rows: int = 1_000_000
    workers: int = 2
    ps: int = 2
    batch: int = 1024
    skew: float = 0.0
    steps: int = 400
    windows: int = 3

    @property
    def whole_steps(self) -> int:
        even = STEPS_PER_EXECUTION * self.workers
        return -(-self.steps // even) * even


@dataclass(frozen=True)
class Windows:
    """What a process did in each window: steps per second, and the processor time of a step in ms if it is known."""

    steps_per_s: list[float]
    cpu_ms: list[float] = field(default_factory=list)


class Way(Protocol):
    """A way to train, in a process of its own."""

    @property
    def name(self) -> str: ...

    def run(self, folder: Path) -> tuple[Windows, Spent]:
        """Trains in an empty folder."""

    def plain(self) -> dict[str, Any]:
        """As values that JSON knows."""


@dataclass(frozen=True)
class ByHand:
    """A kind of tensorflow_by_hand.py, or of torch_by_hand.py."""

    name: str
    kind: str
    setting: Setting
    optimizer: str = "adagrad"

    def command(self, folder: Path) -> list[str]:
        setting = self.setting
        options = {
            "rows": setting.rows, "skew": setting.skew, "batch-size": setting.batch, "optimizer": self.optimizer,
            "num-workers": setting.workers, "num-ps": setting.ps, "steps": setting.whole_steps,
            "windows": setting.windows, "steps-per-execution": STEPS_PER_EXECUTION, "report": folder / "rates.json",
        }  # fmt: skip
        program = "torch_by_hand.py" if self.kind.startswith("torch") else "tensorflow_by_hand.py"
        return [
            str(BENCHMARKS / program),
            self.kind,
            *(f"--{name}={value}" for name, value in options.items()),
        ]

    def run(self, folder: Path) -> tuple[Windows, Spent]:
        spent = run_python(self.command(folder), folder)
        return Windows(json.loads((folder / "rates.json").read_text(encoding="utf-8"))), spent

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Psrun:
    """A run of psrun; each epoch but the first is a window.

    Attributes:
      overrides: besides those that the setting says.
      cluster: 'none' for one process.
    """

    name: str
    setting: Setting
    model: str = "clicks"
    optimizer: str = "sparse_adagrad"
    trainer: str = "custom_loop"
    overrides: Sequence[str] = ()
    cluster: str = "inprocess"

    def command(self, folder: Path) -> list[str]:
        setting = self.setting
        tasks = [] if self.cluster == "none" else [
            f"cluster.num_workers={setting.workers}", f"cluster.num_ps={setting.ps}", "partitioner=min_size",
            f"partitioner.max_shards={setting.ps}",
        ]  # fmt: skip
        return [
            "-m", "psrun", "--config-dir", str(CONF), f"cluster={self.cluster}", "evaluation=none", "checkpoint=none",
            f"model={self.model}", f"optimizer={self.optimizer}", f"trainer={self.trainer}", *tasks,
            f"data.rows={setting.rows}", f"data.skew={setting.skew}", f"data.global_batch_size={setting.batch}",
            f"trainer.epochs={setting.windows + 1}", f"trainer.steps_per_epoch={setting.whole_steps}",
            *self.overrides, f"hydra.run.dir={folder / 'run'}",
        ]  # fmt: skip

    def run(self, folder: Path) -> tuple[Windows, Spent]:
        return run_psrun(self.command(folder), folder, windows=self.setting.windows, steps=self.setting.whole_steps)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def missing(self) -> str | None:
        """The file that it cannot do without and that is not there."""
        file = CONF / "model" / f"{self.model}.yaml"
        return None if file.exists() else str(file.relative_to(BENCHMARKS.parent))


def run_psrun(command: Sequence[str], folder: Path, *, windows: int, steps: int) -> tuple[Windows, Spent]:
    """Runs psrun in `folder`; each epoch but the first is a window.

    Args:
      command: of Python, for a run in `folder`/run.
      steps: of each epoch.
    """
    metrics = folder / "run" / "metrics.jsonl"
    at_epochs: list[float] = []  # processor seconds

    def watch(process: int) -> None:
        while len(at_epochs) <= windows and not has_ended(process):
            if len(_epochs(metrics)) > len(at_epochs):
                at_epochs.append(processor_s(process))
            time.sleep(0.02)

    spent = run_python(command, folder, watch=watch)
    rates = [epoch["steps_per_s"] for epoch in _epochs(metrics)]
    cpu_ms = [(end - begin) / steps * 1e3 for begin, end in itertools.pairwise(at_epochs)]
    return Windows(rates[1:], cpu_ms), spent


def _epochs(metrics: Path) -> list[dict[str, Any]]:
    """The events of the epochs of a run that have ended."""
    if not metrics.exists():
        return []
    text = metrics.read_text(encoding="utf-8")
    # The last line may be half written.
    whole = text[: text.rfind("\n") + 1]
    events = [json.loads(line) for line in whole.splitlines()]
    return [event for event in events if event["event"] == "epoch"]


@dataclass(frozen=True)
class Timed:
    """One process: steps a second of each window, and what it took in all.

    Attributes:
      cpu_ms: processor time of a step, of each window; empty if it is not known.
    """

    name: str
    round: int
    rates: list[float]
    spent: Spent
    cpu_ms: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, object]:
        """As values that JSON knows."""
        return {**asdict(self), "spent": self.spent._asdict()}


@dataclass(frozen=True)
class Failed:
    """One process that failed, or reported nothing."""

    name: str
    round: int
    reason: str


@dataclass
class Measurements:
    """All processes of all rounds, in the order they were run."""

    ways: Sequence[Way]
    timed: list[Timed] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    def measure(self, repetitions: int, console: Console) -> None:
        """Runs every way once a round, each in a fresh process, one after the other; one that fails is noted."""
        for index, ways in enumerate(in_turns(self.ways, repetitions)):
            for way in ways:
                try:
                    with tempfile.TemporaryDirectory(prefix="psrun-speed-") as folder:
                        windows, spent = way.run(Path(folder))
                        if not windows.steps_per_s:
                            raise ValueError("no window was timed")
                        timed = Timed(way.name, index, windows.steps_per_s, spent, windows.cpu_ms)
                except (RuntimeError, OSError, ValueError, LookupError) as error:
                    self.failed.append(Failed(way.name, index, str(error)))
                    console.print(f"round {index + 1}/{repetitions}  {way.name}: failed: {error}", markup=False)
                    continue
                self.timed.append(timed)
                console.print(
                    f"round {index + 1}/{repetitions}  {way.name}: {statistics.median(timed.rates):,.1f} steps/s  "
                    f"({timed.spent.wall_s:.0f} s, others {timed.spent.others_cpu_s:.1f} s of the processor)"
                )

    def rounds(self) -> list[Rates]:
        """For each round the median of each way's windows."""
        numbers = [each.round for each in self.timed]
        numbers += [each.round for each in self.failed]
        last = max(numbers, default=-1)
        medians: list[dict[str, float]] = [{} for _ in range(1 + last)]
        for timed in self.timed:
            medians[timed.round][timed.name] = statistics.median(timed.rates)
        return [*medians]

    def summaries(self) -> dict[str, Summary]:
        """Over all windows of all rounds, by way."""
        return self._summaries(lambda timed: timed.rates)

    def processor_times(self) -> dict[str, Summary]:
        """In ms for each step, over all windows of all rounds, by way."""
        return self._summaries(lambda timed: timed.cpu_ms)

    def _summaries(self, values: Callable[[Timed], list[float]]) -> dict[str, Summary]:
        windows: dict[str, list[float]] = {way.name: [] for way in self.ways}
        for timed in self.timed:
            windows[timed.name] += values(timed)
        return {name: Summary.of(all_values) for name, all_values in windows.items() if all_values}

    def show(self, console: Console) -> None:
        table = Table("", "steps/s: median (least to most)", box=None, pad_edge=False)
        summaries, failures = self.summaries(), Counter(each.name for each in self.failed)
        for name in dict.fromkeys(way.name for way in self.ways):
            row = [summaries[name].text(1)] if name in summaries else []
            row += [f"failed in {_times(failures[name])}"] if name in failures else []
            if row:
                table.add_row(name, ", ".join(row))
        console.print(table)

    def plain(self) -> dict[str, object]:
        """As values that JSON knows."""
        return {
            "ways": {way.name: way.plain() for way in self.ways},
            "processes": [timed.plain() for timed in self.timed],
            "failed": [asdict(failed) for failed in self.failed],
            "summaries": {name: asdict(summary) for name, summary in self.summaries().items()},
        }


def _times(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
