"""mode=evaluate: the evaluation of a checkpoint of a run, which may still be going on, on any cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from psrun import program, strategy, trained
from psrun.checkpoint import manifest
from psrun.checkpoint.store import Store
from psrun.cluster.topology import Topology
from psrun.config import RunConfig
from psrun.data import opening
from psrun.errors import PsrunError
from psrun.evaluation import modes
from psrun.evaluation.meters import Evaluation
from psrun.reporting.events import Reporter, Sink
from psrun.reporting.run_folder import RunFolder
from psrun.roles.chief import Chief


def run(
    run_config: RunConfig,
    folder: RunFolder,
    console: Sink,
    *,
    started_s: float,
    topology: Topology | None = None,
    give_up: Callable[[PsrunError], None] | None = None,
) -> None:
    """Evaluates, writes evaluations/STEP-MODE.json in the run's folder and says what was found.

    Args:
      folder: of the run; or, on a cluster of several processes, one of its own within that.
      topology, give_up: as of `Chief`.

    Raises:
      PsrunError: there is no such checkpoint, or it cannot be evaluated.
    """
    assert run_config.resume is not None
    whole, alone = RunFolder(Path(run_config.resume)), topology is None
    reporter = Reporter([console] if alone else [folder, console], started_s=started_s)
    chief = Chief(run_config, folder, reporter, topology, give_up)
    try:
        strategy.prepare(run_config.cluster, topology)
        source = opening.load_source(run_config, chief.preparing)
        program.start_afresh(run_config.seed)
        with chief.connected() as distribution:
            built = program.build(run_config, source, distribution)
            program.build_state(built)
            found, checkpoint = _evaluated(built, Store(whole.checkpoints), chief, reporter)
        path = found.keep(whole.evaluations, checkpoint)
        if not alone:
            folder.update(metrics=found.values, evaluation=asdict(found))
        reporter.emit("evaluation", **asdict(found), path=str(path))
    finally:
        chief.close()
        reporter.close()


def _evaluated(built: program.Program, store: Store, chief: Chief, reporter: Reporter) -> tuple[Evaluation, str]:
    """The evaluation, and the digest of the checkpoint that it is of."""
    evaluator = modes.make(built)
    assert evaluator is not None
    held = trained.restore(built.network, built.config.restore, store, reporter.warn)
    chief.pulse.state, chief.pulse.last_step = "evaluating", held.step
    return evaluator.evaluate(held.step, chief.pulse.advance), manifest.digest(held.files)
