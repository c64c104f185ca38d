"""How far runs of `experiment=reproducibility` differ: with the same seed, and with other seeds.

    python benchmarks/reproducibility.py FOLDER [--metric val_auc] [--plot docs/img/experiments/reproducibility.png]

The header of experiments/reproducibility.yaml has the commands of the sweeps, each in a folder named like its mode.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table

MODES = ("none", "sync", "ssp", "async")
SEED = 1  # of the repetitions
Values = Mapping[tuple[str, str], Mapping[int, Sequence[float]]]  # by mode and model: by seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metric", default="val_auc")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = values(options.folder, options.metric)
    console = Console(width=160)
    console.print(_table(found, options.metric))
    if options.plot:
        _draw(found, options.metric, options.plot)


def values(folder: Path, metric: str) -> Values:
    """The metric of all completed runs."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(folder.glob("*/*/run.json"), key=lambda each: int(each.parent.name)):
        result = json.loads(file.read_text(encoding="utf-8"))
        chosen = dict(each.split("=") for each in result["overrides"])
        if result["status"] == "completed":
            found[file.parts[-3], chosen["model"]][int(chosen["seed"])].append(result["metrics"][metric])
    return found


def same_seed(by_seed: Mapping[int, Sequence[float]]) -> Sequence[float]:
    return by_seed[SEED]


def other_seeds(by_seed: Mapping[int, Sequence[float]]) -> list[float]:
    """One value of each seed."""
    return [values[0] for _, values in sorted(by_seed.items())]


def _table(found: Values, metric: str) -> Table:
    table = Table(
        "mode", "model", "runs with one seed", f"{metric}: sd, largest difference", "seeds", "mean ± sd", "ratio"
    )
    for mode in MODES:
        for (its_mode, model), by_seed in found.items():
            same = same_seed(by_seed)
            others = other_seeds(by_seed)
            if its_mode != mode or min(len(same), len(others)) < 2:
                continue
            spread = f"{stdev(same):.5f}, {max(same) - min(same):.5f}"
            over = f"{mean(others):.4f} ± {stdev(others):.5f}"
            row = (str(len(same)), spread, str(len(others)), over, f"{stdev(same) / stdev(others):.2f}")
            table.add_row(mode, model, *row)
    return table


def _draw(found: Values, metric: str, file: Path) -> None:
    from matplotlib.figure import Figure  # only needed for --plot

    models = list(dict.fromkeys(model for _, model in found))
    figure = Figure(figsize=(11, 3.6))
    axes = figure.subplots(1, len(models))
    for axis, model in zip(axes, models):
        for place, mode in enumerate(MODES):
            by_seed = found.get((mode, model))
            if by_seed is None:
                continue
            for shift, chosen, colour in (
                (-0.15, same_seed(by_seed), "#1b6ca8"),
                (0.15, other_seeds(by_seed), "#c8553d"),
            ):
                axis.scatter([place + shift] * len(chosen), chosen, s=22, alpha=0.65, color=colour, linewidths=0)
        axis.set_title(model)
        axis.set_xticks(range(len(MODES)), ["one\nprocess", *MODES[1:]])
        axis.set_xlim(-0.5, len(MODES) - 0.5)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel(metric)
    for colour, label in (("#1b6ca8", "the same seed, repeated"), ("#c8553d", "seeds 1 to 10")):
        axes[0].scatter([], [], s=22, color=colour, label=label)
    figure.legend(loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
