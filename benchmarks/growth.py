"""How the cost of psrun grows with the size of what it is given: one curve for each size, with its exponent.

    python benchmarks/growth.py [--rounds N] [--only PATTERN ...] [--json FILE] [--write PAGE] [--plot PICTURE]

Rows of a table, batch size, tables, columns of a file, workers and runs. Each point is a fresh process; in each round
all points of a curve follow each other, and the first one changes. A point is the median over the rounds. An exponent e
says that the time grows as size ** e: the slope of a line through the logarithms, over all points and between the last
two. Processor times are of the process and all that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measured import CONF, Psrun, Setting, in_turns, is_chosen, plot_problem, run_psrun, run_python, write_between
from rich.console import Console

_STEPS, _WINDOWS = 200, 2
_EXAMPLES_OF_COLUMNS = 4096
_EVENTS_OF_A_RUN = 20  # epochs of each of many runs


class Cost(NamedTuple):
    """Time until something was done, and its processor time, both in seconds."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Curve:
    """What is measured at some sizes.

    Attributes:
      what: that takes the time.
      over: what the sizes count.
      measure: the cost at a size, in an empty folder.
      each: whether the cost is of one step, in ms; else of all, in s.
    """

    what: str
    over: str
    sizes: tuple[int, ...]
    measure: Callable[[int, Path], Cost]
    each: bool = True

    @property
    def name(self) -> str:
        return f"{self.what}, by {self.over}"


@dataclass
class Points:
    """What a curve came to: costs by size."""

    curve: Curve
    costs: dict[int, list[Cost]] = field(default_factory=dict)

    def medians(self, kind: str) -> dict[int, float]:
        """Seconds by size, `kind` being a field of `Cost`."""
        sizes = sorted(self.costs)
        return {size: statistics.median(getattr(cost, kind) for cost in self.costs[size]) for size in sizes}

    def plain(self) -> dict[str, Any]:
        """As values that JSON knows."""
        costs = {size: [cost._asdict() for cost in costs] for size, costs in self.costs.items()}
        return {"what": self.curve.what, "over": self.curve.over, "costs": costs}


def exponent(seconds_by_size: dict[int, float]) -> float:
    """The slope of the line through the logarithms, by least squares; not a number for fewer than two sizes."""
    if len(seconds_by_size) < 2:
        return float("nan")
    sizes, seconds = zip(*seconds_by_size.items())
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def _steps(way: Psrun, folder: Path) -> Cost:
    windows, _ = way.run(folder)
    return Cost(1.0 / statistics.median(windows.steps_per_s), statistics.median(windows.cpu_ms) / 1e3)


def _dlrm(setting: Setting, *, cluster: str = "none", num_tables: int = 26) -> Psrun:
    tables = f"data.num_tables={num_tables}"
    return Psrun("dlrm", setting, model="dlrm_tables", cluster=cluster, overrides=(tables,))


def _step_by_rows(rows: int, folder: Path) -> Cost:
    return _steps(_dlrm(Setting(rows=rows, steps=_STEPS, windows=_WINDOWS)), folder)


def _step_by_batch(batch: int, folder: Path) -> Cost:
    return _steps(_dlrm(Setting(rows=20_000, batch=batch, steps=_STEPS, windows=_WINDOWS)), folder)


def _step_by_tables(num_tables: int, folder: Path) -> Cost:
    setting = Setting(rows=20_000, steps=_STEPS, windows=_WINDOWS)
    return _steps(_dlrm(setting, num_tables=num_tables), folder)


def _step_by_workers(workers: int, folder: Path) -> Cost:
    setting = Setting(rows=20_000, workers=workers, steps=_STEPS, windows=_WINDOWS)
    return _steps(_dlrm(setting, cluster="inprocess"), folder)


