"""Keras' BackupAndRestore where psrun takes no checkpoints: epochs and steps are counted right after a restart."""

from __future__ import annotations

import pytest
from outcomes import events
from support import STEPS

from psrun.results.run_folder import RunFolder

BACKUP = "{{_target_: tf_keras.callbacks.BackupAndRestore, backup_dir: '{}/backup', save_freq: {}}}"
DIES = "{{_target_: user_code.Dies, epoch: {}}}"


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("cluster", "dies", "save_freq", "restored"),
    [
        pytest.param("inprocess", "before", "epoch", STEPS, id="within an epoch"),
        pytest.param("none", "after", "epoch", STEPS, id="at the end of an epoch"),
        pytest.param("none", "before", "5", 2 * STEPS - 4, id="one process, backup within an epoch"),
    ],
)
def test_a_restarted_fit_resumes_where_its_backup_is(train, tmp_path, cluster, dies, save_freq, restored):
    given = ["trainer=fit", f"cluster={cluster}", "checkpoint=none", "trainer.epochs=3", "data=features",
             "trainer.steps_per_execution=" + ("1" if save_freq == "5" else "3")]  # fmt: skip
    backup = BACKUP.format(tmp_path, save_freq)
    order = [backup, DIES.format(1)] if dies == "after" else [DIES.format(2), backup]
    with pytest.raises(KeyboardInterrupt):
        train(*given, f"trainer.callbacks=[{','.join(order)}]")
    (path,) = tmp_path.glob("run*")
    result, folder = train(*given, f"trainer.callbacks=[{backup}]", into=RunFolder(path))
    assert result["steps"] == {"applied": 3 * STEPS, "scheduled": 3 * STEPS, "repeated": 0}
    assert [event["step"] for event in events(folder, "restored")] == [restored]
    done = [(event["epoch"], event["step"]) for event in events(folder, "epoch")]
    assert done == [(n, n * STEPS) for n in ([1, 2, 3] if dies == "after" else [1, 2, 2, 3])]
    assert not (tmp_path / "backup" / "chief").exists()  # as Keras leaves it after the last epoch
    if cluster == "none":
        whole, _ = train(*given, "trainer.callbacks=[]")
        assert result["metrics"] == pytest.approx(whole["metrics"], rel=1e-5)
