"""The keys of trackers of other projects."""

from __future__ import annotations

from dataclasses import dataclass, field

from psrun.config.choices import TrackerChoice
from psrun.config.schema import one_of


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
    artifacts: list[str] = field(default_factory=list)

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
