"""How processes that do every step together come to the same end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psrun import files


@dataclass
class SynchronizedStop:
    """How synchronous tasks, none of which can do a step without the others, stop after the same execution.

    Between two executions the chief writes into `marker` the number of the next one. No other task can have done that
    one by then, so that all find the number at its end, if not before.

    Attributes:
      leads: whether this is the chief.
      agreed: whether this task has come to the agreed end.
    """

    marker: Path
    leads: bool
    agreed: bool = False

    def last(self) -> int | None:
        """The number, from 1, of the last execution to do, counted from the start of the processes; None: go on."""
        try:
            return int(self.marker.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def agree_on(self, last: int) -> None:
        files.write_atomic(self.marker, str(last))
