"""Quality and speed of the consistency modes beside a straggler: one learning rate, one worker that is slow.

    python benchmarks/consistency.py [--seeds N] [--slow SECONDS] [--only PATTERN ...] [--json FILE] [--write PAGE]

DLRM on generated clicks (`experiment=stragglers`), four workers, one pass over the examples. In each round every mode
trains once with the seed of the round, one after the other; who goes first changes. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import Goal, Summary, in_turns, is_chosen, run_python, show_goals, write_between
from rich.console import Console

MODES = {
    "sync": (),
    "sync, `backup_workers=1`": ("consistency.backup_workers=1",),
    "ssp, `staleness=4`": ("consistency.staleness=4",),
    "async": (),
    "gba": (),
    "gba, `tolerance=1`": ("consistency.tolerance=1",),
    "k_async, `gradients=2`": ("consistency.gradients=2",),
    "hybrid": (),
    "hybrid, `dense=sync`": ("consistency.dense=sync",),
}
GOALS = (Goal("gba", "sync", 2.4), Goal("hybrid", "async", 0.9))
# Modes whose quality is compared: the first is to be within the spread of seeds of the second.
COMPARED = (("gba", "sync"), ("gba, `tolerance=1`", "sync"), ("hybrid", "sync"), ("hybrid, `dense=sync`", "sync"))


@dataclass(frozen=True)
class Result:
    """What a run of a mode reached."""

    examples_per_s: float
    auc: float
    staleness: float
    dropped: int

    @classmethod
    def of(cls, result: dict[str, Any]) -> Result:
        dropped = sum(result["consistency"].get("updates_dropped", {}).values())
        return cls(result["examples_per_s"], result["metrics"]["val_auc"], result["staleness"]["mean"], dropped)


def trained(data: Path, mode: str, seed: int, slow_s: float, rate: float) -> Result:
    """Trains in a process of its own."""
    name, _, _ = mode.partition(",")
    with tempfile.TemporaryDirectory(prefix="psrun-consistency-") as folder:
        arguments = [
            "experiment=stragglers", f"consistency={name}", *MODES[mode], f"seed={seed}",
            f"cluster.slow_workers={{0: {slow_s}}}", f"optimizer.learning_rate={rate}",
            f"data.path={data}/train-*", f"data.eval_path={data}/eval.tsv", f"hydra.run.dir={folder}/run",
        ]  # fmt: skip
        run_python(["-m", "psrun", *arguments], Path(folder))
        return Result.of(json.loads((Path(folder) / "run" / "run.json").read_text(encoding="utf-8")))


def markdown(results: dict[str, list[Result]]) -> str:
    """The table of the documentation."""
    lines = [
        "| `consistency=` | examples/s | `val_auc` | staleness: mean | gradients dropped |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mode, rows in results.items():
        rates = Summary.of([row.examples_per_s for row in rows]).text(0)
        quality = Summary.of([row.auc for row in rows]).text(4)
        staleness = statistics.median(row.staleness for row in rows)
        dropped = statistics.median(row.dropped for row in rows)
        lines.append(f"| {mode} | {rates} | {quality} | {staleness:.2f} | {dropped:,.0f} |")
    return "\n".join(lines)


def show_quality(results: dict[str, list[Result]], console: Console) -> None:
    """Prints how far the median of a mode is from the values of another one."""
    for mode, other in COMPARED:
        if mode in results and other in results:
            found = statistics.median(row.auc for row in results[mode])
            spread = Summary.of([row.auc for row in results[other]])
            verdict = "below the spread" if found < spread.least else "within the spread, or above it"
            console.print(f"val_auc of {mode}: {found:.4f}, {verdict} of {other}: {spread.text(4)}", markup=False)


def main() -> None:
    options = _parsed()
    console = Console(highlight=False, width=120, soft_wrap=True)
    modes = [mode for mode in MODES if is_chosen(mode, options.only)]
    results: dict[str, list[Result]] = {mode: [] for mode in modes}
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="psrun-consistency-") as folder:
        data = Path(folder)
        sizes = ["--num-values", "100", "--num-examples", str(options.examples)]
        run_python(["-m", "psrun", "data", "synthesize", f"{data}/clicks", *sizes], data)
        for seed, turn in enumerate(in_turns(modes, options.seeds), start=1):
            rates: dict[str, float] = {}
            for mode in turn:
                result = trained(data / "clicks", mode, seed, options.slow, options.learning_rate)
                console.print(f"seed {seed}  {mode}: {result}", markup=False)
                results[mode].append(result)
                rates[mode] = result.examples_per_s
            rounds.append(rates)
    text = _setting_line(options) + "\n\n" + markdown(results)
    console.print(text, markup=False)
    goals = show_goals(GOALS, rounds, console)
    show_quality(results, console)
    if options.json:
        plain = {mode: [vars(row) for row in rows] for mode, rows in results.items()}
        options.json.write_text(json.dumps({"results": plain, "goals": goals}, indent=2) + "\n", encoding="utf-8")
    if options.write:
        write_between(options.write, "consistency", text)


def _setting_line(options: argparse.Namespace) -> str:
    return (
        f"Seeds: {options.seeds}; examples: {options.examples:,}; each step of one worker takes {options.slow:g} s "
        f"longer; learning rate: {options.learning_rate:g}:"
    )


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--slow", type=float, default=0.25, metavar="SECONDS", help="that each step of one worker takes longer"
    )
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only modes of such names")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    parser.add_argument("--write", type=Path, help="page that gets the table, between <!-- consistency --> and its end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
