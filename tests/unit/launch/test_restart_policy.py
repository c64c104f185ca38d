"""Whether and when a lost task is restarted."""

from __future__ import annotations

import pytest

from psrun.config.choices import RestartLimits
from psrun.launch.restart_policy import RestartPolicy

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
