"""Trackers, of which a run may have several: each has its keys below `tracker.NAME`."""

from __future__ import annotations

from dataclasses import dataclass, field

from psrun.config.choices.base import Choice
from psrun.config.schema import one_of

ARTIFACTS = ("config", "result", "export", "best_checkpoint")


class TrackerChoice(Choice):
    """The interface of every tracker.

    The implementation is called with the choice and a `psrun.results.trackers.tracking.TrackedRun`, in the chief and in
    the evaluator, and returns a `psrun.results.events.Sink`. Where it raises an error later, the run continues without
    it.
    """

    kind: str

    @property
    def title(self) -> str:
        """Its name in warnings."""
        return self.kind

    @property
    def needs_network(self) -> bool:
        """Whether it accesses the network without a URL in the configuration."""
        return False


@dataclass(frozen=True)
class NoTracker(TrackerChoice):
    kind: str


@dataclass(frozen=True)
class TensorBoard(TrackerChoice):
    implementation = "psrun.results.trackers.tensorboard:TensorBoardSink"
    title = "TensorBoard"
    kind: str


@dataclass(frozen=True)
class MLflow(TrackerChoice):
    """MLflow.

    Attributes:
      tracking_uri: URI of a server or a database, or a folder.
      experiment: the MLflow experiment.
      artifacts: what is filed when the training ends, of `ARTIFACTS`.
    """

    implementation = "psrun.runs.trackers.mlflow:MLflowSink"
    kind: str
    tracking_uri: str
    experiment: str
    artifacts: list[str] = field(default_factory=list)  # older run folders have none

    @property
    def title(self) -> str:
        return f"MLflow at {self.tracking_uri}"


@dataclass(frozen=True)
class WandB(TrackerChoice):
    """Weights & Biases.

    Attributes:
      mode: offline: files in the run folder only.
      project: of the runs.
      entity: user or team; None for the user's default.
      artifacts: as of MLflow.
    """

    implementation = "psrun.runs.trackers.wandb:WandBSink"
    title = "Weights & Biases"
    kind: str
    project: str
    entity: str | None
    artifacts: list[str]
    mode: str = one_of("offline", "online")

    @property
    def needs_network(self) -> bool:
        return self.mode == "online"


# By name, as `kind` in conf/.
TRACKERS: dict[str, type] = {"none": NoTracker, "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
