"""Steps per second of psrun beside the same model trained by hand (benchmarks/tensorflow_by_hand.py).

    python benchmarks/speed.py [--repetitions N] [--stale] [--adam] [--torch] [--json FILE] [--plot FILE]

Each round runs every way once, in a fresh process, one after the other; the order changes from round to round. A way
that fails is a row that says so, and makes the exit code 1; the others are measured. Ratios are taken of the medians
within a round; the goal holds for the median of these ratios. psrun unrolls steps only in runs of 4000 and more: with
fewer steps in all windows, and one window to warm up, something else is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from measured import (
    ByHand,
    Goal,
    Measurements,
    Psrun,
    Setting,
    Summary,
    Way,
    drawn,
    is_chosen,
    plot_problem,
    show_goals,
)
from rich.console import Console

KINDS = ("tutorial", "packed", "fit", "local", "limit")
STALE = ("model.wire=bfloat16", "trainer.prefetch_rows=true", "trainer.dense_sync_every=5")
GOALS = (
    Goal("psrun", "packed", 1.5),
    Goal("psrun layer", "packed", 1.8),
    Goal("psrun layer", "local", 0.95),
    Goal("psrun layer", "limit", 0.95),
    Goal("psrun fit", "psrun", 0.9),
    Goal("psrun stale", "local_limit", 0.7),
    Goal("lazy_adam 1M", "Keras Adam 1M", 6.0),
    Goal("lazy_adam 10M", "Keras Adam 10M", 25.0),
    Goal("lazy_adam 10M", "lazy_adam 100k", 0.75),
    Goal("psrun layer", "torch RPC", 2.0),
    Goal("psrun layer", "torch Adagrad", 1.2),
    Goal("lazy_adam", "torch SparseAdam", 1.9),
)
ROWS = (100_000, 1_000_000, 10_000_000)
_STEPS_OF_ADAM = 40  # of a window: by hand a step on a large table takes seconds, as it writes all rows


def ways(options: argparse.Namespace) -> list[Way]:
    """All requested ways, including those that cannot run."""
    setting = Setting(rows=options.table_rows, batch=options.batch_size, steps=options.steps, windows=options.windows)
    candidates: list[Way] = [ByHand(kind, kind, setting) for kind in KINDS]
    candidates += [Psrun("psrun", setting), Psrun("psrun fit", setting, trainer="fit")]
    candidates += [Psrun("psrun layer", setting, model="clicks_table")]
    if options.stale:
        candidates += [ByHand("local_limit", "local_limit", setting)]
        candidates += [Psrun("psrun stale", setting, model="clicks_table", overrides=STALE)]
    if options.adam:
        for rows in options.rows:
            table = replace(setting, rows=rows)
            few = replace(table, steps=min(options.steps, _STEPS_OF_ADAM)) if rows > ROWS[0] else table
            candidates += [Psrun(f"lazy_adam {_short(rows)}", table, optimizer="lazy_adam")]
            candidates += [ByHand(f"Keras Adam {_short(rows)}", "packed", few, optimizer="adam")]
    if options.torch:
        candidates += [ByHand("torch Adagrad", "torch", setting)]
        candidates += [ByHand("torch SparseAdam", "torch", setting, optimizer="adam")]
        candidates += [ByHand("torch RPC", "torch_ps", setting)]
        candidates += [Psrun("lazy_adam", setting, model="clicks_table", optimizer="lazy_adam")]
    return [way for way in candidates if is_chosen(way.name, options.only)]


def _short(rows: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if rows % size == 0:
            return f"{rows // size}{unit}"
    return str(rows)


def possible(candidates: list[Way], console: Console) -> list[Way]:
    """The ways with all their files; prints the others."""
    runnable = []
    for way in candidates:
        missing = way.missing if isinstance(way, Psrun) else None
        if missing is None:
            runnable.append(way)
        else:
            console.print(f"{way.name} is left out: there is no {missing}")
    return runnable


def bars(axes: Any, summaries: Mapping[str, Summary]) -> None:
    """Horizontal bars of the medians, with lines from the least to the most."""
    values = list(summaries.values())
    spread = [[each.median - each.least for each in values], [each.most - each.median for each in values]]
    colors = ["tab:blue" if name.startswith(("psrun", "lazy_adam")) else "tab:gray" for name in summaries]
    axes.barh(list(summaries), [each.median for each in values], xerr=spread, color=colors, capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("steps/s: median, least to most")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="rounds")
    parser.add_argument("--steps", type=int, default=1000, help="of each window that is timed")
    parser.add_argument("--windows", type=int, default=3, help="that are timed in each process")
    parser.add_argument("--table-rows", type=int, default=1_000_000, help="of the table, where --rows does not say")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--stale", action="store_true", help="also psrun with rows and weights a few steps old")
    parser.add_argument("--adam", action="store_true", help="also lazy_adam beside Keras' Adam")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="of the tables of --adam")
    parser.add_argument("--torch", action="store_true", help="also PyTorch: in one process, and with RPC")
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only ways of such names: '*adam*'")
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    parser.add_argument("--plot", type=Path, help="file for a picture of the medians (needs matplotlib)")
    options = parser.parse_args()
    if options.plot and (problem := plot_problem()):
        parser.error(problem)
    if options.torch and importlib.util.find_spec("torch") is None:
        parser.error("--torch needs PyTorch, which is not there: pip install 'psrun[benchmarks]'")
    if min(options.repetitions, options.steps, options.windows) < 1:
        parser.error("--repetitions, --steps and --windows must be 1 or more")
    return options


def report(
    measurements: Measurements, load_average: tuple[float, ...], options: argparse.Namespace, console: Console
) -> None:
    """Prints, writes and draws what was measured."""
    measurements.show(console)
    goals = show_goals(GOALS, measurements.rounds(), console)
    if options.json:
        record = {"load_average_before": load_average, **measurements.plain(), "goals": goals}
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        summaries = measurements.summaries()
        drawn(options.plot, bars, summaries, height=1.0 + 0.35 * len(summaries))


def main() -> None:
    options = parsed()
    console = Console(highlight=False, width=120)
    load_average = os.getloadavg()
    runnable = possible(ways(options), console)
    if not runnable:
        sys.exit("there is nothing to measure")
    measurements = Measurements(runnable)
    try:
        measurements.measure(options.repetitions, console)
    finally:  # also where somebody has waited long enough
        report(measurements, load_average, options, console)
    sys.exit(1 if measurements.failed else 0)


if __name__ == "__main__":
    main()
