"""mode=evaluate: the evaluation of a checkpoint of a run, which may still be going on, on a cluster in this process."""

from __future__ import annotations

from rich.console import Console

from psrun import program, strategy, trained
from psrun.checkpoint import manifest
from psrun.checkpoint.store import Store
from psrun.config import RunConfig
from psrun.evaluation import modes
from psrun.reporting.console import numbers, warner
from psrun.reporting.run_folder import RunFolder
from psrun.training import failures


def run(run_config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Evaluates, writes evaluations/STEP-MODE.json and says what was found.

    Raises:
      PsrunError: there is no such checkpoint, or it cannot be evaluated.
    """
    cluster = run_config.cluster
    strategy.prepare(cluster, None)
    source = program.load_source(run_config)
    program.start_afresh(run_config.seed)
    with failures.named(lambda: None):
        built = program.build(run_config, source, strategy.connect(cluster, run_config.partitioner))
        program.build_state(built)
        evaluator = modes.make(built)
        assert evaluator is not None
        held = trained.restore(built.network, run_config.restore, Store(folder.checkpoints), warner(console))
        found = evaluator.evaluate(held.step, lambda: None)
    path = found.keep(folder.path / "evaluations", manifest.digest(held.files))
    said = f"step {found.step} ({found.mode}, {found.examples_seen} examples)  {numbers(found.metrics)}"
    console.print(f"{said}  in {path}", highlight=False, soft_wrap=True)
