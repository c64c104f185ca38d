"""cluster=ray before anything starts: requested resources, and errors in them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support import run_config

from psrun.config.topology import Task
from psrun.engines.ray.choice import Ray
from psrun.errors import ClusterError, Interrupted
from psrun.process import SUPERVISOR_PID
from psrun.roles import table
from psrun.runs.sweeps import jobs as sweep_jobs


def test_the_started_process_drives_and_the_others_are_tasks(monkeypatch):
    run = run_config("cluster=ray")
    assert table.identify(run, {}).role == "supervisor"
    listed = '{"cluster": {"worker": ["h:1"], "ps": ["h:2"], "chief": ["h:3"]}, "task": {"type": "ps", "index": 0}}'
    assert table.identify(run, {SUPERVISOR_PID: "1", "TF_CONFIG": listed}).role == "server"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([(4, 1000), (2, 1000)], None),
        ([(5, 2000)], None),
        ([(6, 1000)], "3 tasks request 5 CPUs and 2,000 bytes of memory in total, but the nodes have 1 x 6 CPUs and"),
        ([(3, 1000), (1, 1000)], "3 tasks request 5 CPUs and 2,000 bytes of memory in total, but the nodes have"),
        ([(1, 5000)] * 9, "no node has room for ps-0, which requests 2 CPUs and 1,000 bytes of memory; 3 tasks"),
        ([], "but the nodes have nothing"),
    ],
)  # fmt: skip
def test_a_lack_of_resources_is_named_before_ray_waits_for_them(nodes, message):
    pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    from psrun.engines.ray.backend import lack_of_resources

    bundles = {
        Task("chief", 0): {"CPU": 1.0},
        Task("ps", 0): {"CPU": 2.0, "memory": 1000},
        Task("ps", 1): {"CPU": 2.0, "memory": 1000},
    }
    shortage = lack_of_resources(bundles, [{"CPU": float(cpus), "memory": float(memory)} for cpus, memory in nodes])
    assert shortage is None if message is None else message in shortage
    tenths = {Task("worker", index): {"CPU": 0.7} for index in range(10)}
    assert lack_of_resources(tenths, [{"CPU": 7.0}]) is None


@pytest.mark.thorough
def test_nodes_on_one_host_that_find_the_same_port_free_are_asked_again():
    pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    from psrun.engines.ray.backend import distinct
    from psrun.engines.ray.node import NodeInfo

    def info(address: str, *ports: int) -> NodeInfo:
        return NodeInfo("node", address, "host", list(ports), True, "1")

    good = [info("10.0.0.1", 1, 2), info("10.0.0.1", 3), info("10.0.0.2", 1)]
    assert distinct(iter([[info("10.0.0.1", 1, 2), info("10.0.0.1", 2)], good]).__next__) == good
    with pytest.raises(ClusterError, match="the same free port, 5 times"):
        distinct(lambda: [info("10.0.0.1", 1), info("10.0.0.1", 1)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("raised", "signum"),
    [(SystemExit(15), signal.SIGTERM), (Interrupted(signal.SIGINT), signal.SIGINT)],  # Ray's handler, and psrun's
)
def test_a_signal_while_ray_starts_interrupts_the_run(monkeypatch, raised, signum):
    ray = pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    from psrun.engines.ray import connection

    def init(**options: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        raise raised

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    for name in ("RAY_AUTH_TOKEN", "RAY_gcs_rpc_server_reconnect_timeout_s"):
        monkeypatch.setenv(name, "1")
    before, own = signal.getsignal(signal.SIGTERM), set(Path("/tmp").glob("psrun-ray-*"))
    cluster = run_config("cluster=ray").cluster
    assert isinstance(cluster, Ray)
    with pytest.raises(Interrupted) as error, connection.opened(cluster, []):
        pass
    assert error.value.exit_code == Interrupted(signum).exit_code
    assert signal.getsignal(signal.SIGTERM) is before
    assert set(Path("/tmp").glob("psrun-ray-*")) <= own


def test_a_sweep_counts_tasks_of_this_machine_only():
    here, there = (run_config("cluster=ray", f"cluster.address={address}") for address in ("null", "'head:6379'"))
    assert sweep_jobs.jobs_at_once([here], cores=8, memory_bytes=10**12) == 4
    assert sweep_jobs.jobs_at_once([there], cores=8, memory_bytes=10**12) == 8
