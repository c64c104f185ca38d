"""How the supervisor handles what happens to its tasks, in simulated time: see `simulated_cluster`."""

from __future__ import annotations

import dataclasses
import signal

import pytest
from simulated_cluster import HEARTBEAT_S, Fault, Folder, Schedule, World, random_schedule, violations

from psrun.errors import BudgetSpentError, ConfigError, ExitCode, Interrupted

NUM_SCHEDULES = 5_000
NUM_MORE = 15_000
PART = 1_000
# Schedules that the supervisor has failed, and how.
EXAMPLES = {
    "a server is lost while the chief exits after a completed run, which a restart could end with code 1": Schedule(
        "parameter servers",
        (
            Fault(3.596, "reported by the chief", "ps-1"),
            Fault(5.612, "exit", "chief-0", 175),
            Fault(10.165, "exit", "ps-1", -9),
            Fault(11.973, "stall", "ps-0"),
        ),
        seed=89,
    ),
    "the evaluator's machine is lost after the end of the chief, and all tasks are said to restart": Schedule(
        "sidecar", (Fault(8.97, "machine", "evaluator-0"),), budget=2, seed=578
    ),
    "all move with the evaluator, and every step counts as lost": Schedule(
        "sidecar", (Fault(0.665, "machine", "evaluator-0"),), budget=2, steps=120, seed=564
    ),
    "a hung worker exits, and the chief that waited for it is killed before its next heartbeat": Schedule(
        "two workers",
        (
            Fault(1.239, "hang", "worker-0", 1),
            Fault(5.116, "exit", "worker-0", -15),
            Fault(6.871, "hang", "chief-0", 0),
        ),
        seed=1937,
    ),
}


def run(schedule: Schedule) -> World:
    """A run without violations."""
    world = World(schedule).run()
    assert violations(world) == [], schedule
    return world


@pytest.mark.parametrize(
    "first",
    [
        *range(0, NUM_SCHEDULES, PART),
        *(pytest.param(first, marks=pytest.mark.thorough) for first in range(NUM_SCHEDULES, NUM_MORE, PART)),
    ],
)
def test_random_faults(first):
    """A schedule that fails belongs into `EXAMPLES`."""
    for seed in range(first, first + PART):
        run(random_schedule(seed))


@pytest.mark.parametrize("schedule", EXAMPLES.values(), ids=EXAMPLES)
def test_schedules_that_failed_before(schedule):
    """Also where the tasks are looked at in other moments."""
    for seed in range(schedule.seed, schedule.seed + 20):
        run(dataclasses.replace(schedule, seed=seed))


def failures(world: World) -> list[tuple[str, str]]:
    """The task and the cause of each."""
    return [(event.data["task"], event.data["cause"]) for _, event in world.events if event.kind == "failure"]


def restarts(world: World) -> dict[str, int]:
    return {str(task): each.restarts for task, each in world.tasks.items() if each.restarts}


@pytest.mark.parametrize("name", ["parameter servers", "two workers", "sidecar", "synchronous"])
def test_a_run_without_faults(name):
    world = run(Schedule(name))
    assert world.code == ExitCode.DONE
    assert failures(world) == []
    assert world.folder.result["recoveries"] == []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("code", [ExitCode.DONE, ExitCode.FAILED])
def test_a_chief_that_ends_between_two_looks_is_not_restarted(seed, code):
    world = run(Schedule("two workers", chief_ends_with=code, seed=seed))
    assert world.code == code
    assert restarts(world) == {}


def test_a_task_that_hangs_is_killed_after_the_limit_and_its_row_says_how_long_it_took():
    world = run(Schedule("two workers", (Fault(2.0, "hang", "worker-1"),), steps=120))
    ((task, cause),) = failures(world)
    assert (task, cause[:24]) == ("worker-1", "hangs: not heard of for ")
    (row,) = world.folder.result["recoveries"]
    assert HEARTBEAT_S < row["at_s"] - 2.0 < HEARTBEAT_S + 2.0
    assert row["steps_lost"] == 0
    assert restarts(world) == {"worker-1": 1}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("task", ["ps-0", "worker-0"])
def test_a_chief_that_waits_for_a_hung_server_is_not_killed_before_or_after_it(task, seed):
    world = run(Schedule("parameter servers", (Fault(3.0, "hang", task, 1),), steps=120, seed=seed))
    assert [lost for lost, _ in failures(world)] == [task]


def test_a_chief_that_hangs_gets_no_more_time_when_a_server_that_did_not_hang_exits():
    faults = (Fault(3.0, "hang", "chief-0"), Fault(6.0, "exit", "worker-1", -9))
    world = run(Schedule("two workers", faults, steps=120))
    assert [lost for lost, _ in failures(world)] == ["worker-1", "chief-0"]
    assert world.folder.result["recoveries"][-1]["at_s"] - 3.0 < HEARTBEAT_S + 2.0


