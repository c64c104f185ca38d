"""How a server learns that the run is over. Imports no TensorFlow."""

from __future__ import annotations

import os

_FILE = 250  # a file descriptor that all tasks agree on; no process has so many so early
PATH = f"/proc/self/fd/{_FILE}"  # of the file, in the process of the server


class RunOverSignal:
    """Whether this process was told that the run is over, by `end_servers.tell`, which a chief runs here.

    It is told through a file that has no name, and so not by the chief of another run: servers of two runs on one
    machine, each in a network of its own, may well have the same address.
    """

    def __init__(self) -> None:
        unnamed = os.memfd_create("psrun-over")
        os.dup2(unnamed, _FILE, inheritable=False)
        os.close(unnamed)

    def __bool__(self) -> bool:
        return os.fstat(_FILE).st_size > 0

    def close(self) -> None:
        os.close(_FILE)
