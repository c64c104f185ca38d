"""From every layout to every other: does a run resume with each variable, slot and counter equal, bit by bit?

    python tests/harness/layouts.py [--optimizers adagrad,adam,sgd,lazy_adam] [--trainers custom_loop,fit]

Trains a few steps in each layout with each trainer and saves, then builds the same program in each layout for each
trainer and restores, all in this process with servers that are threads of it. What is compared is what the variables
held when they were saved with what they hold once they are restored. Prints a table in Markdown; a cell counts pairs
of trainers and optimizers. Ends with 1 where anything differs.
"""

# ruff: noqa: E402 - TensorFlow may be imported only once its environment is set.
from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from psrun import process
from psrun.data import loading

process.prepare()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))
from support import SMALL, run_config

from psrun.checkpoint.checkpoints import Checkpoints, checkpoints_of
from psrun.checkpoint.storage import Position, Store
from psrun.cluster import placement, strategy
from psrun.config import choices
from psrun.process import Stop
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.training import custom_loop, fit
from psrun.training.loop import TrainingRun


@dataclass(frozen=True)
class Layout:
    """A cluster (of `num_ps` parameter servers in this process; 0: none) and a partitioner."""

    name: str
    overrides: tuple[str, ...]
    num_ps: int = 0


LAYOUTS = (
    Layout("not distributed", ("cluster=none",)),
    Layout("mirrored, 2 replicas", ("cluster=mirrored", "cluster.num_replicas=2")),
    Layout("1 ps, whole", ("partitioner=none",), 1),
    Layout("2 ps, 2 shards", ("partitioner=fixed_shards", "partitioner.num_shards=2"), 2),
    Layout("3 ps, 3 shards", ("partitioner=fixed_shards", "partitioner.num_shards=3"), 3),
    Layout("2 ps, min_size", ("partitioner=min_size", "partitioner.min_shard_bytes=100"), 2),
    Layout("3 ps, max_size", ("partitioner=max_size", "partitioner.max_shard_bytes=200"), 3),
)
OPTIMIZERS = {
    "adagrad": ("optimizer=adagrad",),
    "adam": ("optimizer=adam",),
    "sgd": ("optimizer=sgd", "+optimizer.momentum=0.9"),
    **{
        name: (f"optimizer={name}",)
        for name in ("sparse_adagrad", "rowwise_adagrad", "lazy_adam", "sparse_sgd", "ftrl")
    },
}
TRAINERS = {"custom_loop": custom_loop.trainer, "fit": fit.trainer}  # an own loop has no state besides
STEPS = 7
Values = dict[str, bytes]


@dataclass
class Bench:
    """The objects that all programs of this process share."""

    root: Path
    clusters: dict[int, object] = field(default_factory=dict)

    def build(self, layout: Layout, trainer: str, optimizer: str) -> Program:
        run = run_config(
            f"trainer={trainer}", *OPTIMIZERS[optimizer], *layout.overrides, *SMALL["features"], "evaluation=none",
            "trainer.epochs=1", f"trainer.steps_per_epoch={STEPS}", "trainer.steps_per_execution=3",
        )  # fmt: skip
        start_afresh(run.seed)
        if layout.num_ps:
            distribution = strategy.parameter_servers(self._cluster(layout.num_ps), run.partitioner)
        else:
            distribution = strategy.connect(run.cluster, run.partitioner)
        built = build_program(run, loading.load_source(run), distribution)
        build_state(built)
        return built

    def _cluster(self, num_ps: int) -> object:
        if num_ps not in self.clusters:
            self.clusters[num_ps] = strategy.start_in_process(num_workers=2, num_ps=num_ps)
        return self.clusters[num_ps]

    def checkpoints(self, built: Program, store: Store) -> Checkpoints:
        keep = built.config.checkpoint
        assert isinstance(keep, choices.EpochCheckpoints)
        return checkpoints_of(built, store, keep, print)

    def store(self, *named: str) -> Store:
        return Store(self.root / "-".join(named).replace(" ", "_"))

    def train(self, built: Program, trainer: str) -> None:
        folder = RunFolder(Path(tempfile.mkdtemp(dir=self.root)))
        reporter = Reporter([], started_s=time.time())
        session = TrainingRun(built, reporter, folder=folder, start=Position(), stop=Stop())
        session.monitor.start()
        TRAINERS[trainer](built.config).train(built, session)
        session.monitor.stop()


