"""The moments of a training, and its actions at them: checkpoints, evaluations, early stopping, losses, stops."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_training import NUM_EVAL, Killed, Script, ScriptedTraining, kept
from support import run_config

from psrun.checkpoint.storage import Position
from psrun.errors import DataExhaustedError, Interrupted, NonFiniteLossError
from psrun.training.loop import Actions, Piece, TrainingRun

pytestmark = pytest.mark.tensorflow


def training(path: Path, *, epochs: int = 2, steps: int = 5, **keys: Any) -> ScriptedTraining:
    return ScriptedTraining(path / "run", trainer__epochs=epochs, trainer__steps_per_epoch=steps, **keys)


def rule(metric: str, mode: str, *, patience: int, min_delta: float = 0.0) -> dict[str, Any]:
    """Of `early_stopping` or `reduce_lr`."""
    return {"metric": metric, "mode": mode, "patience": patience, "min_delta": min_delta}


def stop(run: Any) -> None:
    run.stop.follow(signal.SIGTERM)


def end_early(run: Any) -> None:
    run.folder.end_early("enough")


def die(run: Any) -> None:
    raise Killed


def test_the_actions_of_an_epoch_are_done_in_their_order(tmp_path):
    """The checkpoint before the evaluation, which may fail; hooks with all metrics."""
    done = training(tmp_path, checkpoint__every_steps=4)
    run = done.train()
    assert done.moments == [
        "scheduled 2", "scheduled 4", "saved 4", "scheduled 5",
        "epoch 5", "warning 5", "saved 5", "evaluated 5", "evaluation 5", "hooks 5",
        "scheduled 7", "scheduled 9", "saved 9", "scheduled 10",
        "epoch 10", "saved 10", "evaluated 10", "evaluation 10", "hooks 10",
    ]  # fmt: skip
    mean = sum(1 / step for step in range(6, 11)) / 5
    assert done.hooked[-1] == (10, pytest.approx({"loss": mean, "val_loss": 0.1}))
    assert done.compared[-1] == done.hooked[-1]
    assert run.steps == {"applied": 10, "scheduled": 10, "repeated": 0}
    assert done.of("epoch")[-1].data["metrics"]["auc"] is None
    assert "auc" in done.of("warning")[0].data["message"]


@pytest.mark.parametrize(
    ("keys", "packed", "steps"),
    [
        ({}, 2, [5, 10]),
        ({"checkpoint__every_epochs": None}, 2, [10]),
        ({"checkpoint__every_epochs": 2}, 2, [10]),
        ({"checkpoint__every_steps": 3}, 1, [3, 5, 8, 10]),
        ({"checkpoint__every_steps": 3}, 2, [4, 5, 9, 10]),
        ({"checkpoint__every_epochs": None, "checkpoint__every_steps": 5}, 1, [5, 10]),  # due as the epoch ends: once
        ({"checkpoint__every_epochs": None, "checkpoint__every_s": 0}, 1, [*range(1, 11)]),
        ({"checkpoint": {"kind": "none"}}, 2, []),
    ],
)
def test_checkpoints_are_taken_when_they_are_due(tmp_path, keys, packed, steps):
    done = training(tmp_path, **keys)
    done.train(Script(packed=packed))
    assert sorted(done.saved) == steps
    for step, position in done.saved.items():
        assert kept(position) == (*divmod(step, 5), step)


@pytest.mark.parametrize("moment", ["hooks 5", "end", "stop"])
def test_a_checkpoint_is_on_disk_when_it_is_needed(tmp_path, moment):
    """By a hook after its epoch, at the end of the training, and before the process ends."""
    done = training(tmp_path)
    done.write_s = 0.05
    found: list[list[int]] = []

    def look(run: Any) -> None:
        found.append([*done.written])

    if moment == "end":
        done.train()
        look(done.run)
        assert found == [[5, 10]]
    elif moment == "stop":
        with pytest.raises(Interrupted):
            done.train(Script(at={"scheduled 2": stop}))
        look(done.run)
        assert found == [[2]]
    else:
        done.train(Script(at={moment: look}))
        assert found == [[5]]


@pytest.mark.parametrize(
    ("every", "steps"),
    [(1, [5, 10, 15, 20, 25]), (2, [10, 20, 25]), (9, [25])],
)
def test_evaluations_are_done_when_they_are_due_and_after_the_last_epoch(tmp_path, every, steps):
    done = training(tmp_path, evaluation__every=every, epochs=5)
    done.train()
    assert [event.step for event in done.of("evaluation")] == steps


def test_an_evaluation_of_another_number_of_examples_is_reported(tmp_path):
    done = training(tmp_path, epochs=1)
    done.train(Script(examples_seen=NUM_EVAL + 1))
    assert f"evaluated {NUM_EVAL + 1} examples" in done.of("warning")[-1].data["message"]


@pytest.mark.parametrize("first", [1, 3, 4, 5, 7])
def test_what_is_not_finite_is_neither_saved_nor_reported(tmp_path, first):
    done = training(tmp_path, checkpoint__every_steps=1)
    with pytest.raises(NonFiniteLossError):
        done.train(Script(packed=1, loss=lambda step: float("nan") if step >= first else 1.0))
    assert sorted(done.saved) == [*range(1, first)]
    assert [event.step for event in done.of("epoch")] == [5][: first > 5]


def test_a_loss_that_the_monitor_saw_ends_the_epoch(tmp_path):
    def seen(run: Any) -> None:
        run.monitor.non_finite_loss = float("inf")

    done = training(tmp_path)
    with pytest.raises(NonFiniteLossError):
        done.train(Script(at={"scheduled 2": seen}))
    assert done.moments == ["scheduled 2"]


@pytest.mark.parametrize("available", [4, 7])
def test_data_that_ends_is_no_epoch(tmp_path, available):
    done = training(tmp_path)
    with pytest.raises(DataExhaustedError):
        done.train(Script(available=available))
    assert sorted(done.saved) == [5][: available > 5]


@pytest.mark.parametrize("stopped", [False, True])
def test_an_epoch_without_all_of_its_steps_is_an_error_unless_a_callback_stopped_it(tmp_path, stopped):
    """Also where the data ends exactly at the end of an execution."""
    done = training(tmp_path)

    def shorter(run: Any) -> None:
        run.stop.requested.set()  # no further piece; the process is not to end
        run.lockstep = SimpleNamespace(agreed=False)
        done.program.network.stop_training = stopped

    script = Script(at={"scheduled 4": shorter})
    if stopped:
        assert done.train(script).epoch.is_over
    else:
        with pytest.raises(DataExhaustedError):
            done.train(script)
        assert done.saved == {}


def test_a_training_that_ends_early_is_saved_and_evaluated_and_trains_nothing_when_it_is_resumed(tmp_path):
    done = training(
        tmp_path,
        early_stopping=rule("loss", "min", patience=2),
        evaluation__every=5,
        checkpoint__every_epochs=5,
        epochs=9,
    )
    run = done.train(Script(loss=lambda step: 1.0))
    assert run.steps["applied"] == 15
    assert sorted(done.saved) == [15]
    assert [event.step for event in done.of("evaluation")] == [15]
    done.moments.clear()
    again = done.train()
    assert (again.scheduled, done.moments) == (0, [])


def test_an_evaluation_that_a_finished_training_lacks_is_caught_up(tmp_path):
    done = training(tmp_path)
    with pytest.raises(Killed):
        done.train(Script(at={"evaluated 10": die}))
    done.moments.clear()
    done.train()
    assert done.moments == ["evaluated 10", "evaluation 10"]
    assert done.compared[-1] == (10, {"val_loss": 0.1})


@pytest.mark.parametrize("moment", ["scheduled 2", "saved 5", "evaluated 5", "hooks 5"])
def test_a_request_to_end_early_holds_after_the_epoch(tmp_path, moment):
    done = training(tmp_path)
    run = done.train(Script(at={moment: end_early}))
    assert run.steps["applied"] == 5
    assert sorted(done.saved) == [5]


@pytest.mark.parametrize(
    ("moment", "position", "last"),
    [
        ("scheduled 2", (0, 2, 2), "saved 2"),
        ("saved 3", (0, 3, 3), "saved 3"),  # nothing is saved twice
        ("scheduled 5", (1, 0, 5), "hooks 5"),  # the epoch is over, but for its evaluation
        ("saved 5", (1, 0, 5), "hooks 5"),
        ("evaluated 5", (1, 0, 5), "evaluation 5"),
        ("hooks 5", (1, 0, 5), "hooks 5"),
    ],
)
def test_a_process_that_is_asked_to_end_saves_reports_and_is_continued(tmp_path, moment, position, last):
    done = training(tmp_path, checkpoint__every_steps=3)
    with pytest.raises(Interrupted):
        done.train(Script(packed=1, at={moment: stop}))
    assert kept(done.saved[max(done.saved)]) == position
    assert last in done.moments[-3:]
    run = done.train(Script(packed=1))
    assert run.steps == {"applied": 10, "scheduled": 10, "repeated": 0}
    assert [event.step for event in done.of("epoch")] == [5, 10]


def test_the_evaluation_of_the_trainer_itself_is_reported_also_by_a_process_that_ends(tmp_path):
    done = training(tmp_path, epochs=1)

    def validated(run: Any) -> None:
        stop(run)
        run.epoch.validation = (NUM_EVAL, {"loss": 0.25}, 1.5)

    with pytest.raises(Interrupted):
        done.train(Script(at={"saved 5": validated}), evaluates=False)
    (evaluation,) = done.of("evaluation")
    assert (evaluation.data["mode"], evaluation.data["metrics"]) == ("validation", {"loss": 0.25})
    assert evaluation.data["seconds"] == 1.5


def test_the_checkpoint_of_an_epoch_has_the_learning_rate_that_its_loss_decided_on(tmp_path):
    lowered = rule("loss", "min", patience=1, min_delta=9) | {"factor": 0.5, "min_lr": 0.1}
    done = training(tmp_path, reduce_lr=lowered, epochs=4)
    done.train()
    assert done.rates == {5: 0.5, 10: 0.25, 15: 0.125, 20: 0.1}


MOMENTS = ("scheduled", "saved", "evaluated", "hooks")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_whenever_processes_end_each_step_is_trained_once(tmp_path_factory, data):
    """Processes are killed, or asked to end, one after the other; the last one trains to the end."""
    epochs = data.draw(st.integers(1, 3), "epochs")
    steps = data.draw(st.integers(1, 5), "steps per epoch")
    every = data.draw(st.sampled_from([None, 1, 2, 3]), "checkpoint.every_steps")
    done = training(tmp_path_factory.mktemp("ended"), checkpoint__every_steps=every, epochs=epochs, steps=steps)
    packed = data.draw(st.integers(1, 3), "steps of an execution")
    ends = data.draw(
        st.lists(st.tuples(st.sampled_from(MOMENTS), st.integers(1, epochs * steps), st.booleans()), max_size=3)
    )
    for moment, step, is_killed in ends:
        before = dict(done.saved)
        script = Script(packed=packed, at={f"{moment} {step}": die if is_killed else stop})
        try:
            done.train(script)
        except Killed:
            pass
        except Interrupted:
            assert max(done.saved) >= step  # what was trained is saved
        assert done.saved.items() >= before.items()
    run = done.train(Script(packed=packed))
    assert run.steps == {"applied": epochs * steps, "scheduled": epochs * steps, "repeated": 0}
    for step, position in done.saved.items():
        assert kept(position) == (*divmod(step, steps), step)
    reported = [event.step for event in done.of("epoch")]
    assert sorted(set(reported)) == [steps * epoch for epoch in range(1, epochs + 1)]
    evaluated = [event.step for event in done.of("evaluation")]
    assert evaluated[-1] == reported[-1]  # the last epoch; a process that was to end leaves out that of its epoch
    assert set(evaluated) <= set(reported)


# -- the loop alone


@pytest.fixture
def run() -> Any:
    program: Any = SimpleNamespace(
        config=run_config("cluster=none", "evaluation=none", "trainer.epochs=2", "trainer.steps_per_epoch=5"),
        distribution=SimpleNamespace(coordinator=None, num_workers=1),
        network=SimpleNamespace(reset_metrics=lambda: None), own_step=None, iterations=0,
        data=SimpleNamespace(own_streams=True),
    )  # fmt: skip
    folder: Any = SimpleNamespace(path=Path("run"), root=SimpleNamespace(ends_early=lambda: False, pause_epoch=None))
    stop: Any = SimpleNamespace(requested=threading.Event())
    reporter: Any = SimpleNamespace(warn=print)
    return TrainingRun(program, reporter, folder=folder, start=Position(0, steps=3), stop=stop)


def test_a_run_goes_through_its_moments(run):
    moments: list[Any] = []

    def noted(moment):
        return lambda *, context: moments.append((moment, context.epoch, dict(context.metrics)))

    run.plan(Actions(**{name: [noted(name)] for name in Actions.__dataclass_fields__}))
    for epoch in run.epochs(lambda: moments.append("joined")):
        for piece in epoch.pieces():
            piece.num_steps = min(piece.max_steps, 4)
            run.after_piece(piece)
        run.after_epoch(epoch, lambda: {"loss": 1.0, "auc": None})
    run.end()
    metrics = {"loss": 1.0}  # without undefined ones
    first = [("before_epoch", 1, {}), ("during_epoch", 1, {}), ("after_piece", 1, {})]
    second = [("before_epoch", 2, {}), *2 * [("during_epoch", 2, {}), ("after_piece", 2, {})]]
    assert moments == [
        *first, "joined", ("when_joined", 1, {}), ("after_epoch", 1, metrics),
        *second, "joined", ("when_joined", 2, {}), ("after_epoch", 2, metrics), ("at_end", 2, metrics),
    ]  # fmt: skip
    assert run.scheduled == 2 + 5


def test_calls_in_another_order_raise(run):
    with pytest.raises(RuntimeError, match="no epoch is running"):
        run.after_piece(Piece(1, 1))
    epoch = run.begin(lambda: None)
    with pytest.raises(RuntimeError, match="epoch 1 is not over"):
        run.begin(lambda: None)
    run.join()
    with pytest.raises(RuntimeError, match="no epoch is running"):
        run.after_piece(Piece(1, 1))
    run.after_epoch(epoch, dict)
    with pytest.raises(RuntimeError, match="epoch 1 is not running"):
        run.after_epoch(epoch, dict)
