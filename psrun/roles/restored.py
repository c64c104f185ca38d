"""A checkpoint of a run on the cluster of this process: what mode=evaluate and mode=predict begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psrun.checkpoint import load_model
from psrun.checkpoint.manifest import Manifest
from psrun.checkpoint.store import Store
from psrun.cluster import strategy
from psrun.config.run_config import RunConfig
from psrun.config.topology import Topology
from psrun.data import load
from psrun.errors import PsrunError
from psrun.program import compiled_model
from psrun.results.events import Reporter, Sink
from psrun.results.run_folder import RunFolder
from psrun.roles.chief import Chief


@dataclass(frozen=True)
class Restored:
    """A program whose model has the values of a checkpoint.

    Attributes:
      whole: the folder of the run that the checkpoint is of.
    """

    built: compiled_model.Program
    checkpoint: Manifest
    chief: Chief
    reporter: Reporter
    whole: RunFolder


@contextmanager
def restored(
    run_config: RunConfig,
    folder: RunFolder,
    console: Sink,
    *,
    state: str,
    started_s: float,
    topology: Topology | None = None,
    give_up: Callable[[PsrunError], None] | None = None,
    connect: Callable[..., strategy.Distribution] = strategy.connect,
) -> Iterator[Restored]:
    """Connects to the cluster and restores the checkpoint that the configuration names; ends the servers afterwards.

    Args:
      folder: of the run; or, on a cluster of several processes, one of its own within that.
      state: what this process does, as its heartbeat says.
      topology, give_up: as of `Chief`.
      connect: starts what the cluster needs and connects to it.

    Raises:
      PsrunError: there is no such checkpoint, or a task was lost.
    """
    assert run_config.resume is not None
    whole = RunFolder(Path(run_config.resume))
    reporter = Reporter([console] if topology is None else [folder, console], started_s=started_s)
    chief = Chief(run_config, folder, reporter, topology, give_up)
    try:
        strategy.prepare(run_config.cluster, topology)
        source = load.load_source(run_config, chief.preparing)
        compiled_model.start_afresh(run_config.seed)
        with chief.connected(connect) as distribution:
            built = compiled_model.build(run_config, source, distribution)
            compiled_model.build_state(built)
            checkpoint = load_model.restore(built.network, run_config.restore, Store(whole.checkpoints), reporter.warn)
            chief.restored(checkpoint.step)
            chief.pulse.state, chief.pulse.last_step = state, checkpoint.step
            yield Restored(built, checkpoint, chief, reporter, whole)
    finally:
        chief.close()
        reporter.close()
