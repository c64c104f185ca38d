"""AUC after equal steps of psrun's optimizers beside Keras' dense ones, on late flights and on generated clicks; and of
tables in stacks beside tables one by one, on late flights.

    python benchmarks/quality.py [--repetitions N] [--data NAME ...] [--json FILE]

Each round runs everything once with one seed, 2 workers and 2 parameter servers, in fresh processes. It reports
the difference within a round. The goal: its median is at most 0.002 to either side.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from measured import Summary, run_python
from rich.console import Console
from rich.table import Table
from ways import CONF

MOST = 0.002
DATA = {
    "flights": ("experiment=flights",),
    "clicks": (
        "model=clicks", "data.rows=20000", "data.num_examples=262144", "data.num_eval_examples=65536",
        "evaluation=direct", "cluster=inprocess", "partitioner=min_size", "trainer=custom_loop", "trainer.epochs=3",
        "trainer.steps_per_epoch=256",
    ),
}  # fmt: skip
# Where an experiment chooses its optimizer and its learning rate, another optimizer needs its own rate.
DENSE = {"adagrad": ("optimizer=adagrad",), "adam": ("optimizer=adam", "optimizer.learning_rate=0.001")}
SPARSE = {
    "sparse_adagrad": ("adagrad", ("optimizer=sparse_adagrad",)),
    "rowwise_adagrad": ("adagrad", ("optimizer=rowwise_adagrad",)),
    "lazy_adam": ("adam", ("optimizer=lazy_adam", "optimizer.learning_rate=0.001")),
}
_ALONE = "tables one by one"
STACKS = {"stacks": (_ALONE, ("optimizer=sparse_adagrad", "model.stack=true"))}
_Aucs = dict[str, float]  # of one round, by name


def bases(data: str) -> Mapping[str, tuple[str, ...]]:
    """The baselines: overrides by name."""
    return {**DENSE, _ALONE: ("optimizer=sparse_adagrad", "model.stack=false")} if data == "flights" else DENSE


def compared(data: str) -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """By name, the baseline of each, and its overrides."""
    return {**SPARSE, **STACKS} if data == "flights" else SPARSE


def auc(data: str, overrides: tuple[str, ...], seed: int) -> float:
    """Of the evaluation examples, after a run."""
    with tempfile.TemporaryDirectory(prefix="psrun-quality-") as folder:
        command = ["-m", "psrun", "--config-dir", str(CONF), *DATA[data], *overrides, f"seed={seed}", "checkpoint=none"]
        run_python([*command, f"hydra.run.dir={folder}/run"], Path(folder))
        result = json.loads((Path(folder) / "run" / "run.json").read_text(encoding="utf-8"))
        return result["metrics"]["val_auc"]


def measure(data: str, repetitions: int, console: Console) -> list[_Aucs]:
    ways = {**bases(data), **{name: overrides for name, (_, overrides) in compared(data).items()}}
    rounds = []
    for seed in range(1, repetitions + 1):
        rounds.append({name: auc(data, overrides, seed) for name, overrides in ways.items()})
        console.print(f"{data}, seed {seed}: " + ", ".join(f"{name} {value:.4f}" for name, value in rounds[-1].items()))
    return rounds


def show(data: str, rounds: list[_Aucs], console: Console) -> dict[str, object]:
    """Prints what was found; returns it as values that JSON knows."""
    columns = (data, "AUC: median (least to most)", "difference within a round", f"goal: at most {MOST} to either side")
    table, by_name = Table(*columns, box=None, pad_edge=False), {}
    for name in bases(data):
        table.add_row(name, Summary.of([each[name] for each in rounds]).text(4))
    for name, (base, _) in compared(data).items():
        difference = Summary.of([each[name] - each[base] for each in rounds])
        verdict = "met" if abs(difference.median) <= MOST else "missed"
        own = Summary.of([each[name] for each in rounds])
        table.add_row(name, own.text(4), f"to {base}: {difference.text(4)}", verdict)
        by_name[name] = {"auc": asdict(own), "difference": asdict(difference), "beside": base, "verdict": verdict}
    console.print(table)
    return {"rounds": rounds, "compared": by_name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3, help="rounds, and seeds")
    parser.add_argument("--data", choices=DATA, action="append", help="only this one (default: both)")
    parser.add_argument("--json", type=Path, help="file for every measurement and the medians")
    options = parser.parse_args()
    console = Console(highlight=False, width=120)
    record = {}
    for data in options.data or DATA:
        record[data] = show(data, measure(data, options.repetitions, console), console)
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
