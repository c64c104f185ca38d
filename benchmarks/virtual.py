"""Predictions of virtual clusters against real ones: steps per second, staleness, and quality.

    python benchmarks/virtual.py [--recorded N ...] [--workers N ...] [--only PATTERN ...] [--rounds N] [--json FILE]
                                 [--write PAGE]

In each mode, real clusters of few workers are recorded. From what is measured there, and the seconds that steps are to
sleep, `cluster=virtual` predicts clusters of more workers, which are then run: servers inside one process, whose steps
mostly sleep, so that a machine of two cores can have eight of them. All workers are equally fast, or one takes five
times as long. In a round, each prediction and its real run have the same seed, and follow each other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import Summary, is_chosen, run_python, write_between
from rich.console import Console

MODES = {
    "async": (),
    "bounded_delay, `max_delay=4`": ("consistency.max_delay=4",),
    "ssp, `staleness=2`": ("consistency.staleness=2",),
    "sync": (),
    "sync, `backup_workers=1`": ("consistency.backup_workers=1",),
    "gba": (),
    "k_async, `gradients=2`": ("consistency.gradients=2",),
    "hybrid": (),
}
OF_ANY_CLUSTER = ("consistency.max_delay=4", "consistency.staleness=2")
STEP_S = 0.16  # that each step sleeps
SLOW_S = 4 * STEP_S  # that each step of the slow worker sleeps in addition
BATCH_SIZE = 64


@dataclass(frozen=True)
class Found:
    """What a run found, or predicted.

    Attributes:
      histogram: shares of updates by staleness.
    """

    steps_per_s: float
    staleness: float
    histogram: Mapping[int, float]
    auc: float

    @classmethod
    def of(cls, result: dict[str, Any]) -> Found:
        rates = result.get("virtual") or result
        staleness = result["staleness"]
        total = sum(count for _, count in staleness["histogram"])
        histogram = {int(age): count / total for age, count in staleness["histogram"]}
        return cls(rates["steps_per_s"], staleness["mean"], histogram, result["metrics"]["val_auc"])


def distance(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """The greatest difference of two cumulated histograms (Kolmogorov-Smirnov)."""
    greatest = 0.0
    difference = 0.0
    for age in sorted({*first, *second}):
        difference += first.get(age, 0.0) - second.get(age, 0.0)
        greatest = max(greatest, abs(difference))
    return greatest


class Trainings:
    """Trainings of one experiment in a folder."""

    def __init__(self, folder: Path, examples: int) -> None:
        self._folder = folder
        self._number = 0
        sizes = ["--num-values", "100", "--num-examples", str(examples)]
        run_python(["-m", "psrun", "data", "synthesize", f"{folder}/clicks", *sizes], folder)

    def run(self, *arguments: str) -> Path:
        """The run folder of a training."""
        self._number += 1
        run = self._folder / f"run{self._number}"
        common = [
            "experiment=stragglers", "partitioner=none", f"data.path={self._folder}/clicks/train-*",
            f"data.eval_path={self._folder}/clicks/eval.tsv", f"data.global_batch_size={BATCH_SIZE}",
            f"hydra.run.dir={run}",
        ]  # fmt: skip
        run_python(["-m", "psrun", *common, *arguments], self._folder)
        return run


def result_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))


def sleeping(workers: int, *, has_slow: bool) -> str:
    """The seconds that the steps of real workers sleep, as the key has them."""
    seconds = dict.fromkeys(range(workers), STEP_S)
    if has_slow:
        seconds[0] += SLOW_S
    return str(seconds)


def keys_of(mode: str, workers: int, seed: int) -> list[str]:
    """The arguments of a mode on a cluster; gradients of an update are for clusters of four workers at least."""
    name, _, _ = mode.partition(",")
    options = [option for option in MODES[mode] if workers >= 4 or option in OF_ANY_CLUSTER]
    return [f"consistency={name}", *options, f"cluster.num_workers={workers}", f"seed={seed}"]


def recorded(trainings: Trainings, mode: str, workers: int) -> Path:
    """The folder of a run on few real workers, whose steps do not sleep."""
    return trainings.run(*keys_of(mode, workers, 1), "cluster.slow_workers=null")


def predicted(trainings: Trainings, like: Path, mode: str, workers: int, seed: int, *, has_slow: bool) -> Found:
    """What is predicted from a recorded run and the seconds that steps sleep."""
    slow = f"cluster.slow_workers={sleeping(workers, has_slow=has_slow)}"
    run = trainings.run("cluster=virtual", *keys_of(mode, workers, seed), slow, f"cluster.like={like}")
    return Found.of(result_of(run))


def measured(trainings: Trainings, mode: str, workers: int, seed: int, *, has_slow: bool) -> Found:
    """What a real cluster does."""
    slow = f"cluster.slow_workers={sleeping(workers, has_slow=has_slow)}"
    return Found.of(result_of(trainings.run(*keys_of(mode, workers, seed), slow)))


def row(mode: str, workers: int, has_slow: bool, num_recorded: int, pairs: list[list[Found]]) -> str:
    """A row of the documentation's table."""
    rates = Summary.of([predicted.steps_per_s / real.steps_per_s for predicted, real in pairs]).text(2)
    real_rate = Summary.of([real.steps_per_s for _, real in pairs]).text(1)
    ages = Summary.of([predicted.staleness - real.staleness for predicted, real in pairs]).text(2)
    real_age = Summary.of([real.staleness for _, real in pairs]).text(2)
    distances = Summary.of([distance(predicted.histogram, real.histogram) for predicted, real in pairs]).text(2)
    quality = Summary.of([predicted.auc - real.auc for predicted, real in pairs]).text(4)
    slow = "one" if has_slow else "none"
    cells = [mode, workers, slow, num_recorded, real_rate, rates, real_age, ages, distances, quality]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


