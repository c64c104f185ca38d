"""The signal to a server that the run is over. Does not import TensorFlow."""

from __future__ import annotations

import os

_FILE = 250  # file descriptor that all tasks use for the signal; free so early in every process
PATH = f"/proc/self/fd/{_FILE}"  # of the file, in the process of the server


class RunOverSignal:
    """True once a chief has run `strategy.signal_over` in this process.

    The signal is an anonymous file, so that only the chief of this run reaches it: servers of two runs on one machine,
    each in a private network, may have the same address.
    """

    def __init__(self) -> None:
        unnamed = os.memfd_create("psrun-over")
        os.dup2(unnamed, _FILE, inheritable=False)
        os.close(unnamed)

    def __bool__(self) -> bool:
        return os.fstat(_FILE).st_size > 0

    def close(self) -> None:
        os.close(_FILE)
