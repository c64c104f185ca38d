"""A job of a sweep as MLflow sees it, in a process without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from psrun.config.run_config import SweepKeys
from psrun.results.events import Event
from psrun.results.run_folder import RunFolder
from psrun.results.tracking import TrackedRun
from psrun.runs.trackers.choices import MLflow


def store(sweep: Path) -> str:
    """A database, which two processes that begin with it at once would break."""
    return f"sqlite:///{sweep.parent}/runs.db"


def job(sweep: Path, number: int, loss: float, best: float | None, barrier) -> None:
    """A job of a sweep as MLflow sees it.

    Args:
      loss: of its last evaluation; best: of its best checkpoint, None if checkpoints are not compared.
    """
    folder = RunFolder.create(sweep / str(number), raw={})
    chosen = MLflow("mlflow", store(sweep), "tests")
    sink = chosen.load()(chosen, TrackedRun("mlflow", folder, {"seed": number}, SweepKeys("val_loss", "min", 1)))
    barrier.wait(60)
    sink.event(Event("start", None, 0.0, {}))
    folder.emit("epoch", step=1, metrics={"val_loss": loss})
    if best is not None:
        compared = {"step": 1, "metric": "val_loss", "mode": "min", "value": best}
        folder.emit("best_checkpoint", best_checkpoint=compared)
    barrier.wait(60)
    sink.event(Event("end", 1, 0.0, {}))
    sink.close()