HEAD = """\
| `consistency=` | workers | slow | recorded | steps/s | predicted / measured | staleness: mean | \
predicted - measured | distance | `val_auc`: predicted - measured |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def main() -> None:
    options = _parsed()
    console = Console(highlight=False, width=160, soft_wrap=True)
    cases = []
    for mode in MODES:
        if is_chosen(mode, options.only):
            for workers in options.workers:
                cases += [(mode, workers, False), (mode, workers, True)]
    pairs: dict[tuple[str, int, bool, int], list[list[Found]]] = {}
    with tempfile.TemporaryDirectory(prefix="psrun-virtual-") as name:
        trainings = Trainings(Path(name), options.examples)
        recordings = {}
        for mode, few in itertools.product(dict.fromkeys(mode for mode, _, _ in cases), options.recorded):
            recordings[mode, few] = recorded(trainings, mode, few)
        for seed, (mode, workers, has_slow) in itertools.product(range(1, options.rounds + 1), cases):
            real = measured(trainings, mode, workers, seed, has_slow=has_slow)
            for few in options.recorded:
                like = recordings[mode, few]
                found = predicted(trainings, like, mode, workers, seed, has_slow=has_slow)
                case = mode, workers, has_slow, few
                pairs.setdefault(case, []).append([found, real])
                console.print(row(*case, pairs[case][-1:]), markup=False)
    text = "\n".join([f"Rounds: {options.rounds}; examples: {options.examples:,}:", "", HEAD])
    for case, found_pairs in pairs.items():
        text += "\n" + row(*case, found_pairs)
    console.print(text, markup=False)
    if options.json:
        plain = [[*case, [[vars(found) for found in pair] for pair in each]] for case, each in pairs.items()]
        options.json.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    if options.write:
        write_between(options.write, "virtual", text)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=int, nargs="+", default=(1,), help="workers of the recorded clusters")
    parser.add_argument("--workers", type=int, nargs="+", default=(4, 8))
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only modes of such names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=16_384)
    parser.add_argument("--json", type=Path, help="file for every measurement")
    parser.add_argument("--write", type=Path, help="page that gets the table, between <!-- virtual --> and its end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
