"""Probes of servers: which answer, all at once."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import portpicker

from psrun.cluster.probe import answering, answers

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
