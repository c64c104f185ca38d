"""The vocabulary of faults: start psrun, kill, stop and continue its tasks, wait for events, cut a host off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import support
from bounds import BOUND_S

POLL_S = 0.1
LOOK_EVERY_S = 0.5
PORT = 5000
# Steps of two workers that mostly wait: a run that lasts until a fault is over leaves the processor to other tests.
MOSTLY_WAITING = "cluster.slow_workers={0: 0.1, 1: 0.1}"
TASKS = {"chief-0": 0, "ps-0": 1, "worker-0": 2, "worker-1": 3}  # of a cluster on a network, and each one's host


class Cluster:
    """A running `psrun` and what it started.

    Attributes:
      seen: all processes that it has been seen to start, also ended ones and those that have lost their parent.
    """

    def __init__(
        self,
        root: Path,
        *arguments: str,
        prefix: Sequence[str] = (),
        python: str = sys.executable,
        **environment: str,
    ) -> None:
        named = ("hydra.run.dir=", "hydra.sweep.dir=", "resume=")
        given = [argument.partition("=")[2].strip("'") for argument in arguments if argument.startswith(named)]
        self.root, self.folder = root, root / (given[0] if given else "run")
        self._out = (root / "stdout").open("w+")
        self._err = (root / "stderr").open("w+")
        folder = [] if given or "-m" in arguments else [f"hydra.run.dir='{self.folder}'"]
        self.process = subprocess.Popen(
            [*prefix, python, "-m", "psrun", *support.last_choices(arguments), *folder],
            cwd=root, stdout=self._out, stderr=self._err, env=support.environment(**environment),
            start_new_session=True,
        )  # fmt: skip
        self.seen: set[psutil.Process] = set()
        self._looked_s = 0.0

    # -- what there is to see

    def task(self, name: str) -> psutil.Process:
        """The process that is the task now, once it has written its heartbeat."""
        path = self.folder / ".tasks" / f"{name}.json"

        def find() -> psutil.Process | None:
            try:
                return psutil.Process(json.loads(path.read_text())["pid"])
            except (OSError, ValueError, psutil.NoSuchProcess):
                return None

        return self.wait(find, f"a heartbeat of {name}")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may still be on its way
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())

    @property
    def stderr(self) -> str:
        return Path(self._err.name).read_text()

    @property
    def stdout(self) -> str:
        return Path(self._out.name).read_text()

    # -- what to wait for

    def wait(self, condition: Callable[[], Any], what: str, *, within_s: float = BOUND_S) -> Any:
        """The first true value of `condition`; fails where there is none within the bound."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            self.look()
            value = condition()
            if value:
                return value
            time.sleep(POLL_S)
        raise AssertionError(f"no {what} within {within_s} s\n{self.stdout}\n{self.stderr}\n{self.events()[-5:]}")

    def wait_for(self, kind: str, count: int = 1, *, within_s: float = BOUND_S) -> dict[str, Any]:
        """The event of that kind with that number."""

        def find() -> list[dict[str, Any]]:
            found = self.events(kind)[count - 1 : count]
            if not found:
                self._ended_early()
            return found

        event: dict[str, Any] = self.wait(find, f"event {kind} {count}", within_s=within_s)[0]
        return event

    def wait_for_step(self, step: int) -> None:
        """Training steps are being applied and `step` is done; fails where no step is done within the bound."""

        def another() -> int:
            try:
                now = json.loads((self.folder / ".tasks" / "chief-0.json").read_text())["step"] or 0
            except (OSError, ValueError):
                self._ended_early()
                return 0
            return now if now != last else 0

        last = 0
        while last < max(step, 1):
            last = self.wait(another, f"step {step}")  # a lower one after a restart

    def end(self, *, within_s: float = BOUND_S) -> int:
        """The exit code. A process that does not end is aborted, to see in its standard error what its threads do."""
        try:
            self.wait(lambda: self.process.poll() is not None, "end", within_s=within_s)
        except AssertionError as error:
            self.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            raise AssertionError(f"{error}\nits threads:\n{self.stderr}") from None
        return self.process.returncode

    def _ended_early(self) -> None:
        assert self.process.poll() is None, f"ended with {self.process.returncode}\n{self.stdout}\n{self.stderr}"

    # -- what to do to it

    def kill(self, name: str) -> psutil.Process:
        return self._send(name, signal.SIGKILL)

    def stop(self, name: str) -> psutil.Process:
        """Makes a task hang."""
        return self._send(name, signal.SIGSTOP)

    def _send(self, name: str, signum: int) -> psutil.Process:
        process = self.task(name)
        self.look(now=True)
        process.send_signal(signum)
        return process

    # -- how it must end, and what must not be left

    def learned(self, num_steps: int) -> None:
        """The run is whole: every step that was planned is applied, and the loss has fallen."""
        result = self.result
        assert (result["status"], result["exit_code"]) == ("completed", 0)
        assert result["steps"]["applied"] >= result["steps"]["scheduled"] == num_steps
        losses = [event["metrics"]["loss"] for event in self.events("epoch")]
        assert losses[-1] < 0.5 * losses[0]
        assert not (self.folder / ".tasks").exists()

    def look(self, *, now: bool = False) -> None:
        """Looks for new processes, if `now` or if it has not just been done: it reads all processes there are."""
        if now or time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seen.update(psutil.Process(self.process.pid).children(recursive=True))

    def left(self) -> list[psutil.Process]:
        """Those that still run."""
        running = []
        for each in self.seen:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends while it is asked
                if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                    running.append(each)
        return running

    def close(self) -> None:
        self.look(now=True)
        self.process.kill()
        self.process.wait()
        psutil.wait_procs([each for each in self.seen if each.is_running()], timeout=5)
        for each in self.left():
            each.kill()
        self._out.close()
        self._err.close()


class Network:
    """Hosts with an address and a network namespace each, joined by a switch; for root only.

    The switch has its own namespace, so that nothing is added to this machine's network.
    """

    def __init__(self, num_hosts: int) -> None:
        self._mark = f"psrun-{os.getpid()}"
        self.hosts = [f"10.77.0.{1 + index}" for index in range(num_hosts)]
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "bridge", "up")
        for host in self.hosts:
            space, port = self.space(host), self._port(host)
            self._ip("netns", "add", space)
            self._ip("-n", space, "link", "set", "lo", "up")
            self._ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
            self._ip("-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
            self._ip("-n", space, "link", "set", "eth0", "up")
            self._ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")

    @property
    def _switch(self) -> str:
        return f"{self._mark}-switch"

    def space(self, host: str) -> str:
        return f"{self._mark}-{host.rpartition('.')[2]}"

    def _port(self, host: str) -> str:
        return f"port{host.rpartition('.')[2]}"

    def on(self, host: str) -> list[str]:
        """What to put before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.space(host)]

    def cut(self, host: str) -> None:
        """Pulls the host's cable: packets vanish without an error."""
        self._ip("-n", self._switch, "link", "set", self._port(host), "down")

    def mend(self, host: str) -> None:
        self._ip("-n", self._switch, "link", "set", self._port(host), "up")

    def close(self) -> None:
        for space in (*map(self.space, self.hosts), self._switch):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
