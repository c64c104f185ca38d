"""The fork server of a supervisor or a sweep: `python -m psrun.roles.fork_server SOCKET OWNER`.

It imports what the tasks of a run need, and forks a task for each request. It has no threads but a few of libraries,
which survive a fork, and it does not train: TensorFlow has started nothing yet when a task is forked.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import resource
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

from psrun import process
from psrun.launch.child_processes import MAX_MESSAGE_BYTES
from psrun.tf_internals import modules

_RUN_PROCESS = "psrun.roles.run_process"
# Their threads have handlers that run at a fork: the pool of OpenBLAS, and the allocator of Arrow.
_WITH_THREADS = ("numpy", "pyarrow")
_IMPORTED = ("chief", "server", "sidecar")
_ADOPTED_POLL_S = 0.0005
_MADV_DONTNEED = 4
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ +/")  # of a file, in /proc/PID/smaps


def main() -> None:
    """Imports, and serves until the owner, which has the other end of the socket, ends."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    owner = int(sys.argv[2])
    process.end_with_parent(owner)
    process.set_title("fork-server")
    process.prepare()
    threads = _import()
    requests.send(json.dumps({}).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, 2)
        if not message:
            process.leave(0)
        request = json.loads(message)
        refusal = _fork(request, descriptors, requests, owner, threads)
        for descriptor in descriptors:
            os.close(descriptor)
        if refusal is not None:
            requests.send(json.dumps({"id": request["id"], "refused": refusal}).encode())


def _import() -> set[str]:
    """Imports what tasks need; returns the threads of the libraries that may have some."""
    unknown = _threads() - {str(os.getpid())}  # of what Python imports at its start
    loading = modules.load_libraries()  # half a second, in which these modules are imported
    importlib.import_module(_RUN_PROCESS)
    table = importlib.import_module("psrun.roles.table")
    for name in _WITH_THREADS:
        importlib.import_module(name)
    loading.join()
    threads = _threads() - unknown
    for name in _IMPORTED:
        table.import_role(name)
    _release_files()
    return threads


def _release_files() -> None:
    """Gives back the memory of the files that the imports have mapped and only read: half of what this process holds.

    The loader reads the tables of symbols of TensorFlow's libraries, 350 MB, once. The kernel reads a page again where
    a task needs it. Mappings with pages that were written to stay.
    """
    libc = ctypes.CDLL(None)
    pages: range | None = None
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if mapping := _MAPPING.match(line):
                pages = range(int(mapping[1], 16), int(mapping[2], 16))
            elif line.startswith("Anonymous:") and pages is not None:
                if line.split()[1] == "0":
                    libc.madvise(ctypes.c_void_p(pages.start), ctypes.c_size_t(len(pages)), _MADV_DONTNEED)
                pages = None


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _fork(
    request: dict[str, Any], descriptors: list[int], requests: socket.socket, owner: int, threads: set[str]
) -> str | None:
    """Forks the process of a request, which reports itself. Returns why there is none, or None."""
    if len(descriptors) != 2:
        return "the fork server has too many open files"
    others = _threads() - threads
    if others:
        return f"the fork server has {len(others)} threads of libraries that do not survive a fork"
    try:
        between = _fork_once()
    except OSError as error:
        return f"fork: {error.strerror}"
    if between == 0:
        _fork_again(request, descriptors, requests, owner)
    _, status = os.waitpid(between, 0)
    return None if status == 0 else "fork: it failed in the process between"


def _fork_once() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are known
        return os.fork()


def _fork_again(request: dict[str, Any], descriptors: list[int], requests: socket.socket, owner: int) -> NoReturn:
    """Continues the process between the server and a task: the owner adopts the task when this process exits."""
    between = os.getpid()
    try:
        task = _fork_once()
    except OSError:
        os._exit(1)
    if task:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(_ADOPTED_POLL_S)
    process.end_with_parent(owner)
    try:
        _become_task(request, *descriptors)
    except (OSError, ValueError) as error:
        requests.send(json.dumps({"id": request["id"], "refused": str(error)}).encode())
        os._exit(1)
    requests.send(json.dumps({"id": request["id"], "pid": os.getpid()}).encode())
    requests.close()
    importlib.import_module(_RUN_PROCESS).run_prepared(Path(request["folder"]))
    raise AssertionError("unreachable")


def _become_task(request: dict[str, Any], output: int, folder: int) -> None:
    """Makes this process what it would be if the owner had started it. Raises OSError and ValueError."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.fchdir(folder)
    os.umask(request["umask"])
    for limit, value in request["limits"].items():
        resource.setrlimit(int(limit), tuple(value))
    for name, value in request["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for descriptor in (nowhere, output, folder):
        os.close(descriptor)
    sys.argv[1:] = [request["folder"]]
    importlib.import_module("numpy").random.seed()  # of the global generator; Python's is seeded at each fork
    importlib.invalidate_caches()  # the user's modules may have changed


if __name__ == "__main__":
    main()
