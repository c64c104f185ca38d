"""The states of runs and of the jobs of sweeps: one word for each, how it is shown, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

from psrun.results.run_folder import NOT_RUN, PAUSED, PENDING, PLANNED, PRUNED
from psrun.results.run_state import GONE, UNKNOWN

WAITING, STARTING = "waiting", "starting"  # a job whose folder shows no run yet; all other words are of runs


@dataclass(frozen=True)
class State:
    """How a state is shown.

    Attributes:
      style: the color on a terminal and on the page of reports; empty for none.
      means: one sentence without a full stop, for the documentation and for messages.
      is_over: whether nothing runs any more.
    """

    style: str
    means: str
    is_over: bool


STATES = {
    WAITING: State("dim", "the job of a sweep has not started", False),
    STARTING: State("dim", "the job of a sweep has a process, and has recorded nothing yet", False),
    PENDING: State("dim", "the job of the run waits", False),
    "running": State("cyan", "the run, or the sweep, is running", False),
    "completed": State("green", "all is done", True),
    PLANNED: State("dim", "`psrun plan` has planned it, and nothing was trained", True),
    "failed": State("red", "an error ended it", True),
    "interrupted": State("yellow", "it was asked to end, and has saved a checkpoint if there was time", True),
    PAUSED: State("dim", "a search has paused the job, and may continue it", True),
    PRUNED: State("dim", "a search has ended the job early", True),
    GONE: State("red", "its process was killed, or has ended without recording a status", True),
    NOT_RUN: State("dim", "its job was cancelled, or has ended before the run began", True),
    UNKNOWN: State("red", "`run.json` cannot be read", True),
}
_OTHER = State("", "as another version of psrun has recorded it", False)


def state(status: str) -> State:
    """The state with this word. A word that is not known has no style and is not over."""
    return STATES.get(status, _OTHER)
