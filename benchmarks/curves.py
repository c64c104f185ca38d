"""Steps a second of psrun beside the same model by hand (`packed`) over one thing at a time that is made larger.

    python benchmarks/curves.py [--axis NAME ...] [--values N ...] [--repetitions N] [--json FILE] [--plot FILE]

Each round runs both at every value, each in a fresh process, one after the other, in turns of who goes first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from measured import Summary, drawn, plot_problem
from rich.console import Console
from rich.table import Table
from ways import ByHand, Measurements, Psrun, Setting

AXES: dict[str, tuple[float, ...]] = {
    "rows": (10_000, 100_000, 1_000_000, 10_000_000),
    "workers": (1, 2, 4, 8),
    "ps": (1, 2, 4),
    "batch": (64, 256, 1024, 4096),
    "skew": (0, 1.05, 1.2, 1.5),
}
LABELS = {
    "rows": "rows of the table",
    "workers": "workers",
    "ps": "parameter servers",
    "batch": "examples in a step",
    "skew": "exponent of Zipf's law (0: all ids as frequent)",
}
KINDS = ("psrun", "packed")
Curve = dict[float, dict[str, Summary]]  # by value: of both kinds, and `ratio`


def curve(axis: str, values: Sequence[float], options: argparse.Namespace, console: Console) -> tuple[Curve, object]:
    """The summaries at `values`, and every measurement as JSON values."""
    base = Setting(rows=options.table_rows, steps=options.steps, windows=options.windows)
    ways = []
    for value in values:
        setting = replace(base, **{axis: value if axis == "skew" else int(value)})
        ways += [Psrun(_name("psrun", axis, value), setting), ByHand(_name("packed", axis, value), "packed", setting)]
    measurements = Measurements(ways)
    measurements.measure(options.repetitions, console)
    summaries, rounds, points = measurements.summaries(), measurements.rounds(), {}
    for value in values:
        ours, theirs = (_name(kind, axis, value) for kind in KINDS)
        ratio = Summary.of([rates[ours] / rates[theirs] for rates in rounds])
        points[value] = {"psrun": summaries[ours], "packed": summaries[theirs], "ratio": ratio}
    return points, measurements.plain()


def _name(kind: str, axis: str, value: float) -> str:
    return f"{kind} {axis}={value:g}" if axis == "skew" else f"{kind} {axis}={value:,.0f}"


def show(axis: str, points: Curve, console: Console) -> None:
    columns = ("steps/s: median (least to most)", *KINDS, "ratio within a round")
    table = Table(*columns, box=None, pad_edge=False)
    for value, row in points.items():
        shown = f"{value:g}" if axis == "skew" else f"{value:,.0f}"
        table.add_row(f"{axis} {shown}", row["psrun"].text(1), row["packed"].text(1), str(row["ratio"]))
    console.print(table)


def lines(axes: Any, axis: str, points: Curve) -> None:
    """A line for each kind, with the spread at each value."""
    at = list(points) if axis != "skew" else range(len(points))
    for kind in KINDS:
        values = [row[kind] for row in points.values()]
        spread = [[each.median - each.least for each in values], [each.most - each.median for each in values]]
        axes.errorbar(at, [each.median for each in values], yerr=spread, marker="o", capsize=3, label=kind)
    if axis != "skew":
        axes.set_xscale("log")
    axes.set_xticks(at, [f"{value:g}" if axis == "skew" else f"{value:,.0f}" for value in points])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(LABELS[axis])
    axes.set_ylabel("steps/s: median, least to most")
    axes.legend()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axis", choices=AXES, action="append", help="only this one (default: all)")
    parser.add_argument("--values", type=float, nargs="+", help="of the one --axis, instead of those it has by itself")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds")
    parser.add_argument("--steps", type=int, default=1000, help="of each window that is timed")
    parser.add_argument("--windows", type=int, default=3, help="that are timed in each process")
    parser.add_argument("--table-rows", type=int, default=1_000_000, help="of the table, but along the axis rows")
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    parser.add_argument("--plot", type=Path, help="file for a picture; the axis is added to its name if there are more")
    options = parser.parse_args()
    if options.values and len(options.axis or AXES) != 1:
        parser.error("--values needs exactly one --axis")
    if min(options.repetitions, options.steps, options.windows) < 1:
        parser.error("--repetitions, --steps and --windows must be 1 or more")
    if options.plot and (problem := plot_problem()):
        parser.error(problem)
    return options


def main() -> None:
    options = parsed()
    console = Console(highlight=False, width=120)
    axes = options.axis or list(AXES)
    record: dict[str, object] = {}
    for axis in axes:
        points, measured = curve(axis, options.values or AXES[axis], options, console)
        show(axis, points, console)
        curves = {f"{value:g}": {name: asdict(each) for name, each in row.items()} for value, row in points.items()}
        record[axis] = {"curve": curves, "measurements": measured}
        if options.json:  # after each axis: the next ones take their time
            options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if options.plot:
            name = options.plot.name if len(axes) == 1 else f"{options.plot.stem}-{axis}{options.plot.suffix}"
            drawn(options.plot.with_name(name), lines, axis, points)


if __name__ == "__main__":
    main()
