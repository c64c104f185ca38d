"""The guard of a chief without a supervisor, in a separate process: `python -m psrun.launch.guard`.

TensorFlow sends new functions to all workers with Python's global lock held. A worker that hangs at that moment stops
every thread of the chief, including the one that would detect it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from psrun import process
from psrun.cluster.probe import answering
from psrun.config.topology import CHIEF, Task
from psrun.launch.hang_detector import Silence
from psrun.results.run_folder import RunFolder

_BEAT_S = 0.5
_HELD_UP_S = 3.0
_WRITES_STACKS = signal.SIGUSR2
_STACKS_WITHIN_S = 1.0


def start(folder: Path, terminal: TextIO, *, timeout_s: float, servers: Mapping[Task, str]) -> None:
    """Starts the guard of this process and a thread that sends it beats through a pipe. It ends with this process.

    Args:
      folder: of the run.
      terminal: receives the reason if this process is killed.
      timeout_s: a chief without beats for this long counts as hung.
      servers: addresses (HOST:PORT) of the servers, to name those that do not answer.
    """
    faulthandler.register(_WRITES_STACKS)  # to the log, by native code: Python's lock is not needed
    beats, ours = os.pipe()
    pairs = [f"{task}={address}" for task, address in servers.items()]
    command = process.module_command("psrun.launch.guard", str(os.getpid()), str(folder), str(timeout_s), *pairs)
    subprocess.Popen(command, stdin=beats, stderr=terminal, start_new_session=True)
    os.close(beats)

    def beat() -> None:
        with contextlib.suppress(BrokenPipeError):
            while os.write(ours, b"."):
                time.sleep(_BEAT_S)

    threading.Thread(target=beat, name="psrun-beats", daemon=True).start()


def _until_it_hangs(timeout_s: float) -> float | None:
    """Reads beats from standard input; returns the seconds without one, or None once the chief has exited."""
    silence = Silence(time.monotonic(), held_up_s=_HELD_UP_S)
    while True:
        if select.select([0], [], [], 2 * _BEAT_S)[0]:
            if not os.read(0, 4096):
                return None
            silence.reset(time.monotonic())
        elif (silent_s := silence.seconds(time.monotonic())) > timeout_s:
            return silent_s


def main() -> None:
    """Kills the chief if it hangs, after it has logged the stacks of its threads.

    Its exit code, 137, requests a restart, as all from 128 on.
    """
    chief, folder, timeout_s, pairs = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    process.end_with_parent(chief)
    silent_s = _until_it_hangs(timeout_s)
    if silent_s is None:
        return
    servers = dict(name.split("=", 1) for name in pairs)
    up = answering(servers, timeout_s=2.0)
    silent = ", ".join(task for task in servers if task not in up)
    message = f"{CHIEF} hangs: not heard of for {silent_s:.0f} s{silent and f'; no answer from {silent}'}"
    os.kill(chief, _WRITES_STACKS)
    time.sleep(_STACKS_WITHIN_S)
    os.kill(chief, signal.SIGSTOP)  # so that it does not overwrite what is recorded here
    try:
        result = RunFolder(folder)
        error = {"type": "TaskLostError", "message": message, "task": str(CHIEF)}
        result.emit("ended", status="failed", exit_code=128 + signal.SIGKILL, error=error)
        sys.stderr.write(f"psrun: {message}\n(log: {result.log(str(CHIEF))})\n")
        sys.stderr.flush()
    finally:
        os.kill(chief, signal.SIGKILL)


if __name__ == "__main__":
    main()