def _columns_command(columns: int, folder: Path, *, epochs: int, steps: int) -> list[str]:
    """A run of `model=wide_deep` on a file with half as many columns of numbers as columns, and as many of words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    values: dict[str, Any] = {"label": rng.integers(2, size=_EXAMPLES_OF_COLUMNS)}
    words = np.array([f"word{index}" for index in range(100)])
    for column in range(columns):
        if column % 2:
            values[f"w{column}"] = words[rng.integers(len(words), size=_EXAMPLES_OF_COLUMNS)]
        else:
            values[f"n{column}"] = rng.normal(size=_EXAMPLES_OF_COLUMNS).astype(np.float32)
    pq.write_table(pa.table(values), folder / "table.parquet")
    return [
        "-m", "psrun", "cluster=none", "data=table", "model=wide_deep", f"data.path={folder / 'table.parquet'}",
        "data.label=label", "data.global_batch_size=256", "evaluation=none", "checkpoint=none",
        f"trainer.epochs={epochs}", f"trainer.steps_per_epoch={steps}", f"hydra.run.dir={folder / 'run'}",
    ]  # fmt: skip


def _first_step_by_columns(columns: int, folder: Path) -> Cost:
    """Until the first step; the processor time is of the whole run of one step."""
    spent = run_python(_columns_command(columns, folder, epochs=1, steps=1), folder)
    state = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    return Cost(state["time_to_first_step_s"], spent.cpu_s)


def _step_by_columns(columns: int, folder: Path) -> Cost:
    command = _columns_command(columns, folder, epochs=_WINDOWS + 1, steps=100)
    windows, _ = run_psrun(command, folder, windows=_WINDOWS, steps=100)
    return Cost(1.0 / statistics.median(windows.steps_per_s), statistics.median(windows.cpu_ms) / 1e3)


def _of_runs(command: Sequence[str]) -> Callable[[int, Path], Cost]:
    """The cost of a command of psrun on a folder of many runs."""

    def measure(runs: int, folder: Path) -> Cost:
        small = [
            "-m", "psrun", "--config-dir", str(CONF), "model=clicks", "cluster=none", "evaluation=none",
            "checkpoint=none", "data.rows=100", "data.num_examples=64", "data.num_eval_examples=64",
            "data.global_batch_size=32", f"trainer.epochs={_EVENTS_OF_A_RUN}", "trainer.steps_per_epoch=1",
        ]  # fmt: skip
        run_python([*small, f"hydra.run.dir={folder / 'one'}"], folder)
        for index in range(runs):
            shutil.copytree(folder / "one", folder / "runs" / f"run-{index}")
        spent = run_python(["-m", "psrun", *command, str(folder / "runs")], folder)
        return Cost(spent.wall_s, spent.cpu_s)

    return measure


_RUNS = (20, 60, 200, 600, 2000)
_COLUMNS = (10, 30, 100, 300, 1000)
CURVES = (
    Curve("a step of DLRM", "rows of each table", (2_000, 6_000, 20_000, 60_000, 200_000), _step_by_rows),
    Curve("a step of DLRM", "batch size", (64, 256, 1024, 4096, 16384), _step_by_batch),
    Curve("a step of DLRM", "tables", (4, 8, 16, 32, 64), _step_by_tables),
    Curve("a step of DLRM, `cluster=inprocess`", "workers", (1, 2, 4, 8), _step_by_workers),
    Curve("a step of wide and deep", "columns", _COLUMNS, _step_by_columns),
    Curve("the first step of wide and deep", "columns", _COLUMNS, _first_step_by_columns, each=False),
    Curve("`psrun list`", "runs", _RUNS, _of_runs(["list"]), each=False),
    Curve("`psrun report`", "runs", _RUNS, _of_runs(["report"]), each=False),
)


def measured(curve: Curve, rounds: int, console: Console) -> Points:
    """The points of a curve. A point that fails is left out."""
    points = Points(curve)
    for index, sizes in enumerate(in_turns(curve.sizes, rounds)):
        for size in sizes:
            label = f"round {index + 1}/{rounds}  {curve.name} {size:,}"
            try:
                with tempfile.TemporaryDirectory(prefix="psrun-growth-") as folder:
                    cost = curve.measure(size, Path(folder))
            except (RuntimeError, OSError, ValueError, LookupError, statistics.StatisticsError) as error:
                console.print(f"{label}: failed: {error}", markup=False)
                continue
            points.costs.setdefault(size, []).append(cost)
            console.print(f"{label}: {cost.wall_s:.4g} s, {cost.cpu_s:.4g} s of the processor", markup=False)
    return points


def markdown(all_points: Sequence[Points]) -> str:
    """The table of the documentation: a row for each curve with two points or more."""
    lines = [
        "| time of | by | sizes | time at each size | processor time at each size | exponent of the time | "
        "of the processor time | of that between the last two sizes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for points in all_points:
        wall, cpu = points.medians("wall_s"), points.medians("cpu_s")
        if len(cpu) < 2:
            continue
        last = dict(list(cpu.items())[-2:])
        cells = (
            points.curve.what,
            points.curve.over,
            ", ".join(f"{size:,}" for size in cpu),
            _times(wall, each=points.curve.each),
            _times(cpu, each=points.curve.each),
            f"{exponent(wall):.2f}",
            f"{exponent(cpu):.2f}",
            f"{exponent(last):.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _times(seconds_by_size: dict[int, float], *, each: bool) -> str:
    if each:
        return ", ".join(_rounded(seconds * 1e3) for seconds in seconds_by_size.values()) + " ms"
    return ", ".join(_rounded(seconds) for seconds in seconds_by_size.values()) + " s"


def _rounded(value: float) -> str:
    """Three digits or more, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def plot(path: Path, all_points: Sequence[Points]) -> None:
    """Writes one picture with an axis for each curve, both logarithmic."""
    from matplotlib.figure import Figure

    columns = min(4, len(all_points))
    rows = -(-len(all_points) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.7 * rows), layout="constrained")
    axes: Any = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for axis in axes[len(all_points) :]:
        axis.set_visible(False)
    for axis, points in zip(axes, all_points):
        _draw(axis, points)
    axes[0].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw(axis: Any, points: Points) -> None:
    """The curves of time and of processor time."""
    for kind, label, line in (("wall_s", "time", "-"), ("cpu_s", "processor time", "--")):
        seconds = points.medians(kind)
        axis.plot(list(seconds), list(seconds.values()), line, marker="o", markersize=3, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    least, most = axis.get_ylim()
    # A decade or more, so that a curve that is nearly flat looks flat.
    axis.set_ylim(least, max(most, 10 * least))
    axis.minorticks_off()
    sizes = sorted(points.costs)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.set_title(points.curve.what.replace("`", ""), fontsize=9)
    axis.set_xlabel(f"{points.curve.over}; exponent {exponent(points.medians('cpu_s')):.2f}", fontsize=8)
    axis.set_ylabel("s", fontsize=8)
    axis.tick_params(labelsize=7)


def main() -> None:
    options = _parsed()
    console = Console(highlight=False, width=120)
    chosen = [curve for curve in CURVES if is_chosen(curve.name, options.only)]
    all_points: list[Points] = []
    try:
        for curve in chosen:
            all_points.append(measured(curve, options.rounds, console))
    finally:
        table = markdown(all_points)
        console.print(table, markup=False, soft_wrap=True)
        if options.json:
            record = [points.plain() for points in all_points]
            options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    text = table
    if options.plot:
        plot(options.plot, [points for points in all_points if points.costs])
    if options.plot and options.write:
        text = f"![curves of time over size]({os.path.relpath(options.plot, options.write.parent)})\n\n{table}"
    if options.write:
        write_between(options.write, "growth", text)
    complete = all(len(points.costs) == len(points.curve.sizes) for points in all_points)
    sys.exit(0 if complete else 1)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only such curves: '*columns*'")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    parser.add_argument("--write", type=Path, help="page that gets the table, between <!-- growth --> and its end")
    parser.add_argument("--plot", type=Path, help="file for the curves, .svg or .png (needs matplotlib)")
    options = parser.parse_args()
    if options.plot and (problem := plot_problem()):
        parser.error(problem)
    return options


if __name__ == "__main__":
    main()
