"""Whether a task hangs, judged from readings at times that the tests pass in; and when a lost one is restarted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psrun.config.choices import Restart, RestartLimits
from psrun.launch.losses import HangDetector, RestartPolicy, Silence, TrainingStatus, progress_limit_s
from psrun.results.task_files import Heartbeat

BEAT = Heartbeat(pid=1, at_s=1000.0, state="training", step=7)
LIMITS = Restart(
    0, 0.0, 0.0, 1.0, heartbeat_timeout_s=10.0, progress_timeout_s=60.0, progress_factor=10.0, start_timeout_s=600.0
)


@pytest.fixture
def detector() -> HangDetector:
    """One of a task that is started at time 0 and looked at as rarely as a test likes."""
    return HangDetector(LIMITS, 0.0, held_up_s=float("inf"))


LATER = replace(BEAT, at_s=1001.0)


@pytest.mark.parametrize(
    "readings",
    [
        [(None, 600.0, None), (None, 601.0, "did not come up within 600 s")],
        [(BEAT, 5.0, None), (BEAT, 15.0, None), (LATER, 16.0, None), (LATER, 27.0, "hangs: not heard of for 11 s")],
        # A task that removes its heartbeat has time to exit, however long it has run.
        [(BEAT, 5000.0, None), (None, 5001.0, None), (None, 5601.0, None), (None, 5602.0, "did not exit within 600 s")],
    ],
    ids=["none", "the same", "no longer"],
)
def test_a_task_without_a_new_heartbeat_has_a_fault(detector, readings):
    for beat, now_s, fault in readings:
        assert detector.heartbeat_fault(beat, now_s) == fault


@pytest.mark.parametrize("clock_s", [-1e6, 0.0, 1e6])
def test_the_clock_of_the_task_need_not_be_that_of_the_observer(detector, clock_s):
    for now_s in range(100):
        assert detector.heartbeat_fault(replace(BEAT, at_s=clock_s + now_s), now_s) is None


def test_a_chief_that_is_silent_together_with_a_server_may_wait_for_it(detector):
    server = HangDetector(LIMITS, 0.0, held_up_s=float("inf"))
    assert detector.heartbeat_fault(BEAT, 0.0) is server.heartbeat_fault(BEAT, 4.0) is None
    for now_s, waits in ((8.0, False), (10.0, True), (20.0, True), (21.0, False)):
        detector.heartbeat_fault(BEAT, now_s)
        server.heartbeat_fault(BEAT, now_s)
        assert detector.may_wait_for([server]) == waits
    detector.waited(21.0)  # the server is killed
    assert detector.heartbeat_fault(BEAT, 31.0) is None
    assert detector.heartbeat_fault(BEAT, 32.0) == "hangs: not heard of for 11 s"


TRAINING = TrainingStatus.of(BEAT)


@pytest.mark.parametrize(
    ("training", "limit_s"),
    [
        (TRAINING, 60.0),
        (replace(TRAINING, slowest_step_s=5.0), 60.0),
        (replace(TRAINING, slowest_step_s=7.0), 70.0),
        (TrainingStatus.of(None), 600.0),
        (replace(TRAINING, state="evaluating"), 600.0),
        (replace(TRAINING, state="saving", slowest_step_s=100.0), 1000.0),
    ],
)
def test_progress_has_the_limit_of_the_state_and_of_the_slowest_step(training, limit_s):
    assert progress_limit_s(LIMITS, training) == limit_s


def test_a_training_that_does_not_change_makes_no_progress(detector):
    assert detector.progress_fault(TRAINING, 100.0) is None
    assert detector.progress_fault(TRAINING, 160.0) is None
    assert detector.progress_fault(TRAINING, 161.0) == "makes no progress: training at step 7 for 61 s"
    assert detector.progress_fault(replace(TRAINING, step=8), 162.0) is None


@pytest.mark.parametrize("change", [{"step": 8}, {"advances": 1}, {"state": "joined"}])
def test_each_change_is_progress(detector, change):
    assert detector.progress_fault(TRAINING, 0.0) is None
    assert detector.progress_fault(replace(TRAINING, **change), 100.0) is None
    assert detector.progress_fault(replace(TRAINING, **change), 160.0) is None


def test_a_change_of_the_cluster_restarts_the_wait_for_progress(detector):
    assert detector.progress_fault(TRAINING, 0.0) is None
    detector.progressed(50.0)
    assert detector.progress_fault(TRAINING, 110.0) is None
    assert detector.progress_fault(TRAINING, 111.0) is not None


def test_time_in_which_the_observer_was_held_up_does_not_count():
    silence = Silence(0.0, held_up_s=2.0)
    for now_s, lasted_s in ((1.0, 1.0), (3.0, 3.0), (100.0, 3.0), (101.0, 4.0), (103.0, 6.0)):
        assert not silence.exceeds(lasted_s, now_s)
        assert silence.lasted_s == lasted_s
    assert silence.exceeds(5.5, 103.0)
    silence.reset(103.5)
    assert not silence.exceeds(0.5, 104.0)


def test_a_machine_that_was_suspended_has_no_hung_tasks():
    detector = HangDetector(LIMITS, 0.0)
    for now_s in range(5):
        assert detector.heartbeat_fault(BEAT, now_s) is None
        assert detector.progress_fault(TRAINING, now_s) is None
    assert detector.heartbeat_fault(BEAT, 5000.0) is None
    assert detector.progress_fault(TRAINING, 5000.0) is None


# -- restarts

POLICY = RestartPolicy(budget=3, first_delay_s=2.0, longest_delay_s=10.0)


def test_the_limits_are_those_of_the_configuration():
    assert RestartPolicy.of(RestartLimits(3, 2.0, 10.0, 25.0)) == POLICY


def test_the_delay_doubles_from_the_second_restart_on_up_to_the_longest():
    delays_s = [POLICY.due_s(num_restarts, now_s=100.0) - 100.0 for num_restarts in range(6)]
    assert delays_s == [0.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize(("first_delay_s", "delay_s"), [(0.0, 0.0), (0.5, 10.0)])
def test_a_task_may_be_restarted_thousands_of_times(first_delay_s, delay_s):
    assert RestartPolicy(9999, first_delay_s, 10.0).due_s(5000, now_s=0.0) == delay_s


@pytest.mark.parametrize(("budget", "allowed"), [(0, []), (1, [0]), (3, [0, 1, 2])])
def test_the_budget_is_the_number_of_restarts(budget, allowed):
    policy = RestartPolicy(budget, 1.0, 1.0)
    assert [num_restarts for num_restarts in range(5) if policy.allows(num_restarts)] == allowed
