"""A Slurm of four nodes on this host, and runs on it of which nothing may be left."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from cluster_fixtures import left
from fault_injection import Cluster
from slurm_engine import Slurm, missing

NUM_NODES = 4


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Four nodes n0 to n3 of four cores each."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="psrun-slurm-") as root:  # short: sockets are in it
        nodes = Slurm(Path(root) / "slurm", num_nodes=NUM_NODES)
        try:
            yield nodes
        finally:
            nodes.close()


@pytest.fixture
def on_slurm(slurm: Slurm, start, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts psrun on the first node, after what is given as prefix, such as srun; nothing of it may be left."""

    def run(*arguments: str, prefix: Sequence[str] = (), **environment: str) -> Cluster:
        return start(*arguments, prefix=[*slurm.prefix, *prefix], **{**slurm.commands, **environment})

    yield run
    slurm.run("scancel", "--me", check=False)
    try:
        slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), "empty queue")
        slurm.wait(lambda: not left(tmp_path), "end of all tasks", within_s=20)
    finally:
        for process in left(tmp_path):
            process.kill()
