"""mode=evaluate: the evaluation of a checkpoint of a run, which may still be going on, on any cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from psrun.checkpoint import manifest
from psrun.config.run_config import RunConfig
from psrun.config.topology import Topology
from psrun.errors import PsrunError
from psrun.evaluation import modes
from psrun.results.events import Sink
from psrun.results.run_folder import RunFolder
from psrun.roles.restored import restored


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
      folder, topology, give_up: as of `restored`.

    Raises:
      PsrunError: there is no such checkpoint, or it cannot be evaluated.
    """
    options: dict[str, Any] = {"started_s": started_s, "topology": topology, "give_up": give_up}
    with restored(run_config, folder, console, state="evaluating", **options) as there:
        evaluator = modes.make(there.built)
        assert evaluator is not None
        found = evaluator.evaluate(there.checkpoint.step, there.chief.pulse.advance)
        path = found.keep(there.whole.evaluations, manifest.digest(there.checkpoint.files))
        there.reporter.emit("evaluation", **asdict(found), path=str(path))
