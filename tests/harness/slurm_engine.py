"""A real Slurm of several nodes on this host, for tests: own munged, slurmctld and slurmds, nothing under /etc.

As root every node is a host of its own (network, UTS and mount namespaces), so that it can be cut off. Else all nodes
are this host, at 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import portpicker
import psutil
from fault_injection import Network

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"  # where daemons are, for people who are not root
_CONF = """
ClusterName=psrun
SlurmctldHost={control}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdSpoolDir={root}/spool-%n
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,batch_sched_delay=1,bf_interval=2
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=30
SlurmdTimeout=15
MessageTimeout=5
MinJobAge=300
CompleteWait=0
SlurmdParameters=config_overrides
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs=4 RealMemory=4000 State=UNKNOWN\n"


def missing() -> str | None:
    """Why there can be no Slurm here; None where there can."""
    lacking = [name for name in NEEDED if shutil.which(name, path=_PATH) is None]
    return f"needs {', '.join(lacking)}: apt-get install slurm-wlm munge" if lacking else None


class Slurm:
    """Nodes n0, n1, ... and their commands."""

    def __init__(self, root: Path, *, num_nodes: int) -> None:
        self.root, self.network = root, None
        if os.geteuid() == 0 and shutil.which("ip") and shutil.which("nsenter"):
            self.network = Network(num_nodes)
        self.nodes = [f"n{index}" for index in range(num_nodes)]
        self._daemons: list[subprocess.Popen] = []
        (root / "state").mkdir(parents=True)
        # What makes Slurm's commands those of this Slurm.
        self.commands = {"PATH": _PATH, "SLURM_CONF": str(root / "slurm.conf")}
        self.environment = {**os.environ, **self.commands}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        here = socket.gethostname().partition(".")[0]
        addresses = self.network.hosts if self.network else ["127.0.0.1"] * len(self.nodes)
        values = {"root": self.root, "user": getpass.getuser(), "port": portpicker.pick_unused_port()}
        text = _CONF.format(control=here, address=addresses[0], **values)
        for name, address in zip(self.nodes, addresses, strict=True):
            host = name if self.network else here
            text += _NODE.format(name=name, host=host, address=address, port=portpicker.pick_unused_port())
        (self.root / "slurm.conf").write_text(text)
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        munge = [f"--{name}-file={self.root}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        self._daemon(["munged", "--foreground", "--force", f"--socket={self.root}/munge.socket", *munge])
        self.wait(lambda: (self.root / "munge.socket").exists(), "munged")
        self._daemon([*self._on(0), "slurmctld", "-D", "-i"])
        self._slurmds = [self._slurmd(index) for index in range(len(self.nodes))]
        self.wait(lambda: self.num_idle() == len(self.nodes), "idle nodes")

    def _on(self, index: int) -> list[str]:
        if self.network is None:
            return []
        return ["nsenter", f"--net=/run/netns/{self.network.space(self.network.hosts[index])}"]

    def _host(self, index: int) -> list[str]:
        """What makes of a process one on that host: it has the host's network, name and list of hosts."""
        if self.network is None:
            return []
        hosts = self.root / f"hosts-{self.nodes[index]}"
        hosts.write_text(f"127.0.0.1 localhost\n{self.network.hosts[0]} {socket.gethostname()}\n")
        script = f"hostname {self.nodes[index]} && mount --bind '{hosts}' /etc/hosts && exec \"$@\""
        return [*self._on(index), "unshare", "--uts", "--mount", "sh", "-c", script, "sh"]

    def _slurmd(self, index: int) -> subprocess.Popen:
        return self._daemon([*self._host(index), "slurmd", "-D", "-N", self.nodes[index]])

    def _daemon(self, command: list[str]) -> subprocess.Popen:
        with (self.root / "daemons.log").open("ab") as log:
            started = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._daemons.append(started)
        return started

    def num_idle(self) -> int:
        return self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split().count("idle")

    # -- commands, as given on the first node

    @property
    def prefix(self) -> list[str]:
        return self._on(0)

    def run(self, *command: str, check: bool = True, timeout_s: float = 60) -> str:
        done = subprocess.run(
            [*self._on(0), *command], env=self.environment, capture_output=True, text=True, timeout=timeout_s,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, number: str) -> dict[str, str]:
        """The fields that Slurm shows for a job."""
        words = self.run("scontrol", "show", "job", number, "-o", check=False).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, condition: Callable[[], Any], what: str, *, within_s: float = 60) -> Any:
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            value = condition()
            if value:
                return value
            time.sleep(0.2)
        logs = "".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.root.glob("*.log")))
        raise AssertionError(f"no {what} within {within_s} s\n{logs}")

    # -- faults

    @contextlib.contextmanager
    def disk(self, index: int, folder: Path) -> Iterator[None]:
        """The node sees a disk of its own at a folder."""
        inside = ["nsenter", f"--mount=/proc/{self._slurmds[index].pid}/ns/mnt"]
        subprocess.run([*inside, "mount", "-t", "tmpfs", "none", str(folder)], check=True)
        try:
            yield
        finally:
            subprocess.run([*inside, "umount", "--lazy", str(folder)], check=True)

    def cut(self, index: int) -> None:
        assert self.network is not None
        self.network.cut(self.network.hosts[index])

    def mend(self, index: int) -> None:
        """The node is back, as after a reboot: a slurmd that kept running would report only after a minute."""
        assert self.network is not None
        self.network.mend(self.network.hosts[index])
        self._slurmds[index].kill()
        self._slurmds[index].wait()
        self._slurmds[index] = self._slurmd(index)

    def close(self) -> None:
        """Ends all jobs, daemons and what they started."""
        if (self.root / "slurm.conf").exists() and len(self._daemons) > 1:
            self.run("scancel", "--signal=KILL", "--full", "--me", check=False)
            self.run("scancel", "--me", check=False)
        every = [child for daemon in self._daemons for child in _family(daemon.pid)]
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
        # A slurmstepd belongs to nobody's family; its environment, not its command line, names its owner.
        mine = f"SLURM_CONF={self.root}/slurm.conf".encode()
        every += [psutil.Process(pid) for pid in psutil.pids() if _has(pid, mine)]
        for process in every:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(every, timeout=5)
        if self.network:
            self.network.close()


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _has(pid: int, variable: bytes) -> bool:
    try:
        return pid != os.getpid() and variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
