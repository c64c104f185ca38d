"""A start that does not get on: a deadline names what it waits for, and a signal ends it. Probes of servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import portpicker
import pytest
from bounds import BOUND_S
from support import HARNESS

from psrun.cluster.probe import answering, answers
from psrun.config.topology import CHIEF, Task, Topology
from psrun.errors import ClusterError

WORKER = Task("worker", 0)
# A server that accepts connections and never answers; TensorFlow then waits without a limit.
BLOCKED = """
import socket
from psrun import process
process.prepare()
process._HANDLED_WITHIN_S = 0.2
stop = process.Stop()
stop.install(lambda interrupted: print(interrupted, flush=True))
from psrun.cluster import strategy
from support import run_config
silent = socket.create_server(("127.0.0.1", 0))
address = "127.0.0.1:%d" % silent.getsockname()[1]
strategy._CONNECT_WITHIN_S = 1.0
addresses = {"worker": {0: address}, "ps": {0: address}}
strategy.start_in_process = lambda **options: strategy.tf.train.ClusterSpec(addresses)
def give_up(error):
    print(str(error).replace(address, "ADDRESS"), flush=True)
run = run_config("cluster=inprocess")
strategy.connect(run.cluster, run.partitioner, give_up=give_up)
"""


@pytest.mark.tensorflow
def test_a_connection_that_is_not_made_in_time_is_an_error_and_a_signal_ends_the_wait():
    path = os.pathsep.join([str(HARNESS), *sys.path])
    variables = {**os.environ, "PYTHONPATH": path}
    blocked = subprocess.Popen([sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, text=True, env=variables)
    late = "TensorFlow has not connected within 1 s to ps-0 at ADDRESS, worker-0 at ADDRESS\n"
    assert blocked.stdout.readline() == late
    blocked.send_signal(signal.SIGTERM)
    assert blocked.communicate(timeout=BOUND_S)[0] == "interrupted by SIGTERM\n"
    assert blocked.returncode == 175


@pytest.mark.tensorflow
def test_a_synchronous_cluster_waits_for_its_tasks_with_a_limit():
    from psrun.cluster import strategy

    topology = Topology({CHIEF: "a:1", WORKER: "b:2"}, CHIEF)
    looks = []

    def is_up(task):
        looks.append(task)
        return task == CHIEF or looks.count(WORKER) > 2

    strategy.wait_for_tasks(topology, is_up, within_s=60)
    assert looks == [CHIEF, WORKER, WORKER, WORKER]
    message = r"not started within 0 s \(cluster.restart.start_timeout_s\): worker-0 at b:2"
    with pytest.raises(ClusterError, match=message) as raised:
        strategy.wait_for_tasks(topology, lambda task: task == CHIEF, within_s=0)
    assert raised.value.task == "worker-0"


NUM_SERVERS = 16
WITHIN_S = 1.0


def test_servers_that_answer_are_told_from_those_that_only_accept_in_the_time_of_one():
    """A stopped process accepts connections and does not answer. A name that is unknown does not answer, either."""
    serving = grpc.server(ThreadPoolExecutor(1))
    port = serving.add_insecure_port("localhost:0")
    serving.start()
    silent = [socket.create_server(("localhost", 0)) for _ in range(NUM_SERVERS)]
    try:
        addresses = {f"silent-{index}": f"localhost:{each.getsockname()[1]}" for index, each in enumerate(silent)}
        addresses |= {f"up-{index}": f"localhost:{port}" for index in range(NUM_SERVERS)}
        addresses |= {"closed": f"localhost:{portpicker.pick_unused_port()}", "unknown": "no-host.invalid:1"}
        began_s = time.monotonic()
        up = answering(addresses, timeout_s=WITHIN_S)
        took_s = time.monotonic() - began_s
        assert up == {f"up-{index}" for index in range(NUM_SERVERS)}
        assert took_s < NUM_SERVERS * WITHIN_S / 2
        assert answers(addresses["up-0"], timeout_s=WITHIN_S)
        assert not answers(addresses["closed"], timeout_s=WITHIN_S)
        assert answering({}, timeout_s=WITHIN_S) == set()
    finally:
        serving.stop(None).wait()
        for each in silent:
            each.close()
