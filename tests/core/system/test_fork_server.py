"""The fork server: processes that it forks equal processes of their own, and no fault of it is a fault of theirs."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from bounds import BOUND_S
from support import HARNESS, environment, raw_config

from psrun import process
from psrun.launch.child_processes import ChildProcess, ForkServer, start_alone
from psrun.results.run_folder import write_config

pytestmark = pytest.mark.command

# A module of a user that writes down the process in which it is imported. The process ends with the run's seed, or
# sleeps where that is 0.
_PROBE = """
import gc, json, os, random, resource, signal, sys, threading, time
from pathlib import Path

import numpy as np
import tensorflow as tf

class Source:
    def __init__(self, **options): ...

CONTENT = {content!r}
folder = Path(sys.argv[1])
for thread in threading.enumerate():
    # They end by themselves, earlier or later: git, and what rich refreshed "importing TensorFlow" with.
    if thread.name == "git" or type(thread).__name__ == "_RefreshThread":
        thread.join(30)
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
state = {{
    "argv": sys.argv[1:],
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "parent": os.getppid(),
    "cwd": os.getcwd(),
    "umask": os.umask(0o022),
    "limits": {{name: resource.getrlimit(getattr(resource, name)) for name in limits}},
    "environment": {{name: value for name, value in os.environ.items()}},
    "signals": {{str(number): str(signal.getsignal(number)) for number in (signal.SIGPIPE, signal.SIGCHLD)}},
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "files": {{number: os.readlink(f"/proc/self/fd/{{number}}") for number in (0, 1)}},
    "threads": sorted(thread.name for thread in threading.enumerate()),
    "collects": gc.isenabled(),
    "path": [entry for entry in sys.path if entry],
    "content": CONTENT,
}}
drawn = [random.random(), float(np.random.rand()), float(tf.random.uniform([]))]
file = folder / "state.json.new"
file.write_text(json.dumps([state, drawn, Path("/proc/self/cmdline").read_text()]))
file.rename(folder / "state.json")
seed = int(folder.name.partition("-")[2])
while seed == 0:
    time.sleep(0.05)
os._exit(seed)
"""


class Owner:
    """What a supervisor does with a fork server: starts processes of runs in a folder, and closes all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "fork-server.log"
        self.server = ForkServer(self.log)
        self.started: list[ChildProcess] = []
        self._folders: list[Path] = []

    def start(self, start_process: Callable[..., ChildProcess] | None = None, code: int = 7, **more: str) -> Path:
        """Starts a process that ends with `code`, or sleeps where that is 0; returns its run folder."""
        folder = self.root / f"run{len(self._folders)}-{code}"
        (folder / "logs").mkdir(parents=True)
        raw = raw_config("cluster=none", "model=dense", "data=features", "tracker=none")
        write_config(folder, {**raw, "data": {**raw["data"], "_target_": "probe.Source"}})
        self._folders.append(folder)
        start_process = start_process or self.server.start
        self.started.append(start_process(folder, {**os.environ, **more}, folder / "logs" / "console.log"))
        return folder

    def state(self, folder: Path) -> Any:
        """What the process of `folder` has written down."""
        child = self.started[self._folders.index(folder)]
        wait_until(lambda: (folder / "state.json").exists() or child.poll() is not None, "state")
        assert (folder / "state.json").exists(), (folder / "logs" / "console.log").read_text()
        return json.loads((folder / "state.json").read_text())

    def wait_for_log(self, *texts: str) -> None:
        """Waits until the server's log has all of `texts`."""

        def is_there() -> bool:
            self.started[-1].poll()
            return all(text in self.log.read_text() for text in texts)

        wait_until(is_there, " and ".join(texts))

    def title(self, child: ChildProcess) -> str:
        """The command of a process as `ps` shows it."""
        wait_until(lambda: child.poll() is not None or child.pid is not None, "process")
        assert child.pid is not None
        return " ".join(psutil.Process(child.pid).cmdline())

    @property
    def pid(self) -> int:
        """Of the server, once it serves."""
        wait_until(self._servers, "server")
        return self._servers()[-1].pid

    def _servers(self) -> list[psutil.Process]:
        servers = []
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if child.cmdline()[0].startswith("psrun fork-server"):
                    servers.append(child)
        return servers


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what} within {BOUND_S} s"
        time.sleep(0.02)


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    for name in {*os.environ} - {*environment()}:  # of tests that import TensorFlow in their process
        monkeypatch.delenv(name)
    (tmp_path / "probe.py").write_text(_PROBE.format(content="first"))
    monkeypatch.chdir(tmp_path)
    here = Owner(tmp_path)
    yield here
    for child in here.started:
        child.kill()
        child.wait(BOUND_S)
    here.server.close()
    assert [each for each in psutil.Process().children(recursive=True) if "psrun" in " ".join(each.cmdline())] == []


