"""Differences between the runs of a sweep and a baseline among them, paired by seed, and whether they are significant.

    python benchmarks/differences.py FOLDER --baseline KEY=VALUE [--metric val_auc] [--within KEY]

A configuration is the keys that differ between the runs, without the seed. Each is compared with the baseline by the
test of `psrun report --against`, corrected for the number of comparisons. With `--within`, only runs with the same
value of that key are compared. Needs `psrun[report]`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

from psrun.runs.report import comparison, rows, runs

Configuration = tuple[tuple[str, str], ...]
BySeed = dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--baseline", required=True, metavar="KEY=VALUE", help="of the runs to compare with")
    parser.add_argument("--metric", default="val_auc")
    parser.add_argument("--within", metavar="KEY", help="compare runs with the same value of this key")
    options = parser.parse_args()
    values = by_configuration(options.folder, options.metric)
    level = comparison.LEVEL
    table = Table("configuration", "seeds", f"{options.metric}: mean ± sd", "difference", f"p (< {level}: significant)")
    key, _, value = options.baseline.partition("=")
    known = {name for configuration in values for name, _ in configuration}
    if unknown := {key, options.within or key} - known:
        parser.error(f"the runs do not differ in {', '.join(unknown)}; they differ in {', '.join(sorted(known))}")
    for group in groups(values, options.within):
        baseline = next((each for each in group if dict(each).get(key) == value), None)
        if baseline is None:
            parser.error(f"no run of {dict(group[0])} has {options.baseline}")
        others = [each for each in group if each != baseline]
        found = comparison.corrected([comparison.paired(values[each], values[baseline]) for each in others])
        shown = {each: _shown(difference) for each, difference in zip(others, found, strict=True)}
        for each in group:
            name = " ".join(f"{key}={value}" for key, value in each)
            cells = shown.get(each, ("baseline", ""))
            table.add_row(name, str(len(values[each])), _spread(list(values[each].values())), *cells)
    Console(width=160).print(table)


def by_configuration(folder: Path, metric: str) -> dict[Configuration, BySeed]:
    """The metric of the completed runs in the folder, by configuration and seed."""
    completed = [run for run in runs.find([folder]) if run.state.outcome == "completed"]
    differing = [key for key in rows.axes(completed) if key != rows.SEED]
    values: dict[Configuration, BySeed] = defaultdict(dict)
    for run in completed:
        row = rows.row(run)
        configuration = tuple((key, str(row[key])) for key in differing if row.get(key) is not None)
        values[configuration][row[rows.SEED]] = row[metric]
    return values


def groups(values: Mapping[Configuration, BySeed], key: str | None) -> list[list[Configuration]]:
    """The configurations that are compared with each other."""
    by_value: dict[str | None, list[Configuration]] = defaultdict(list)
    for configuration in values:
        by_value[dict(configuration).get(key or "")].append(configuration)
    return list(by_value.values())


def _shown(found: comparison.MeanDifference | None) -> tuple[str, str]:
    if found is None:
        return "no common seed", ""
    return f"{found.difference:+.4f}", found.reason if found.adjusted is None else f"{found.adjusted:.3f}"


def _spread(values: list[float]) -> str:
    return f"{mean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f}"


if __name__ == "__main__":
    main()
