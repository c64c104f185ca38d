"""The tables of docs/explanation/literature.md, from the runs of experiments/literature_*.yaml.

    python benchmarks/literature.py [FOLDER] [--only PATTERN ...] [--write PAGE]

FOLDER (runs/literature) has a folder for each experiment, such as FOLDER/momentum, as the commands in the experiment
files make them. Each number is a mean over the seeds with its standard deviation.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from measured import is_chosen, write_between
from rich.console import Console

REACHED = 0.03  # val_loss, of which the steps and the virtual time are measured; the least possible one is 0.01
DIVERGED = 1.0  # a loss above the variance of the labels


@dataclass(frozen=True)
class Point:
    """An evaluation, after an epoch.

    Attributes:
      time_s: virtual.
      metrics: of the evaluation.
    """

    step: int
    time_s: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Run:
    """What a run was told, and what it found.

    Attributes:
      metrics: the last ones; without any where the loss became nan.
    """

    config: dict[str, Any]
    metrics: dict[str, float]
    points: Sequence[Point]
    result: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Run:
        result = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        config = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
        if result["status"] != "completed":
            return cls(config, {}, [], result)
        points = []
        time_s = 0.0
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == "epoch":
                time_s = event.get("virtual", {}).get("time_s", 0.0)
            elif event["event"] == "evaluation":
                points.append(Point(event["step"], time_s, event["metrics"]))
        return cls(config, result["metrics"], points, result)

    def metric(self, name: str) -> float:
        """The last value; infinity where the loss became nan."""
        return self.metrics.get(name, math.inf)

    @property
    def late_loss(self) -> float:
        """The mean validation loss of the last five evaluations; infinity for a run that diverged."""
        losses = [point.metrics["loss"] for point in self.points[-5:]]
        mean = statistics.mean(losses) if losses else math.inf
        return mean if mean < DIVERGED else math.inf

    @property
    def arm(self) -> str:
        """The mode, with the option that the experiments vary."""
        mode = self.config["consistency"]
        for key in ("staleness", "max_delay", "backup_workers"):
            if mode.get(key):
                return f"{mode['kind']}, `{key}={mode[key]}`"
        if mode["kind"] == "hybrid" and mode["dense"] != "gba":
            return f"hybrid, `dense={mode['dense']}`"
        return mode["kind"]

    def reaches(self, loss: float, what: Callable[[Point], float]) -> float:
        """The step, or the time, of a validation loss: between two evaluations, the line between them."""
        before = None
        for point in self.points:
            if point.metrics["loss"] <= loss:
                if before is None:
                    return what(point)
                part = (before.metrics["loss"] - loss) / (before.metrics["loss"] - point.metrics["loss"])
                return what(before) + part * (what(point) - what(before))
            before = point
        return math.inf


def runs_of(folder: Path, patterns: Sequence[str]) -> list[Run]:
    """The runs of some sweeps that have ended, in the order of the patterns of their folders, and of their jobs."""
    found = []
    for pattern in patterns:
        for sweep in sorted(folder.glob(pattern)):
            jobs = [path.parent for path in sweep.glob("**/run.json")]
            jobs.sort(key=lambda job: (len(job.parts), job.parent, int(job.name)))
            found += [Run.of(job) for job in jobs]
    return [run for run in found if run.result["status"] in ("completed", "failed")]


def chosen(runs: Sequence[Run], **given: Any) -> list[Run]:
    """The runs with these values of keys, in which `__` stands for a dot."""
    found = []
    for run in runs:
        values = {key: _value(run.config, key.split("__")) for key in given}
        if values == given:
            found.append(run)
    return found


def _value(config: Any, names: Sequence[str]) -> Any:
    return functools.reduce(lambda inner, name: inner[name], names, config)


def different(runs: Sequence[Run], key: str) -> list[Any]:
    """The values that a key has, in order."""
    values = []
    for run in runs:
        value = _value(run.config, key.split("__"))
        if value not in values:
            values.append(value)
    return sorted(values)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation, of those that are finite."""
    finite = [each for each in values if math.isfinite(each)]
    if not finite:
        return "-"
    text = f"{statistics.mean(finite):,.{digits}f}"
    if len(finite) > 1:
        text += f" ± {statistics.stdev(finite):,.{digits}f}"
    if len(finite) < len(values):
        text += f" ({len(finite)} of {len(values)})"
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


