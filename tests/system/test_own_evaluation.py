"""An evaluation mode in three files of another project."""

from __future__ import annotations

import pytest
from support import HARNESS

OUTSIDE = HARNESS / "outside"


@pytest.mark.command
def test_a_mode_of_another_project_evaluates_between_epochs(psrun, tmp_path):
    size = ("trainer.epochs=3", "trainer.steps_per_epoch=5", "data.num_eval_examples=100")
    done = psrun(
        "--config-dir", str(OUTSIDE / "conf"), "cluster=none", "evaluation=quick", "evaluation.every=2", *size,
        f"hydra.run.dir={tmp_path / 'run'}", PYTHONPATH=str(OUTSIDE),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    evaluations = [event for event in done.events if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [10, 15]  # every second epoch, and after the last one
    assert done.result["evaluation"]["mode"] == "quick"
    assert "val_loss" in done.result["metrics"]
    refused = psrun("--config-dir", str(OUTSIDE / "conf"), "evaluation=quick", "evaluation.num_batches=0",
                    PYTHONPATH=str(OUTSIDE))  # fmt: skip
    assert (refused.code, "evaluation.num_batches: is 0, must be" in refused.stderr) == (2, True)