def test_a_forked_process_is_as_one_of_its_own(owner, monkeypatch):
    """Also in a folder, with limits and with a mask that were changed after the start of the server."""
    owner.server.begin()
    alone = owner.state(owner.start(start_alone))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    mask = os.umask(0o027)
    try:
        folders = [owner.start(), owner.start()]
    finally:
        os.umask(mask)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    states = [owner.state(folder) for folder in folders]
    assert [child.wait(BOUND_S) for child in owner.started] == [7, 7, 7]
    for folder, (state, _, title) in zip(folders, states):
        assert title.rstrip("\0 ").startswith(f"psrun {folder}")
        assert state.pop("umask") == 0o027
        assert state["limits"].pop("RLIMIT_OFILE") == state["limits"].pop("RLIMIT_NOFILE") == [before[0] - 1, before[1]]
        assert state.pop("argv") == [str(folder)]
        assert state.pop("files") == {"0": "/dev/null", "1": str(folder / "logs" / "console.log")}
    expected = alone[0]
    for name in ("umask", "argv", "files"):
        expected.pop(name)
    expected["limits"] = {name: limit for name, limit in expected["limits"].items() if "OFILE" not in name}
    assert states[0][0] == expected
    assert states[1][0] == expected
    assert expected["parent"] == os.getpid()
    assert all(a != b for a, b in zip(states[0][1], states[1][1]))  # nobody has seeded yet
    assert (owner.root / folders[0] / "logs" / "console.log").read_text().count("Traceback") == 0


def test_a_withdrawn_request_a_changed_module_and_a_server_without_room(owner):
    """A request is withdrawn by a signal, as a Ctrl-C does while the server imports."""
    withdrawn = owner.start()
    owner.started[0].send_signal(signal.SIGINT)
    assert owner.started[0].wait(BOUND_S) == -signal.SIGINT
    sleeping = owner.start(code=0)
    assert owner.state(sleeping)[0]["content"] == "first"
    assert not (withdrawn / "state.json").exists()

    (owner.root / "probe.py").write_text(_PROBE.format(content="second"))
    assert owner.state(owner.start())[0]["content"] == "second"
    assert owner.started[2].wait(BOUND_S) == 7
    assert owner.started[1].poll() is None
    owner.started[1].send_signal(signal.SIGSTOP)
    owner.started[1].kill()
    assert owner.started[1].wait(BOUND_S) == -signal.SIGKILL

    open_files = psutil.Process(owner.pid).num_fds()
    resource.prlimit(owner.pid, resource.RLIMIT_NOFILE, (open_files, open_files))
    owner.start()
    owner.wait_for_log("a process starts alone: the fork server has too many open files")


def test_a_lost_server_costs_no_process(owner):
    """Its processes go on, and the next ones are forked by another server."""
    owner.state(owner.start(code=0))
    lost = psutil.Process(owner.pid)
    lost.kill()
    wait_until(lambda: lost.status() == psutil.STATUS_ZOMBIE, "end of the server")
    owner.state(owner.start())
    assert owner.started[1].wait(BOUND_S) == 7
    assert "the fork server is given up: it has ended" in owner.log.read_text()
    os.kill(owner.pid, signal.SIGSTOP)
    owner.start()
    owner.wait_for_log("the fork server is given up: it is stopped", "a process starts alone: the fork server is lost")
    assert "fork-server" not in owner.title(owner.started[2])
    assert owner.started[0].poll() is None


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_lost_while_it_imports(owner, signum):
    """It is not started again: perhaps it cannot import."""
    owner.start()
    owner.start()
    os.kill(psutil.Process().children()[0].pid, signum)
    owner.wait_for_log("the fork server is given up")
    owner.start()
    titles = [owner.title(child) for child in owner.started]
    assert [title for title in titles if "psrun.roles.fork_server" in title] == []
    assert owner.log.read_text().count("a process starts alone") == 3


