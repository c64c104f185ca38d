"""Ways to train the clicks model, psrun's and those by hand: processes that tell steps a second of their windows."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measured import BENCHMARKS, Rates, Spent, Summary, in_turns, run_python
from rich.console import Console
from rich.table import Table

CONF = BENCHMARKS / "conf"
STEPS_PER_EXECUTION = 20


@dataclass(frozen=True)
class Setting:
    """Model, data and cluster, the same by hand and with psrun.

    Attributes:
      skew: of the ids, see `click_examples.generated`.
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
class ByHand:
    """A kind of speed_by_hand.py, or of torch_by_hand.py."""

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
        program = "torch_by_hand.py" if self.kind.startswith("torch") else "speed_by_hand.py"
        return [
            str(BENCHMARKS / program),
            self.kind,
            *(f"--{name}={value}" for name, value in options.items()),
        ]

    def rates(self, folder: Path) -> list[float]:
        return json.loads((folder / "rates.json").read_text(encoding="utf-8"))


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

    def rates(self, folder: Path) -> list[float]:
        events = map(json.loads, (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [event["steps_per_s"] for event in events if event["event"] == "epoch"][1:]

    @property
    def missing(self) -> str | None:
        """The file that it cannot do without and that is not there."""
        file = CONF / "model" / f"{self.model}.yaml"
        return None if file.exists() else str(file.relative_to(BENCHMARKS.parent))


Way = ByHand | Psrun


@dataclass(frozen=True)
class Timed:
    """One process: steps a second of each window, and what it took in all."""

    name: str
    round: int
    rates: list[float]
    spent: Spent

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
                        spent = run_python(way.command(Path(folder)), Path(folder))
                        rates = way.rates(Path(folder))
                        if not rates:
                            raise ValueError("no window was timed")
                        timed = Timed(way.name, index, rates, spent)
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
        last = max((each.round for each in (*self.timed, *self.failed)), default=-1)
        medians: list[dict[str, float]] = [{} for _ in range(1 + last)]
        for timed in self.timed:
            medians[timed.round][timed.name] = statistics.median(timed.rates)
        return medians

    def summaries(self) -> dict[str, Summary]:
        """Over all windows of all rounds, by way."""
        names = [way.name for way in self.ways]
        windows = {name: [rate for timed in self.timed if timed.name == name for rate in timed.rates] for name in names}
        return {name: Summary.of(rates) for name, rates in windows.items() if rates}

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
            "ways": {way.name: asdict(way) for way in self.ways},
            "processes": [timed.plain() for timed in self.timed],
            "failed": [asdict(failed) for failed in self.failed],
            "summaries": {name: asdict(summary) for name, summary in self.summaries().items()},
        }


def _times(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
