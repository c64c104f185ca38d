"""Trackers, of which a run may have several: each has its keys below `tracker.NAME`."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.config.choices.base import Choice

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


# By name, as `kind` in conf/.
TRACKERS: dict[str, type] = {"none": NoTracker, "tensorboard": TensorBoard}