def held(built: Program) -> Values:
    """The bytes of all variables, whole, by kind and name."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for kind, variables in (("model", built.network.variables), ("optimizer", built.optimizer.variables())):
        for variable in variables:
            for shard in getattr(variable, "variables", None) or [variable]:
                name, number = placement.split_name(shard.name)
                parts.setdefault(f"{kind} {name}", {})[number] = np.asarray(shard.read_value())
    return {
        name: (np.concatenate([shards[n] for n in sorted(shards)]) if shards[0].shape else shards[0]).tobytes()
        for name, shards in parts.items()
    }


def scramble(built: Program) -> None:
    """Fills every variable with ones, so that one that is not restored cannot pass for one that is."""
    for variable in (*built.network.variables, *built.optimizer.variables()):
        for shard in getattr(variable, "variables", None) or [variable]:
            shard.assign(np.ones(shard.shape, shard.dtype.as_numpy_dtype))


def differing(one: Values, other: Values) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    arguments = parser.parse_args()
    optimizers, trainers = arguments.optimizers.split(","), arguments.trainers.split(",")
    console = Console(highlight=False, soft_wrap=True)
    for cluster in ("cluster=inprocess", "cluster=mirrored"):
        strategy.prepare(run_config(cluster).cluster, None)
    strategy.connect(run_config("cluster=mirrored", "cluster.num_replicas=2").cluster, choices.NoPartitioner("none"))
    cases = list(itertools.product(LAYOUTS, trainers, optimizers))
    saved: dict[tuple[str, str, str], Values] = {}
    wrong: dict[tuple[str, str], list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="psrun-layouts-") as root:
        bench = Bench(Path(root))
        for layout, trainer, optimizer in cases:
            built = bench.build(layout, trainer, optimizer)
            fresh = held(built)
            bench.train(built, trainer)
            values = saved[layout.name, trainer, optimizer] = held(built)
            assert len(differing(fresh, values)) == len(fresh), "training left something as it was"
            bench.checkpoints(built, bench.store(layout.name, trainer, optimizer)).take(
                STEPS, Position(1, 0), copies=True
            )()
        for layout, trainer, optimizer in cases:
            checkpoints = bench.checkpoints(built := bench.build(layout, trainer, optimizer), bench.store("none"))
            for (source, by, of), values in saved.items():
                if of == optimizer:
                    scramble(built)
                    checkpoints.restore(bench.store(source, by, of))
                    differences = wrong.setdefault((source, layout.name), [])
                    differences += [f"{by} to {trainer}, {of}: {name}" for name in differing(values, held(built))]
    pairs = len(trainers) ** 2 * len(optimizers)
    console.print("| from \\ to | " + " | ".join(layout.name for layout in LAYOUTS) + " |")
    console.print("| --- |" + " --- |" * len(LAYOUTS))
    for source in LAYOUTS:
        cells = [wrong[source.name, target.name] for target in LAYOUTS]
        shown = [f"{len(cell)} differ" if cell else f"equal ({pairs})" for cell in cells]
        console.print(f"| {source.name} | " + " | ".join(shown) + " |")
    differ = [
        f"{source} to {target}: {what}" for (source, target), differences in wrong.items() for what in differences
    ]
    for line in differ[:20]:
        console.print(line)
    process.leave(1 if differ else 0)


if __name__ == "__main__":
    main()
