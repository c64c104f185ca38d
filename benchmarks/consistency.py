"""What a slow worker costs in each consistency mode.

    python benchmarks/consistency.py [--repetitions N] [--steps N] [--step-s SECONDS]

Four workers in one process each wait in every step, so that the processor does not limit them; one waits longer.
Each repetition runs all modes, one after the other. `in order` is `bounded_delay` with the closures in flight as the
bound: closures are waited for in the order in which they were scheduled.

The goals: a worker 10 x slower costs synchronous training with one backup worker at most 1.2 x of the time per update;
with a worker 30 x slower, `async` makes at least three times the steps of waiting in order.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measured import Summary, run_python
from rich.console import Console
from rich.table import Table

NUM_WORKERS = 4
MOST_BACKUP_RATIO, LEAST_ASYNC_RATIO = 1.2, 3.0


@dataclass(frozen=True)
class Way:
    """A mode, and how many times slower than the others worker 0 is."""

    name: str
    slower: int
    consistency: str
    options: tuple[str, ...] = ()

    def steps_per_s(self, folder: Path, num_steps: int, step_s: float) -> float:
        """The rate of one run of the psrun command."""
        delays = {worker: step_s * (self.slower if worker == 0 else 1) for worker in range(NUM_WORKERS)}
        slow = ", ".join(f"{worker}: {seconds:g}" for worker, seconds in delays.items())
        command = [
            "-m", "psrun", "cluster=inprocess", f"cluster.num_workers={NUM_WORKERS}", "cluster.num_ps=1",
            f"cluster.slow_workers={{{slow}}}", "model=embedding", "data.num_train_examples=2000",
            "data.global_batch_size=16", "evaluation=none", "checkpoint=none", "tracker=none", "trainer.epochs=1",
            f"trainer.steps_per_epoch={num_steps}", "trainer.steps_per_execution=1",
            f"consistency={self.consistency}", *(f"consistency.{option}" for option in self.options),
            f"hydra.run.dir={folder / 'run'}",
        ]  # fmt: skip
        run_python(command, folder)
        result = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
        assert result["steps"]["applied"] == num_steps, result["steps"]
        return result["steps_per_s"]


WAYS = {
    "sync, 1 backup": Way("sync, 1 backup", 1, "sync", ("backup_workers=1",)),
    "sync, 1 backup, 10 x": Way("sync, 1 backup", 10, "sync", ("backup_workers=1",)),
    "sync, 10 x": Way("sync", 10, "sync"),
    "async, 30 x": Way("async", 30, "async"),
    "in order, 30 x": Way("in order", 30, "bounded_delay", (f"max_delay={4 * NUM_WORKERS}",)),
    "ssp 4, 30 x": Way("ssp 4", 30, "ssp", ("staleness=4",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of synchronous modes; others make twice as many")
    parser.add_argument("--step-s", type=float, default=0.03, help="seconds that each step of a worker waits")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.repetitions):
        for name, way in WAYS.items():
            num_steps = options.steps * (1 if way.consistency == "sync" else 2)
            with tempfile.TemporaryDirectory() as folder:
                rates[name].append(way.steps_per_s(Path(folder), num_steps, options.step_s))
    console, table = Console(), Table("way", "slow worker", "steps per s: median (least to greatest)")
    for name, way in WAYS.items():
        table.add_row(way.name, f"{way.slower} x", str(Summary.of(rates[name])))
    console.print(table)
    for above, below, goal in (
        ("sync, 1 backup", "sync, 1 backup, 10 x", f"at most {MOST_BACKUP_RATIO:g}"),
        ("async, 30 x", "in order, 30 x", f"at least {LEAST_ASYNC_RATIO:g}"),
    ):
        ratios = [first / second for first, second in zip(rates[above], rates[below])]
        console.print(f"{above} / {below}: {Summary.of(ratios)}, goal {goal}", highlight=False)


if __name__ == "__main__":
    main()
