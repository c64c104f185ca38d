"""What fault tests start, and that nothing of it is left after them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from fault_injection import PORT, TASKS, Cluster, Network


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts psrun with the given overrides; after the test nothing of it may be left."""
    clusters: list[Cluster] = []

    def run(*arguments: str, prefix: Sequence[str] = (), **environment: str) -> Cluster:
        root = tmp_path / f"cluster {len(clusters)}"  # with a blank, as people have them
        root.mkdir()
        clusters.append(Cluster(root, *arguments, prefix=prefix, **environment))
        return clusters[-1]

    yield run
    left = [process for cluster in clusters for process in cluster.left()] if all(
        cluster.process.poll() is not None for cluster in clusters
    ) else []  # fmt: skip
    for cluster in clusters:
        cluster.close()
    assert left == []


@pytest.fixture
def network() -> Iterator[Network]:
    """Four hosts."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip (package iproute2)")
    hosts = Network(4)
    yield hosts
    hosts.close()


@pytest.fixture
def tasks(start, network):
    """Starts tasks of one cluster, each on its host and in its own run folder."""
    where = {name: f"{network.hosts[index]}:{PORT}" for name, index in TASKS.items()}
    listed = {
        "chief": [where["chief-0"]], "ps": [where["ps-0"]], "worker": [where["worker-0"], where["worker-1"]]
    }  # fmt: skip

    def run(name: str, *arguments: str, **environment: str) -> Cluster:
        job, _, index = name.partition("-")
        text = json.dumps({"cluster": listed, "task": {"type": job, "index": int(index)}})
        on = network.on(network.hosts[TASKS[name]])
        return start("cluster=tf_config", *arguments, prefix=on, TF_CONFIG=text, **environment)

    return run


def left(root: Path) -> list[psutil.Process]:
    """Processes of psrun that work below a folder."""
    processes = []
    for process in psutil.process_iter():
        try:
            if "psrun" in " ".join(process.cmdline()) and process.cwd().startswith(str(root)):
                processes.append(process)
        except psutil.Error:
            continue
    return processes
