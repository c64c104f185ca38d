"""The pods of a manifest as processes: command, arguments and environment as written, each on its own host.

No container engine runs here. Each pod gets a network namespace, the names of its headless Service in a file of hosts,
a root file system that it cannot write to and a user without rights. Kubernetes itself takes no part.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fault_injection import Network
from kubernetes_manifests import Pod, manifests, pods
from support import REPOSITORY

from psrun.config.topology import Task

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip (package iproute2)"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (package util-linux)"),
]

ROOT = REPOSITORY
QUICK = ["trainer.epochs=1", "trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]
CLUSTER = [*QUICK, "cluster.num_workers=2", "cluster.num_ps=1", "cluster.connect_timeout_s=60"]
USER = 10001
# $1 hosts, $2 the volume, $3 scratch: what a pod has of its own; all else can be read only. One right is left: to read
# what root may, as the Python of these tests may lie in a folder of root's.
_POD = f"""
set -e
mount --bind "$1" /etc/hosts
mount --bind "$2" "$2"
mount --bind "$3" "$3"
mount -o remount,bind,ro /
shift 3
exec setpriv --reuid={USER} --regid={USER} --clear-groups --no-new-privs \\
  --inh-caps=-all,+dac_read_search --ambient-caps=+dac_read_search --bounding-set=-all,+dac_read_search "$@"
"""


class Pods:
    """The pods of one run, and the folder that stands for its volume."""

    def __init__(self, network, root: Path) -> None:
        self._network, self._root = network, root
        self.volume = root / "runs"
        self._own(self.volume)
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.described: dict[Task, Pod] = {}

    def describe(self, *arguments: str) -> None:
        given = (f"kubernetes.mount_path={self.volume}", *arguments)
        self.described = {Task(pod.job, pod.index): pod for pod in pods(manifests(self._root, *given))}
        self.hosts = dict(zip((pod.host for pod in self.described.values()), self._network.hosts))
        self._publish()

    def move(self, task: Task) -> None:
        """The next pod of a task gets another address, as that of a new one does; the name stays."""
        spare = [each for each in self._network.hosts if each not in self.hosts.values()]
        self.hosts[self.described[task].host] = spare[0]
        self._publish()

    def _publish(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{where} {name}" for name, where in self.hosts.items())]
        (self._root / "hosts").write_text("\n".join(lines) + "\n")

    def start(self, task: Task) -> subprocess.Popen[str]:
        container = self.described[task].container
        command = [*container["command"], *(each.replace("$$(", "$(") for each in container["args"])]
        self.running[str(task)] = self.within(task, command)
        return self.running[str(task)]

    def within(self, task: Task, command: list[str]) -> subprocess.Popen[str]:
        """A command in the pod of a task, as its first or as a probe is."""
        pod = self.described[task]
        assert command[0] == "python"
        scratch = self._root / f"scratch-{task}"
        self._own(scratch)
        written = {name: value.replace("/tmp", str(scratch)) for name, value in pod.environment.items()}
        path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
        enter = [*self._network.on(self.hosts[pod.host]), "unshare", "--mount", "sh", "-c", _POD, "pod"]
        return subprocess.Popen(
            [*enter, str(self._root / "hosts"), str(self.volume), str(scratch), sys.executable, *command[1:]],
            cwd="/", env={**path, **written},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    @staticmethod
    def _own(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        os.chown(folder, USER, USER)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.communicate(timeout=30)


@pytest.fixture
def started() -> Iterator[Pods]:
    network = Network(5)  # one to spare
    root = Path(tempfile.mkdtemp(prefix="psrun-pods-"))  # where another user may go, other than in tmp_path
    root.chmod(0o755)
    run_pods = Pods(network, root)
    yield run_pods
    run_pods.close()
    network.close()
    shutil.rmtree(root)


SERVERS = [Task("worker", 0), Task("worker", 1), Task("ps", 0)]
CHIEF = Task("chief", 0)


def test_probes_distinguish_a_server_that_answers_from_one_that_hangs(started):
    started.describe("kubernetes.kind=indexed_jobs", *CLUSTER)
    worker = SERVERS[0]
    probe = started.described[worker].container["livenessProbe"]["exec"]["command"]
    nobody = started.within(worker, probe)
    nobody.communicate(timeout=30)
    assert nobody.returncode == 1
    server = started.start(worker)
    for _ in range(10):
        asked = started.within(worker, probe)
        out, _ = asked.communicate(timeout=30)
        if asked.returncode == 0:
            break
    assert asked.returncode == 0, out
    server.send_signal(19)  # SIGSTOP
    asked = started.within(worker, probe)
    asked.communicate(timeout=30)
    assert asked.returncode == 1


def test_a_ps_that_comes_back_at_another_address(started):
    """As Jobs do it: a new pod with the old name, and, because the exit code is 175, a new chief; workers stay."""
    started.describe("kubernetes.kind=indexed_jobs", *CLUSTER, "trainer.epochs=40")
    servers = {task: started.start(task) for task in SERVERS}
    chief = started.start(CHIEF)
    folder, ps = started.volume / "run-1", Task("ps", 0)
    until(lambda: len(checkpoints(folder)) >= 2 or chief.poll() is not None, "two checkpoints")
    server = psutil.Process(servers[ps].pid).children(recursive=True) or [psutil.Process(servers[ps].pid)]
    server[-1].kill()
    out, _ = chief.communicate(timeout=60)
    assert chief.returncode == 175, out
    assert "ps-0" in out
    servers[ps].communicate(timeout=10)
    saved = checkpoints(folder)[-1]
    started.move(ps)
    servers[ps], again = started.start(ps), started.start(CHIEF)
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0, out
    assert [server.wait(timeout=20) for server in servers.values()] == [0, 0, 0]
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "restored"] == [saved]
    result = json.loads((folder / "run.json").read_text())
    assert (result["status"], result["cluster"]["topology"]) == ("completed", "kubernetes")
    assert result["steps"]["applied"] >= 800
    assert folder.stat().st_uid == USER


def checkpoints(folder: Path) -> list[int]:
    try:
        return [each["step"] for each in json.loads((folder / "run.json").read_text())["checkpoints"]]
    except (OSError, KeyError):
        return []


def until(condition, what: str, within_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what} within {within_s} s"
        time.sleep(0.1)
