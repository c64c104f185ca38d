"""Private names of TensorFlow that psrun depends on, each pinned."""

from __future__ import annotations

import portpicker
import pytest

from psrun import tf_internals
from psrun.cluster.probe import ServerStatus, statuses


@pytest.mark.inprocess
def test_the_incarnation_tells_servers_apart(cluster_spec):
    addresses = dict(enumerate(cluster_spec[2].job_tasks("worker")))
    nowhere = f"localhost:{portpicker.pick_unused_port()}"
    ask = {"timeout_s": 10.0, "incarnation": tf_internals.incarnation}
    first, again = (statuses({**addresses, "nowhere": nowhere}, **ask) for _ in range(2))
    assert first == again
    assert first["nowhere"] == ServerStatus(answers=False, refused=True)
    assert first[0].answers
    assert None not in (first[0].incarnation, first[1].incarnation)
    assert first[0].incarnation != first[1].incarnation