def test_a_lost_chief_costs_the_steps_since_the_checkpoint_once():
    faults = (Fault(5.0, "exit", "ps-0", -9), Fault(5.2, "exit", "ps-1", -9), Fault(5.3, "exit", "chief-0", -9))
    world = run(Schedule("parameter servers", faults, steps=80))
    rows = world.folder.result["recoveries"]
    assert [row["task"] for row in rows] == [task for task, _ in failures(world)]
    assert len(rows) > 1
    assert 0 < sum(row["steps_lost"] for row in rows) <= world.undone < 20


def test_a_chief_that_exits_because_of_a_lost_worker_reports_the_worker():
    world = run(Schedule("synchronous", (Fault(3.0, "reported by the chief", "worker-0"),)))
    assert failures(world) == [("worker-0", "worker-0 was lost")]
    assert restarts(world) == {"worker-0": 1, "chief-0": 1}


def test_a_chief_reports_a_lost_server_before_the_engine_knows_that_its_machine_is_lost():
    """All tasks move at once."""
    faults = (Fault(3.0, "machine", "ps-0"), Fault(3.5, "exit", "chief-0", 175))
    world = run(Schedule("two workers", faults, budget=1))
    assert set(restarts(world).values()) == {1}
    assert world.code == ExitCode.DONE


def test_the_budget_is_that_of_the_training():
    """It is spent by the loss of a group as by that of a task, and not by an evaluator that restarts where it was."""
    evaluators = tuple(Fault(1.0 + 3 * index, "exit", "evaluator-0", -9) for index in range(2))
    lost = (Fault(2.0, "exit", "ps-0", -9), Fault(5.0, "exit", "worker-0", -9))
    world = run(Schedule("sidecar", (*evaluators, *lost), budget=2))
    assert (world.code, world.raised) == (ExitCode.DONE, None)
    world = run(Schedule("sidecar", (*evaluators, *lost, Fault(7.0, "exit", "worker-0", -9)), budget=2))
    assert isinstance(world.raised, BudgetSpentError)
    assert world.raised.task == "worker-0"


def test_an_evaluator_whose_machine_is_lost_uses_the_budget_as_all_tasks_move():
    faults = (Fault(1.0, "machine", "evaluator-0"), Fault(8.0, "exit", "worker-0", -9))
    world = run(Schedule("sidecar", faults, budget=1, steps=80))
    assert isinstance(world.raised, BudgetSpentError)
    assert world.raised.task == "worker-0"
    assert set(restarts(world).values()) == {1}


@pytest.mark.parametrize("detail", [-9, 1])
def test_the_training_goes_on_without_an_evaluator_that_is_given_up(detail):
    """One that fails for good is not restarted."""
    lost = tuple(Fault(1.0 + 2 * index, "exit", "evaluator-0", detail) for index in range(3))
    world = run(Schedule("sidecar", lost, budget=2))
    assert world.code == ExitCode.DONE
    assert "continues without it" in world.events[-1][1].data.get("action", "")
    assert restarts(world) == ({"evaluator-0": 2} if detail < 0 else {})


def test_a_server_that_ends_before_the_run_is_over_is_lost():
    world = run(Schedule("two workers", (Fault(2.0, "exit", "worker-1", 0),)))
    assert restarts(world) == {"worker-1": 1}


@pytest.mark.parametrize("task", ["chief-0", "worker-0"])
def test_an_error_that_no_restart_mends_ends_the_run_at_once(task):
    world = run(Schedule("parameter servers", (Fault(2.0, "exit", task, ExitCode.USAGE),)))
    assert world.code == ExitCode.USAGE
    assert isinstance(world.raised, ConfigError)  # also of the chief: it ended before it could record its error
    assert str(world.raised).startswith(task)
    assert restarts(world) == {}


def test_the_error_of_a_chief_that_recorded_none_is_the_last_one_of_its_log(tmp_path, monkeypatch):
    text = "Traceback: 1\npsrun: TF_CONFIG.cluster: h:1 is the address of two tasks\n"
    tmp_path.joinpath("chief-0").write_text(text)
    monkeypatch.setattr(Folder, "path", tmp_path)
    world = run(Schedule("parameter servers", (Fault(2.0, "exit", "chief-0", ExitCode.FAILED),)))
    assert (world.code, world.raised.task) == (ExitCode.FAILED, "chief-0")
    assert str(world.raised) == "chief-0: TF_CONFIG.cluster: h:1 is the address of two tasks"


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.RESTART)]
)
@pytest.mark.parametrize("hangs", [False, True])
def test_a_signal_saves_and_ends(signum, code, hangs):
    """A chief that hangs is killed; then its supervisor raises, so that the end is recorded."""
    hang = (Fault(2.5, "hang"),) if hangs else ()
    world = run(Schedule("two workers", (*hang, Fault(3.0, "stop", detail=signum))))
    assert world.code == code
    assert isinstance(world.raised, Interrupted) == hangs
    assert failures(world) == []


def test_the_engine_is_asked_also_while_the_evaluator_is_awaited():
    world = run(Schedule("sidecar"))
    waited_s = world.now_s - world.chief_ended_s
    assert waited_s > 2.0
    assert world.backend.looks_s[-1] > world.chief_ended_s + 1.0
