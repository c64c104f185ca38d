"""Steps a second of models with many tables, stored as stacks and one by one.

    python benchmarks/dlrm.py [--repetitions N] [--cluster NAME] [--num-tables N] [--list-lengths N ...]
                              [--skew X] [--only PATTERN ...] [--json FILE]

DLRM and wide and deep over 26 categories of 20,000 values each, with two workers and two parameter servers and without
parameter servers. DLRM also with categories that are lists, and with one stacked table in plain TensorFlow
(tensorflow_by_hand.py). Rounds and ratios are taken as in benchmarks/speed.py. Other libraries: benchmarks/peers.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from by_hand import NUM_FEATURES
from measured import ByHand, Goal, Measurements, Psrun, Setting, Way, is_chosen, show_goals
from rich.console import Console

LIST_EXAMPLES = 8192  # the pipeline's graph holds the ids of all examples

GOALS = (
    Goal("dlrm stacked", "dlrm", 2.5),
    Goal("wide_deep stacked", "wide_deep", 3.5),
    Goal("dlrm stacked", "dlrm one process", 0.85),
    Goal("dlrm one process stacked", "dlrm one process", 1.15),
    Goal("dlrm stacked", "dlrm by hand", 0.85),
    Goal("dlrm lists of 1 stacked", "dlrm stacked", 0.95),
    Goal("dlrm one process lists of 1", "dlrm one process", 0.95),
)


def ways(options: argparse.Namespace) -> list[Way]:
    setting = Setting(rows=options.rows, steps=options.steps, windows=options.windows, skew=options.skew)
    size = f"data.num_tables={options.num_tables}"
    candidates: list[Way] = []
    for model in ("dlrm", "wide_deep"):
        candidates += _unstacked_and_stacked(
            Psrun(model, setting, model=f"{model}_tables", overrides=(size,), cluster=options.cluster)
        )
    one_process = Psrun("dlrm one process", setting, model="dlrm_tables", overrides=(size,), cluster="none")
    candidates += _unstacked_and_stacked(one_process)
    for length in options.list_lengths:
        pieces = (size, f"data.list_length={length}", f"data.num_examples={LIST_EXAMPLES}")
        name = f"lists of {length}"
        way = Psrun(f"dlrm {name}", setting, model="dlrm_tables", overrides=pieces, cluster=options.cluster)
        candidates += _unstacked_and_stacked(way)
        candidates += _unstacked_and_stacked(replace(way, name=f"dlrm one process {name}", cluster="none"))
    if options.num_tables == NUM_FEATURES:
        candidates.append(ByHand("dlrm by hand", "dlrm", replace(setting, rows=options.rows * NUM_FEATURES)))
    return [way for way in candidates if is_chosen(way.name, options.only)]


def _unstacked_and_stacked(way: Psrun) -> list[Way]:
    return [
        replace(way, overrides=(*way.overrides, "model.stack=false")),
        replace(way, name=f"{way.name} stacked", overrides=(*way.overrides, "model.stack=true")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="rounds")
    parser.add_argument("--steps", type=int, default=1000, help="of each window that is timed")
    parser.add_argument("--windows", type=int, default=3, help="that are timed in each process")
    parser.add_argument("--cluster", choices=("inprocess", "local"), default="inprocess", help="of parameter servers")
    parser.add_argument("--list-lengths", type=int, default=[], nargs="+", metavar="N", help="also lists of N values")
    parser.add_argument("--num-tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=20_000, help="of each table")
    parser.add_argument("--skew", type=float, default=0.0, help="exponent of Zipf's law; 0: uniform ids")
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only ways of such names")
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    options = parser.parse_args()
    console, load_average = Console(highlight=False, width=120), os.getloadavg()
    measurements = Measurements(ways(options))
    try:
        measurements.measure(options.repetitions, console)
    finally:
        measurements.show(console)
        goals = show_goals(GOALS, measurements.rounds(), console)
    if options.json:
        record = {"load_average_before": load_average, **measurements.plain(), "goals": goals}
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if measurements.failed else 0)


if __name__ == "__main__":
    main()
