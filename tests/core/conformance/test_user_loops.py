"""Training loops and hooks as a person writes them: `trainer._target_` and `trainer.hooks`."""

from __future__ import annotations

import counting
import pytest
from outcomes import events
from support import STEPS, last_choices

from psrun.errors import HookError, Interrupted
from psrun.results.run_folder import RunFolder
from psrun.training.loop import TrainingRun

LOOP = ["trainer=own_loop", "model=dense"]


@pytest.mark.inprocess
def test_an_own_loop_has_steps_of_several_kinds_and_metrics_of_its_own(train):
    """`test_trainers` has one that schedules the network's own step."""
    result, folder = train(*LOOP, "evaluation=direct", "trainer._target_=user_code.tutorial", num_workers=1)
    scheduled = 2 * STEPS + 2  # of which two do not touch the optimizer
    assert result["steps"] == {"applied": 2 * STEPS, "scheduled": scheduled, "repeated": 0}
    assert [event["step"] for event in events(folder, "epoch")] == [STEPS, 2 * STEPS]
    assert [event["step"] for event in events(folder, "evaluation")] == [STEPS, 2 * STEPS]
    assert set(result["metrics"]) == {"loss", "squares", "val_loss", "val_mae"}
    assert result["metrics"]["squares"] > 0


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize("loop", ["plain", "tutorial"])
def test_an_own_loop_on_workers_saves_within_epochs_and_resumes(train, loop, monkeypatch, tmp_path):
    examples = STEPS * 32  # a pass is an epoch
    given = counting.arguments("trainer=own_loop", f"trainer._target_=user_code.{loop}", "checkpoint.every_steps=6",
                               "trainer.epochs=3", "trainer.steps_per_execution=2", "evaluation=direct",
                               examples=examples, batch=32)  # fmt: skip
    given = last_choices(given)
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
    folder = RunFolder.resume(tmp_path / "run0")
    assert [event["epoch"] for event in events(folder, "epoch")] == [1]
    result, folder = train(*given, into=folder)
    assert result["steps"]["applied"] == 3 * STEPS
    assert [event["epoch"] for event in events(folder, "epoch")] == [1, 2, 3]
    assert any(row["step"] % STEPS for row in events(folder, "checkpoint"))
    if loop == "plain":
        assert counting.wrong(folder.checkpoints, epochs=3) == []
        return
    for name, values in counting.counts(folder.checkpoints).items():
        assert values.sum() == 3 * examples
        if name != "steps":  # two batches of the second pass are only measured, two of the fourth come early
            assert {2, 3} <= {*values.tolist()} <= {2, 3, 4}


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_callback_may_save_the_model_in_a_thread_while_steps_run(train, tmp_path):
    """As the RFC has its timing-based callbacks. Keras takes the train function away while it saves."""
    callback = f"{{_target_: user_code.Timing, save_dir: {tmp_path}/saved, interval: 0.01}}"
    result, _ = train("trainer=fit", f"trainer.callbacks=[{callback}]", "trainer.epochs=6",
                      "trainer.steps_per_execution=1", "evaluation=none", "checkpoint=none")  # fmt: skip
    assert result["steps"]["applied"] == 6 * STEPS
    assert (tmp_path / "saved" / "saved_model.pb").exists()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("trainer", "period"), [("custom_loop", "every_steps: 5"), ("fit", "every_s: 0.1")],
)  # fmt: skip
def test_a_hook_that_fails_ends_the_run_with_its_name(train, trainer, period):
    with pytest.raises(HookError, match=r"trainer\.hooks\[0\]: user_code.raises"):
        train("cluster=none", f"trainer={trainer}", f"trainer.hooks=[{{_target_: user_code.raises, at: 12, {period}}}]",
              "trainer.epochs=30")  # fmt: skip