# -- the tables


def momentum(runs: Sequence[Run]) -> str:
    """The training loss by rate, workers and momentum."""
    momenta = different(runs, "optimizer__momentum")
    rows = []
    for rate in different(runs, "optimizer__learning_rate"):
        for workers in different(runs, "cluster__num_workers"):
            cells = []
            for each in momenta:
                there = chosen(
                    runs, cluster__num_workers=workers, optimizer__momentum=each, optimizer__learning_rate=rate
                )
                cells.append([run.metric("loss") for run in there])
            rows.append([rate, workers, *marked(cells)])
    return table(["`learning_rate`", "workers", *(f"momentum {each}" for each in momenta)], rows)


def marked(cells: Sequence[Sequence[float]]) -> list[str]:
    """The losses of a row, of which the least mean is in bold."""
    means = [statistics.mean(each) for each in cells]
    texts = []
    for mean, values in zip(means, cells):
        if max(values) > DIVERGED:
            texts.append("diverged")
        elif mean == min(means):
            texts.append(f"**{spread(values, 3)}**")
        else:
            texts.append(spread(values, 3))
    return texts


def sparsity(runs: Sequence[Run]) -> str:
    """The validation loss by users and rate, and what late updates add to it."""
    rows = []
    workers = different(runs, "cluster__num_workers")
    arms: dict[tuple[int, float], list[Run]] = {}
    for run in runs:
        size = int(Path(run.config["data"]["path"]).stem)
        arms.setdefault((size, run.config["optimizer"]["learning_rate"]), []).append(run)
    for (size, rate), there in sorted(arms.items()):
        alone = {run.config["seed"]: run.metric("val_loss") for run in chosen(there, cluster__num_workers=1)}
        cells = []
        for count in workers[1:]:
            late = chosen(there, cluster__num_workers=count)
            cells.append(spread([run.metric("val_loss") - alone[run.config["seed"]] for run in late], 3))
        rows.append([f"{size:,}", rate, spread(list(alone.values()), 3), *cells])
    more = [f"{count} workers: more by" for count in workers[1:]]
    return table(["users, items", "`learning_rate`", "1 worker: `val_loss`", *more], rows)


def depth(runs: Sequence[Run]) -> str:
    """By rate and layers, the loss with delays divided by the loss without."""
    delays = different(runs, "cluster__mean_delay")
    rows = []
    for rate in different(runs, "optimizer__learning_rate"):
        for units in sorted(different(runs, "model__hidden_units"), key=len):
            there = chosen(runs, model__hidden_units=units, optimizer__learning_rate=rate)
            alone = {run.config["seed"]: run.late_loss for run in chosen(there, cluster__mean_delay=0)}
            cells = []
            for delay in delays[1:]:
                late = chosen(there, cluster__mean_delay=delay)
                cells.append(spread([run.late_loss / alone[run.config["seed"]] for run in late], 2))
            rows.append([rate, len(units), spread(list(alone.values()), 3), *cells])
    more = [f"mean delay {each}: divided by it" for each in delays[1:]]
    return table(["`learning_rate`", "hidden layers", "no delay: `val_loss`", *more], rows)


def _step(point: Point) -> float:
    return point.step


def _time_s(point: Point) -> float:
    return point.time_s


