"""Differences between the runs of a sweep and a baseline among them, paired by seed, and whether they are significant.

    python benchmarks/differences.py FOLDER --baseline KEY=VALUE [--metric val_auc] [--within KEY]

A configuration is the keys that differ between the runs, without the seed. Each is compared with the baseline by
Student's paired t test over the seeds that both have, two-sided, corrected for the number of comparisons as by Holm (A
Simple Sequentially Rejective Multiple Test Procedure, 1979). With `--within`, only runs with the same value of that key
are compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy import stats

Configuration = tuple[tuple[str, str], ...]
BySeed = dict[int, float]
_BETWEEN = ("folder", "status")  # the keys that differ are between these two in a row of a report
LEVEL = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--baseline", required=True, metavar="KEY=VALUE", help="of the runs to compare with")
    parser.add_argument("--metric", default="val_auc")
    parser.add_argument("--within", metavar="KEY", help="compare runs with the same value of this key")
    options = parser.parse_args()
    values = by_configuration(rows(options.folder), options.metric)
    table = Table("configuration", "seeds", f"{options.metric}: mean ± sd", "difference", f"p (< {LEVEL}: significant)")
    key, _, value = options.baseline.partition("=")
    known = {name for configuration in values for name, _ in configuration}
    if unknown := {key, options.within or key} - known:
        parser.error(f"the runs do not differ in {', '.join(unknown)}; they differ in {', '.join(sorted(known))}")
    for group in groups(values, options.within):
        baseline = next((each for each in group if dict(each).get(key) == value), None)
        if baseline is None:
            parser.error(f"no run of {dict(group[0])} has {options.baseline}")
        others = [each for each in group if each != baseline]
        found = {each: difference(values[each], values[baseline]) for each in others}
        corrected = dict(zip(others, holm([p for _, p in found.values()]), strict=True))
        for each in group:
            shown = (f"{found[each][0]:+.4f}", f"{corrected[each]:.3f}") if each in found else ("baseline", "")
            name = " ".join(f"{key}={value}" for key, value in each)
            table.add_row(name, str(len(values[each])), _spread(list(values[each].values())), *shown)
    Console(width=160).print(table)


def rows(folder: Path) -> list[dict[str, Any]]:
    """The completed runs in the folder, as `psrun report` has them."""
    command = [sys.executable, "-m", "psrun", "report", str(folder), "--json", "-", "--where", "status=completed"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def by_configuration(runs: Sequence[Mapping[str, Any]], metric: str) -> dict[Configuration, BySeed]:
    """The metric of each configuration by seed."""
    values: dict[Configuration, BySeed] = defaultdict(dict)
    for row in runs:
        keys = list(row)
        differing = keys[keys.index(_BETWEEN[0]) + 1 : keys.index(_BETWEEN[1])]
        configuration = tuple((key, str(row[key])) for key in differing if key != "seed" and row[key] is not None)
        values[configuration][row["seed"]] = row[metric]
    return values


def groups(values: Mapping[Configuration, BySeed], key: str | None) -> list[list[Configuration]]:
    """The configurations that are compared with each other."""
    by_value: dict[str | None, list[Configuration]] = defaultdict(list)
    for configuration in values:
        by_value[dict(configuration).get(key or "")].append(configuration)
    return list(by_value.values())


def difference(of: BySeed, baseline: BySeed) -> tuple[float, float]:
    """The mean difference over the common seeds, and its p value."""
    seeds = sorted(of.keys() & baseline.keys())
    pairs = [of[seed] for seed in seeds], [baseline[seed] for seed in seeds]
    return mean(pairs[0]) - mean(pairs[1]), float(stats.ttest_rel(*pairs).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values, corrected for their number."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f}"


if __name__ == "__main__":
    main()