def test_a_process_whose_environment_differs_starts_alone(owner):
    owner.start(TF_ENABLE_ONEDNN_OPTS="0", TF_CONFIG="{}")
    owner.wait_for_log("its environment differs in TF_ENABLE_ONEDNN_OPTS\n")
    pid = owner.started[0].pid
    assert pid is not None
    # The kernel closes the pipe that `Popen` waits for before it has set up the environment of the new program.
    wait_until(lambda: psutil.Process(pid).environ().get("TF_ENABLE_ONEDNN_OPTS") == "0", "environment")


@pytest.mark.parametrize("module", [pytest.param("psrun", marks=pytest.mark.thorough), "psrun.roles.chief"])
def test_a_thread_in_the_server_ends_forking(owner, monkeypatch, module):
    """A module that starts one is on the path, as a plug-in of TensorFlow may be, or one that runs at the start."""
    (owner.root / "site").mkdir()
    (owner.root / "site" / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "class Starting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == '{module}' and 'psrun.roles.fork_server' in sys.orig_argv:\n"
        "            threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n"
        "sys.meta_path.insert(0, Starting())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(owner.root / "site"))
    owner.start()
    owner.wait_for_log("1 threads of libraries that do not survive a fork")


# Answers as the fork server does, to requests that it meets in no way of its own.
_SCRIPTED = """
import json, os, socket, subprocess, sys
requests = socket.socket(fileno=int(sys.argv[1]))
requests.send(b"{}")
numbers = [json.loads(requests.recv(2**17))["id"] for _ in range(2)]
for number in numbers:
    requests.send(json.dumps({"id": number, "refused": "scripted"}).encode())
requests.recv(1)
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ForkServer, list[ChildProcess]]:
    """A fork server that refuses two processes together, which start alone and sleep."""
    monkeypatch.setattr(process, "module_command", lambda module, *more: [sys.executable, "-c", _SCRIPTED, *more])
    monkeypatch.setattr(process, "task_command", lambda folder: ["sleep", "300"])
    server = ForkServer(tmp_path / "fork-server.log")
    return server, [server.start(tmp_path, dict(os.environ), tmp_path / f"{i}.log") for i in range(2)]


def test_a_refused_process_is_started_by_the_thread_that_asked_for_it(scripted):
    """The kernel ends a process with the thread that has started it; the answers come to the other one here."""
    server, (first, second) = scripted
    wait_until(lambda: first.poll() is None and first.pid is not None, "first process")
    assert second.pid is None
    assert second.poll() is None
    assert second.pid is not None
    for child in (first, second):
        child.kill()
        assert child.wait(BOUND_S) == -signal.SIGKILL
    server.close()


def test_a_server_that_closes_withdraws_what_is_answered_just_then(scripted):
    server, children = scripted
    while not select.select([server._socket], [], [], BOUND_S)[0]:
        pass
    time.sleep(0.1)
    server.close()
    assert [child.wait(BOUND_S) for child in children] == [-signal.SIGKILL, -signal.SIGKILL]
    assert [child.pid for child in children] == [None, None]


def test_processes_end_with_their_owner(tmp_path):
    """An owner that is killed leaves neither its server nor its processes."""
    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_fork_server as t\n"
        "owner = t.Owner(Path(sys.argv[1])); folder = owner.start(code=0); owner.state(folder)\n"
        "print(owner.pid, owner.started[0].pid, flush=True); time.sleep(300)\n"
    )
    (tmp_path / "probe.py").write_text(_PROBE.format(content="first"))
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    variables = environment(PYTHONPATH=str(HARNESS))
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=variables) as owner:
        try:
            pids = [int(pid) for pid in owner.stdout.readline().split()]
        finally:
            owner.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "end of the processes")