def in_time(runs: Sequence[Run]) -> str:
    """By mode: rate, waits, and the gradients and the virtual seconds until a loss."""
    rows = []
    arms: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        optimizer = run.config["optimizer"]
        arms.setdefault((run.arm, f"{optimizer['learning_rate']}, {optimizer['momentum']}"), []).append(run)
    for (arm, rate), there in arms.items():
        config = there[0].config
        per_step = 1 if config["consistency"]["kind"] in ("async", "ssp", "bounded_delay") else _gradients(config)
        alive = [run for run in there if run.points]
        gradients = [run.reaches(REACHED, _step) * per_step for run in there]
        seconds = [run.reaches(REACHED, _time_s) for run in there]
        losses = [run.metric("val_loss") for run in there]
        rows.append(
            [
                arm,
                rate,
                spread([run.points[-1].step * per_step / run.points[-1].time_s for run in alive], 1),
                spread([_waited(run) for run in alive], 0),
                spread([run.result["staleness"]["mean"] for run in alive], 1),
                spread(gradients, 0),
                spread(seconds, 1),
                spread([each if each < DIVERGED else math.inf for each in losses], 4),
            ]
        )
    return table(
        ["`consistency=`", "rate, momentum", "gradients/s", "waits, %", "staleness", f"gradients to {REACHED}",
         f"seconds to {REACHED}", "last `val_loss`"],
        rows,
    )  # fmt: skip


def _waited(run: Run) -> float:
    """The share of the time, in percent, in which workers waited for their next round."""
    waited_s = sum(run.result["consistency"]["waited_s"].values())
    return 100 * waited_s / run.config["cluster"]["num_workers"] / run.points[-1].time_s


def _gradients(config: dict[str, Any]) -> int:
    """Of an update."""
    return config["cluster"]["num_workers"] - config["consistency"].get("backup_workers", 0)


def hybrid(runs: Sequence[Run]) -> str:
    """By mode and rate: the AUC after a pass and at the end, and examples per virtual second."""
    rows = []
    arms: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        arms.setdefault((run.arm, run.config["optimizer"]["learning_rate"]), []).append(run)
    for (arm, rate), there in arms.items():
        alive = [run for run in there if run.points]
        rates = [run.result["virtual"]["examples_per_s"] for run in alive]
        first = [run.points[0].metrics["auc"] for run in alive]
        last = [run.points[-1].metrics["auc"] for run in alive]
        ages = [run.result["staleness"]["mean"] for run in alive]
        rows.append([arm, rate, spread(rates, 0), spread(ages, 1), spread(first, 4), spread(last, 4)])
    return table(["`consistency=`", "`learning_rate`", "examples/s", "staleness", "`val_auc`: pass 1", "pass 2"], rows)


@dataclass(frozen=True)
class Table:
    """A table, and the folders of its runs in the order of its rows."""

    made: Callable[[Sequence[Run]], str]
    folders: Sequence[str]


SYNC = "ssp/sync"
ASYNC = "ssp/async"
TABLES = {
    "momentum": Table(momentum, ["momentum"]),
    "sparsity": Table(sparsity, ["sparsity"]),
    "ssp": Table(
        in_time, [SYNC, "ssp/sync_same", "ssp/sync_plain", "ssp/ssp1", "ssp/ssp", "ssp/ssp_same", "ssp/async*"]
    ),
    "depth": Table(depth, ["depth"]),
    "bounded_delay": Table(in_time, ["bounded_delay", ASYNC]),
    "backup": Table(in_time, [SYNC, "backup/backup[124]", ASYNC, "ssp/sync_same", "backup/backup_same*"]),
    "hybrid": Table(hybrid, ["hybrid"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/literature"))
    parser.add_argument("--only", nargs="*", default=["*"], help="tables, such as 'ssp' or 'b*'")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables between their marks")
    options = parser.parse_args()
    console = Console(highlight=False, width=240, soft_wrap=True)
    for name, each in TABLES.items():
        if not is_chosen(name, options.only):
            continue
        runs = runs_of(options.folder, each.folders)
        if not runs:
            continue
        text = each.made(runs)
        console.print(f"{name}\n\n{text}\n", markup=False)
        if options.write is not None:
            write_between(options.write, name, text)


if __name__ == "__main__":
    main()
