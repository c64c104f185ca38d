"""Stops processes that do every step together after the same step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psrun import files


@dataclass
class SynchronizedStop:
    """Stops synchronous tasks, none of which can do a step without the others, after the same execution.

    Between two executions the chief writes the number of the next one into `marker`. No other task can have finished
    that execution by then, so all tasks read the number at its end or before.

    Attributes:
      leads: whether this is the chief.
      agreed: whether this task has reached the agreed execution.
    """

    marker: Path
    leads: bool
    agreed: bool = False

    def begin(self) -> None:
        """Forgets what the previous chief agreed on."""
        if self.leads:
            self.marker.unlink(missing_ok=True)

    def last(self) -> int | None:
        """The number, from 1 at the start of the processes, of the last execution to do; None to continue."""
        try:
            return int(self.marker.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def agree_on(self, last: int) -> None:
        files.write_atomic(self.marker, str(last))
