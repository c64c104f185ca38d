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


def job(sweep: Path, number: int, loss: float, barrier) -> None:
    """A job of a sweep as MLflow sees it."""
    folder = RunFolder.create(sweep / str(number), raw={})
    chosen = MLflow("mlflow", store(sweep), "tests")
    sink = chosen.load()(chosen, TrackedRun("mlflow", folder, {"seed": number}, SweepKeys("val_loss", "min", 1)))
    barrier.wait(60)
    sink.event(Event("start", None, 0.0, {}))
    folder.emit("epoch", step=1, metrics={"val_loss": loss})
    barrier.wait(60)
    sink.event(Event("end", 1, 0.0, {}))
    sink.close()
