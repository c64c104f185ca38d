"""How often each example was applied, over the processes of an epoch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from example_ids import Numbered

from psrun.closures import audit

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(audit, "_DEVICE", "CPU:0")
    program = SimpleNamespace(source=Numbered(), distribution=SimpleNamespace(num_workers=2))
    return lambda earlier=None: audit.Audit(program, earlier)


def test_a_process_continues_the_counts_of_the_one_before_within_an_epoch(make):
    first = make()
    first.count(np.array([0, 1, 2, 2, 200 + 3], np.int32))  # the second worker has those from 200 on
    second = make(first.state())
    second.count(np.array([1, 200 + 4, 4], np.int32))
    counts = second.epoch()
    assert counts["seen"] == {"0": 195, "1": 2, "2": 3, "3+": 0}
    assert counts["by_worker"]["worker-0"] == {"seen": 2, "also_elsewhere": 2}
    assert counts["by_worker"]["worker-1"] == {"seen": 1, "also_elsewhere": 1}
    assert second.epoch()["seen"] == {"0": 200, "1": 0, "2": 0, "3+": 0}


def test_a_state_of_other_data_does_not_count(make):
    other = make()
    other._shape = (2, 100)
    other._counts = audit.tf.Variable(audit.tf.ones([200], audit.tf.int32))
    other._earlier = np.zeros(100, np.uint8)
    assert make(other.state()).epoch()["seen"]["0"] == 200
