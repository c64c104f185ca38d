"""Training loops and hooks as a person writes them: `trainer._target_` and `trainer.hooks`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import SAME, STEPS, raw_config, variables

from psrun.config import parse
from psrun.errors import ConfigError, HookError, Interrupted, NonFiniteLossError, TrainingError
from psrun.results.run_folder import RunFolder

LOOP = ["trainer=own_loop", "model=dense"]


def events(folder, kind):
    lines = map(json.loads, (folder.path / "metrics.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] == kind]


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("cluster", "loop"),
    [
        ("inprocess", "tutorial"),
        *(pytest.param("none", loop, marks=pytest.mark.thorough) for loop in ("plain", "tutorial")),
        pytest.param("inprocess", "plain", marks=pytest.mark.thorough),
    ],
)
def test_an_own_loop_trains_as_psruns_does(train, cluster, loop):
    given = (f"cluster={cluster}", "model=dense", "evaluation=direct")
    other, own = train(*given, *LOOP, f"trainer._target_=user_code.{loop}", num_workers=1)
    scheduled = 2 * STEPS + 2 * (loop == "tutorial")  # of which two do not touch the optimizer
    assert other["steps"] == {"applied": 2 * STEPS, "scheduled": scheduled, "repeated": 0}
    assert [event["step"] for event in events(own, "epoch")] == [STEPS, 2 * STEPS]
    assert [event["step"] for event in events(own, "evaluation")] == [STEPS, 2 * STEPS]
    if loop == "tutorial":
        assert set(other["metrics"]) == {"loss", "squares", "val_loss", "val_mae"}
        assert other["metrics"]["squares"] > 0
        return  # its second kind of step has taken two batches of the stream
    one, folder = train(*given, num_workers=1)
    assert other["metrics"] == pytest.approx(one["metrics"], rel=1e-4)
    first, second = variables(folder), variables(own)
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, err_msg=name, **SAME)


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize("loop", ["plain", "tutorial"])
def test_an_own_loop_on_workers_saves_within_epochs_and_resumes(train, loop, monkeypatch, tmp_path):
    from psrun.training.loop import TrainingRun

    examples = STEPS * 32  # a pass is an epoch
    given = [*LOOP, f"trainer._target_=user_code.{loop}", "checkpoint.every_steps=6", "trainer.epochs=3",
             "trainer.steps_per_execution=2", "data.visitation=once", "data.audit=true",
             f"data.num_train_examples={examples}"]  # fmt: skip
    after_piece = TrainingRun.after_piece

    def stopping(self, piece):
        if self.scheduled >= STEPS + 4:
            self.stop.requested.set()
            self.stop.signum = 15
        after_piece(self, piece)

    monkeypatch.setattr(TrainingRun, "after_piece", stopping)
    with pytest.raises(Interrupted):
        train(*given)
    monkeypatch.setattr(TrainingRun, "after_piece", after_piece)
    folder = RunFolder.take_over(tmp_path / "run0")
    assert [event["epoch"] for event in events(folder, "epoch")] == [1]
    result, folder = train(*given, into=folder)
    assert result["steps"]["applied"] == 3 * STEPS
    assert [event["epoch"] for event in events(folder, "epoch")] == [1, 2, 3]
    assert any(row["step"] % STEPS for row in events(folder, "checkpoint"))
    seen = [row["seen"] for row in result["visitation"]]
    assert sum(times["1"] + 2 * times["2"] for times in seen) == 3 * examples + (64 if loop == "tutorial" else 0)
    assert loop == "tutorial" or all(times["2"] == times["3+"] == 0 for times in seen)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["trainer._target_=user_code.idle"], TrainingError, "user_code.idle returned without scheduling a step"),
        (["trainer._target_=user_code.fails"], TrainingError, "user_code.fails failed: KeyError: 'x'"),
        (["trainer._target_=user_code.plain", "optimizer.learning_rate=1e30"], NonFiniteLossError, "the loss became"),
    ],
)
def test_a_loop_that_goes_wrong_is_reported(train, overrides, error, message):
    with pytest.raises(error, match=message):
        train("cluster=none", *LOOP, *overrides)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "trainer", ["fit", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("custom_loop", "own_loop"))]
)
def test_hooks_are_called_at_epochs_steps_and_seconds_and_no_step_waits_for_them(train, trainer):
    """The hook of steps waits for what only the hook of the last epoch writes: the steps go on meanwhile."""
    hooks = ("{_target_: user_code.Notes, name: last, every_epochs: 4}",
             "{_target_: user_code.Notes, name: epochs, every_epochs: 2}",
             "{_target_: user_code.Notes, name: steps, wait_for: last, every_steps: 5}",
             "{_target_: user_code.Notes, name: seconds, every_s: 0.2}")  # fmt: skip
    own = ["trainer._target_=user_code.plain"] if trainer == "own_loop" else []
    result, folder = train(f"trainer={trainer}", *own, "trainer.epochs=4", f"trainer.hooks=[{','.join(hooks)}]")
    notes = {name: json.loads((folder.path / name).read_text()) for name in ("epochs", "last", "steps", "seconds")}
    assert [row[:2] for row in notes["epochs"]] == [[2 * STEPS, 2], [4 * STEPS, 4]]
    assert notes["last"][-1][2] == pytest.approx(result["metrics"])
    assert {"loss", "val_loss", "auc", "val_auc"} <= set(notes["last"][-1][2])
    assert 1 <= len(notes["steps"]) <= 3
    assert notes["steps"][-1][0] <= 4 * STEPS
    assert notes["seconds"]
    weights = {row[3] for row in notes["epochs"]}
    assert len(weights) == 2  # it has read them, and they were others


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_callback_may_save_the_model_in_a_thread_while_steps_run(train, tmp_path):
    """As the RFC has its timing-based callbacks. Keras takes the train function away while it saves."""
    callback = f"{{_target_: user_code.Timing, save_dir: {tmp_path}/saved, interval: 0.01}}"
    result, _ = train("trainer=fit", f"trainer.callbacks=[{callback}]", "trainer.epochs=6",
                      "trainer.steps_per_execution=1", "evaluation=none", "checkpoint=none")  # fmt: skip
    assert result["steps"]["applied"] == 6 * STEPS
    assert (tmp_path / "saved" / "saved_model.pb").exists()


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("trainer", "period"),
    [("custom_loop", "every_steps: 5"),
     *(pytest.param("fit", period, marks=pytest.mark.thorough) for period in ("every_epochs: 2", "every_s: 0.1"))],
)  # fmt: skip
def test_a_hook_that_fails_ends_the_run_with_its_name(train, trainer, period):
    with pytest.raises(
        HookError, match=r"trainer.hooks\[0\]: user_code.raises failed at step \d+: ValueError: no such"
    ):
        train(f"trainer={trainer}", f"trainer.hooks=[{{_target_: user_code.raises, at: 12, {period}}}]",
              "trainer.epochs=30")  # fmt: skip


def problems(*overrides):
    with pytest.raises(ConfigError) as raised:
        parse.load(raw_config(*overrides))
    return {problem.key: problem.message for problem in raised.value.problems}


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["trainer=own_loop"], "trainer._target_", "is required"),
        (["trainer=own_loop", "trainer._target_=user_code.tutorials"], "trainer._target_", "Did you mean 'tutorial'?"),
        (["trainer=own_loop", "trainer._target_=user_code.tutorial", "+trainer.clips=1"], "trainer.clips", "'clip'"),
        (["trainer=fit", "+trainer._target_=user_code.plain"], "trainer", "choose trainer=own_loop"),
        (
            ["trainer=own_loop", "trainer._target_=user_code.plain", "evaluation=validation"],
            "evaluation",
            "trainer=fit",
        ),
        (["trainer.hooks=[user_code.Notes]"], "trainer.hooks[0]", "must have a _target_"),
        (["trainer.hooks=[{_target_: user_code.raises}]"], "trainer.hooks[0]", "exactly one of every_epochs"),
        (["trainer.hooks=[{_target_: user_code.raises, every_steps: 1, every_s: 2}]"], "trainer.hooks[0]", "exactly"),
        (["trainer.hooks=[{_target_: user_code.raises, every_step: 1}]"], "trainer.hooks[0].every_step", "every_steps"),
        (["trainer.hooks=[{_target_: user_code.raises, every_steps: 0}]"], "trainer.hooks[0].every_steps", "1 or more"),
    ],
)
def test_mistakes_in_loops_and_hooks_are_reported_by_key(overrides, key, message):
    assert message in problems(*overrides)[key]
