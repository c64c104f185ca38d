"""How a process is told to end: the first signal asks, the second insists."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from psrun.errors import ExitCode, Interrupted


class Stop:
    """Ctrl-C and SIGTERM of this process.

    Until `defer` is called the first signal raises Interrupted wherever the main thread is. After it, the signal only
    sets `requested`, calls `on_request`, and starts a clock: whoever works looks at `requested` and ends in good order
    within the time given, or the process ends without it. A second signal ends the process at once.

    Attributes:
      requested: set once the process is to end.
      signum: by which signal; None before.
      on_request: called in the main thread when the signal comes.
      at_once: called right before the process ends without good order.
      record: called after it, with the reason; may raise OSError.
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.signum: int | None = None
        self.on_request: Callable[[], None] = lambda: None
        self.at_once: Callable[[], None] = lambda: None
        self.record: Callable[[Interrupted], None] = lambda interrupted: None
        self._within_s: float | None = None
        self._may_insist = True

    def install(self) -> None:
        """Takes over the process's signals."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._handle)

    def heed(self, signum: int) -> None:
        """Takes that signal for a SIGTERM too."""
        signal.signal(signum, lambda _, frame: self._handle(signal.SIGTERM, frame))

    def defer(self, within_s: float, *, may_insist: bool = True) -> None:
        """From now on signals wait for good order, `within_s` seconds at most.

        Args:
          may_insist: whether a second signal ends the process at once, as a person wants; a scheduler may say the same
            thing twice.
        """
        self._within_s, self._may_insist = within_s, may_insist

    def follow(self) -> None:
        """Ends as if this process had been asked with SIGTERM: another one was."""
        self.signum = self.signum or signal.SIGTERM
        self.requested.set()

    def raise_if_requested(self) -> None:
        if self.signum is not None:
            raise Interrupted(self.signum)

    def outcome(self, code: int | None, recorded: Mapping[str, Any]) -> ExitCode:
        """The exit code of a process that has passed its signal on to the one that does the work, which has ended.

        Args:
          code: the exit code of that process; negative for a signal.
          recorded: run.json as that process left it.

        Raises:
          Interrupted: that process has not recorded that the run was ended by this signal.
        """
        assert self.signum is not None
        if code in (ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE):  # it was done just then, or could not save
            return ExitCode(code)
        interrupted = Interrupted(self.signum)
        if (recorded.get("status"), recorded.get("exit_code")) != ("interrupted", interrupted.exit_code):
            raise interrupted
        return interrupted.exit_code

    def _handle(self, signum: int, frame: Any) -> None:
        if self.signum is not None:
            if self._may_insist:
                self._end(signum)
            return
        self.signum = signum
        self.requested.set()
        if self._within_s is None:
            raise Interrupted(signum)
        clock = threading.Timer(self._within_s, self._end, [signum])
        clock.daemon = True
        clock.start()
        self.on_request()

    def _end(self, signum: int) -> None:
        interrupted = Interrupted(signum)
        try:
            self.at_once()
        finally:  # there may be nobody any more whom to end
            try:
                self.record(interrupted)
            finally:  # the disk may be full
                os._exit(interrupted.exit_code)
