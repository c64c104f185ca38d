"""The command line: commands over runs and files; everything else is Hydra's and runs an experiment."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from typing import Any, NoReturn

from psrun.errors import Interrupted


def main() -> None:
    """Runs psrun on `sys.argv` and ends the process.

    Ctrl-C during the imports, which take a quarter of a second, ends the process as the signal does, without a
    traceback. SIGTERM and SIGHUP end it by `_end` until a run or a command handles them. Its exit code makes a
    scheduler start a run again that it preempts so early.

    The objects of the imports live as long as the process: garbage collection leaves them out.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_DFL:  # else it is ignored, as by `nohup`
            signal.signal(signum, _end)
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is ignored, as in a shell's background job
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    from psrun.cli import command_line

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, handler)
    command_line.run()


def _end(signum: int, frame: Any) -> NoReturn:
    interrupted = Interrupted(signum)
    with contextlib.suppress(OSError):
        os.write(2, f"psrun: {interrupted}\n".encode())
    os._exit(interrupted.exit_code)
