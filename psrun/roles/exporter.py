"""mode=export: a SavedModel from a checkpoint of a run, which may still be running."""

from __future__ import annotations

from rich.console import Console

from psrun.checkpoint import export, load_model
from psrun.checkpoint.store import Store
from psrun.config.run_config import RunConfig
from psrun.data import load
from psrun.results.console import warner
from psrun.results.run_folder import RunFolder


def run(run_config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Writes the export and prints its path.

    Raises:
      PsrunError: there is no such checkpoint, or the model cannot be written.
    """
    source = load.load_source(run_config, folder.stored().get("data"), folder=folder.root.path)
    warn = warner(console)
    loaded = load_model.load(run_config, source, Store(folder.checkpoints), warn)
    path = export.write(loaded, folder.path / "export", warn)
    console.print(f"exported step {loaded.checkpoint.step} to {path}", soft_wrap=True, markup=False)
