"""Successive halving beside the full sweep: winner, steps and wall time; and Optuna's pruner on the same runs.

    python benchmarks/search.py [--task embedding|dlrm ...] [--repetitions N] [--steps-per-epoch N] [--json FILE]

A repetition has its own seed. It runs all configurations to the end, and searches among them with halving, one after
the other, in turns of who goes first. Both train on rows in Criteo's layout. Optuna's SuccessiveHalvingPruner gets the
metrics of the full sweep, epoch by epoch, one trial after another in a random order, until it has spent the steps of
psrun's search; what its winner is worth is the median over so many orders.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from measured import Summary
from rich.console import Console
from rich.table import Table

EPOCHS = 9
FACTOR = 3
ORDERS = 101
COMMON = ("cluster=none", "sweep.metric=val_loss", "sweep.mode=min", f"trainer.epochs={EPOCHS}",
          "trainer.steps_per_execution=20")  # fmt: skip
TASKS = {
    "embedding": (  # 27 configurations
        "model=embedding", "data=criteo",
        "optimizer=sparse_adagrad,lazy_adam,sparse_sgd", "optimizer.learning_rate=0.003,0.03,0.3",
        "model.embedding_dim=4,20,80",
    ),
    "dlrm": (  # 16
        "model=dlrm", "optimizer=lazy_adam,rowwise_adagrad",
        "optimizer.learning_rate=0.001,0.01,0.03,0.1", "model.embedding_dim=8,32",
    ),
}  # fmt: skip
DATA = ("data.num_buckets=20000", "data.global_batch_size=256")
NUM_EXAMPLES = 200_000


@dataclass(frozen=True)
class Sweep:
    """A sweep that is over.

    Attributes:
      curves: of each job, by its overrides: the metric after each epoch.
      winner: the overrides of the best job that was trained to the end.
    """

    steps: int
    wall_s: float
    curves: Mapping[str, Sequence[float]]

    @property
    def winner(self) -> str:
        whole = {name: curve[-1] for name, curve in self.curves.items() if len(curve) == EPOCHS}
        return min(whole, key=lambda name: whole[name])


@dataclass(frozen=True)
class Repetition:
    """One repetition.

    Attributes:
      regret: how much worse than the best of the full sweep the winner of the search is, as a share of it.
      optuna_regret: the same of Optuna's pruner, the median over orders.
    """

    is_same_winner: bool
    steps: float
    wall: float
    regret: float
    optuna_regret: float
    optuna_same_winner: float


def swept(task: str, more: Sequence[str], folder: Path, seed: int) -> Sweep:
    """Runs a sweep in a process of its own, and removes its folder: it has gigabytes of checkpoints."""
    command = [sys.executable, "-m", "psrun", "-m", *COMMON, *TASKS[task], f"seed={seed}", *more]
    began_s = time.monotonic()
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        subprocess.run([*command, f"hydra.sweep.dir={folder}"], check=True, stdout=log, stderr=log, cwd=folder.parent)
    wall_s = time.monotonic() - began_s
    curves = {}
    steps = 0
    for job in json.loads((folder / "sweep.json").read_text())["jobs"]:
        run = folder / job["folder"]
        steps += json.loads((run / "run.json").read_text())["steps"]["applied"]
        events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        own = [
            each for each in job["overrides"] if not each.startswith(("sweep.", "trainer.", "data.", "seed", "cluster"))
        ]
        curves[" ".join(sorted(own))] = [each["metrics"]["loss"] for each in events if each["event"] == "evaluation"]
    shutil.rmtree(folder)
    return Sweep(steps, wall_s, curves)


def by_optuna(full: Sweep, budget: float, order: int) -> str | None:
    """The winner of Optuna's pruner on the curves of a full sweep, with so many epochs; None without one."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    study = optuna.create_study(direction="minimize", pruner=pruner)
    names = [*full.curves]
    random.Random(order).shuffle(names)
    spent = 0
    done: dict[str, float] = {}
    for name in names:
        trial = study.ask()
        curve = full.curves[name]
        for epoch, value in enumerate(curve, 1):
            if spent >= budget:
                return min(done, key=lambda each: done[each], default=None)
            spent += 1
            trial.report(value, epoch)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, curve[-1])
            done[name] = curve[-1]
    return min(done, key=lambda each: done[each], default=None)


def repeated(task: str, seed: int, common: Sequence[str], folder: Path) -> Repetition:
    searched = ["sweep.search=grid", f"sweep.halving.factor={FACTOR}"]
    sides = {"full": list(common), "halving": [*common, *searched]}
    names = list(sides) if seed % 2 else list(reversed(sides))
    results = {name: swept(task, sides[name], folder / f"{task}-{seed}-{name}", seed) for name in names}
    full = results["full"]
    halving = results["halving"]
    best = full.curves[full.winner][-1]

    def regret(name: str | None) -> float:
        return 1.0 if name is None else full.curves[name][-1] / best - 1

    epochs = halving.steps / full.steps * EPOCHS * len(full.curves)
    theirs = [by_optuna(full, epochs, order) for order in range(ORDERS)]
    return Repetition(
        is_same_winner=halving.winner == full.winner,
        steps=halving.steps / full.steps,
        wall=halving.wall_s / full.wall_s,
        regret=regret(halving.winner),
        optuna_regret=statistics.median(map(regret, theirs)),
        optuna_same_winner=theirs.count(full.winner) / ORDERS,
    )


def show(task: str, repetitions: Sequence[Repetition], console: Console) -> None:
    table = Table("", task, box=None, pad_edge=False)
    same = sum(each.is_same_winner for each in repetitions)
    table.add_row("same winner as the full sweep", f"{same} of {len(repetitions)}")
    for title, name in (
        ("steps, share of the full sweep", "steps"),
        ("wall time, share of the full sweep", "wall"),
        ("winner worse than the best by", "regret"),
        ("Optuna's pruner, same budget: worse by", "optuna_regret"),
        ("Optuna's pruner: share of orders with the same winner", "optuna_same_winner"),
    ):
        table.add_row(title, Summary.of([getattr(each, name) for each in repetitions]).text(3))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=150)
    parser.add_argument("--max-parallel", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    console = Console()
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="psrun-search-") as root:
        folder = Path(root)
        size = ["--num-values", "100", "--num-examples", str(NUM_EXAMPLES)]
        command = [sys.executable, "-m", "psrun", "data", "synthesize", str(folder / "clicks"), *size]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        files = [f"data.path='{folder}/clicks/train-*'", f"data.eval_path={folder}/clicks/eval.tsv"]
        sizes = [f"trainer.steps_per_epoch={options.steps_per_epoch}", f"sweep.max_parallel={options.max_parallel}"]
        common = [*DATA, *files, *sizes]
        for task in options.task:
            repetitions = []
            for seed in range(1, options.repetitions + 1):
                repetitions.append(repeated(task, seed, common, folder))
                console.print(f"{task} {seed}: {repetitions[-1]}", soft_wrap=True)
            show(task, repetitions, console)
            results[task] = [asdict(each) for each in repetitions]
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
