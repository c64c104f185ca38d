"""What must be set before TensorFlow is imported, where its chatter goes, and how the process ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

VARIABLES = {
    # Keras 3 has no parameter server support; tf-keras has.
    "TF_USE_LEGACY_KERAS": "1",
    # A task that cannot be reached is an error, not a silent retry for ever.
    "GRPC_FAIL_FAST": "use_caller",
    # Counters of transient errors that never go back: the defaults (3, workers / 10) end a long job on its third blip.
    "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES": "1000000",
    "TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS": "1000000",
}
# The supervisor's process id, set for its children: a TF_CONFIG that merely stands in somebody's shell makes no task.
SUPERVISOR_PID = "PSRUN_SUPERVISOR_PID"
# Two servers would share one port in silence; with the coordination service a cut network hangs without an error.
UNWANTED = ("TF_GRPC_REUSE_PORT", "TF_PSS_ENABLE_COORDINATION_SERVICE")


def psrun_again(configuration: Path, folder: Path) -> list[str]:
    """The command that runs the `config.yaml` in the folder `configuration` as a process of the run in `folder`."""
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")  # Hydra's grammar has meanings for = , and blanks
    return [
        *(sys.executable, "-m", "psrun", f"--config-path={configuration}", "--config-name=config"),
        *(f"hydra.run.dir='{quoted}'", "hydra.output_subdir=null"),
        *("hydra/job_logging=disabled", "hydra/hydra_logging=disabled"),
    ]


def prepare() -> None:
    """Sets the environment variables of every task. Call before TensorFlow is imported."""
    os.environ.update(VARIABLES)
    for name in UNWANTED:
        os.environ.pop(name, None)


def divert_stderr(log: Path) -> TextIO:
    """Sends file descriptor 2, where TensorFlow's C++ code and Python's warnings write, to the end of `log`.

    Returns:
      The standard error that there was, for messages to the person at the terminal.
    """
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    return terminal


def leave(code: int) -> NoReturn:
    """Ends the process now. Letting go of a ClusterCoordinator the ordinary way takes up to a minute."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
