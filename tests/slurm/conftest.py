"""What tests on a real Slurm start, and that nothing of it is left after them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from running import Cluster
from slurm_engine import Slurm, missing

NUM_NODES = 4


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Four nodes n0 to n3 of four cores each."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="psrun-slurm-") as root:  # short: sockets are in it
        made = Slurm(Path(root) / "slurm", num_nodes=NUM_NODES)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def start(slurm: Slurm, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts psrun on the first node, after what is given as prefix, such as srun; nothing of it may be left."""
    clusters: list[Cluster] = []

    def run(*arguments: str, prefix: Sequence[str] = (), **environment: str) -> Cluster:
        root = tmp_path / f"run {len(clusters)}"
        root.mkdir()
        there = {**slurm.commands, **environment}
        clusters.append(Cluster(root, *arguments, prefix=[*slurm.prefix, *prefix], **there))
        return clusters[-1]

    yield run
    slurm.run("scancel", "--me", check=False)
    try:
        slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "empty queue")
        slurm.wait(lambda: not left(tmp_path), "end of all tasks", within_s=20)
    finally:
        for process in left(tmp_path):
            process.kill()
        for cluster in clusters:
            cluster.close()


def left(root: Path) -> list[psutil.Process]:
    """Processes of psrun that work below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if "psrun" in " ".join(process.cmdline()) and process.cwd().startswith(str(root)):
                found.append(process)
        except psutil.Error:
            continue
    return found
