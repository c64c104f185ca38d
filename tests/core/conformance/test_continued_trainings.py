"""Trainings that go on from a checkpoint, as if they had not been cut, and what disks do to checkpoints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import tf_keras
from outcomes import events
from support import STEPS, flipped, truncated

from psrun.checkpoint import commands
from psrun.checkpoint.checkpoints import Checkpoints
from psrun.checkpoint.storage import Store
from psrun.errors import CheckpointError, ExitCode
from psrun.results.run_folder import RunFolder
from psrun.training import fit
from psrun.training.actions import Saves

TRAINERS = ("fit", "custom_loop")


def kept(folder: RunFolder) -> list[tuple[int, int, int]]:
    """Step, epochs and steps into the next of all checkpoints."""
    store = Store(folder.checkpoints)
    held = [store.manifest(step) for step in store.steps()]
    return sorted((each.step, each.position.epochs, each.position.steps) for each in held)


def rewind(folder: RunFolder, step: int) -> None:
    """Makes it so that the run ended right after the checkpoint of `step`."""
    store = Store(folder.checkpoints)
    for each in store.steps():
        if each > step:
            store._remove(each)


ALONE = ("cluster=none",)
DELAYED = ("cluster=virtual", "cluster.delay=constant", "cluster.mean_delay=2")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("trainer", "cluster", "steps"),
    [
        ("fit", ALONE, (17,)),
        pytest.param("custom_loop", DELAYED, (5,), marks=pytest.mark.part("virtual")),
        pytest.param("custom_loop", ALONE, (5, 12, 17), marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_was_cut_short_ends_as_if_it_had_not_been(train, trainer, cluster, steps):
    """In one process, one stream of data: from any checkpoint on, the same batches and so the same bits."""
    pieces = (
        *cluster, f"trainer={trainer}", "checkpoint.every_steps=5", "checkpoint.max_to_keep=9",
        "trainer.steps_per_execution=5", "evaluation=none",
    )  # fmt: skip
    _, whole = train(*pieces)
    shutil.copytree(whole.path, whole.path.with_name("cut"))
    for step in steps:
        cut = RunFolder.resume(whole.path.with_name("cut"))
        rewind(cut, step)
        result, _ = train(*pieces, into=cut)
        assert result["steps"] == {"applied": 24, "scheduled": 24, "repeated": 0}
        assert events(cut, "restored")[-1]["step"] == step
        assert commands.main(["diff", str(whole.path), str(cut.path)]) == ExitCode.DONE


@pytest.mark.tensorflow
def test_a_training_by_fit_that_ended_early_is_saved_and_has_nothing_to_train(train):
    """By a callback of Keras, and then by `early_stopping`; unless there is a new number of epochs."""
    stops = "{_target_: tf_keras.callbacks.EarlyStopping, monitor: loss, patience: 1, min_delta: 100}"
    pieces = ("trainer=fit", "model=dense", "cluster=none", "checkpoint.every_epochs=9")
    result, folder = train(*pieces, "trainer.epochs=9", "evaluation=none", f"trainer.callbacks=[{stops}]")
    assert kept(folder) == [(2 * STEPS, 2, 0)]
    assert result["steps"]["applied"] == 2 * STEPS
    rule = ("early_stopping.metric=val_loss", "early_stopping.mode=min", "early_stopping.min_delta=100")
    pieces = (*pieces, *rule, "early_stopping.patience=1", "trainer.epochs=4", "evaluation=validation")
    _, folder = train(*pieces)
    folder.emit("ended", status="completed")
    result, _ = train(*pieces, into=RunFolder.resume(folder.path, completed=True))
    assert result["steps"]["applied"] == 2 * STEPS
    assert len(events(folder, "end")) == 2
    assert all(event["ended_early"] for event in events(folder, "end"))
    again = RunFolder.resume(folder.path, completed=True, raw={"trainer": {"epochs": 3}})  # other than recorded
    assert train(*pieces, "trainer.epochs=3", into=again)[0]["steps"]["applied"] == 3 * STEPS


@pytest.fixture
def disk(tmp_path: Path):
    """A run folder whose checkpoints are on a small disk of their own; `disk('ro')` remounts it. For root only."""
    folder = RunFolder.create(tmp_path / "run", raw={})
    folder.checkpoints.mkdir()
    where = str(folder.checkpoints)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "psrun-test", where], check=True)

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", where], check=True)

    yield folder, remount
    subprocess.run(["umount", "--lazy", where], check=True)


def remains_and_damage(folder: RunFolder) -> list[str]:
    """The files of incomplete checkpoints, and the damage of the others."""
    store = Store(folder.checkpoints)
    complete = {f"ckpt-{step}" for step in store.steps()}
    remains = [file.name for file in folder.checkpoints.glob("*ckpt-*") if file.name.split(".")[0] not in complete]
    return [*remains, *filter(None, map(store.damage, store.steps()))]


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_full_disk_costs_nothing_that_was_complete(train, disk):
    folder, remount = disk
    pieces = ("evaluation=none", "trainer.epochs=12", "checkpoint.max_to_keep=20")
    with pytest.raises(CheckpointError):
        train(*pieces, into=folder)
    before = kept(folder)
    assert before
    assert not remains_and_damage(folder)
    remount("size=1m")
    result, _ = train(*pieces, into=RunFolder.resume(folder.path))
    assert result["steps"]["applied"] == 12 * STEPS
    assert events(folder, "restored")[0]["step"] == before[-1][0]
    assert not remains_and_damage(folder)


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_disk_that_becomes_read_only_costs_nothing_that_was_complete(train, disk):
    folder, remount = disk
    pieces = ("cluster=none", "evaluation=none", "checkpoint.max_to_keep=1")
    train(*pieces, "trainer.epochs=1", into=folder)
    remount("ro")
    with pytest.raises(CheckpointError):
        train(*pieces, into=RunFolder.resume(folder.path))
    assert kept(folder) == [(STEPS, 1, 0)]
    assert not remains_and_damage(folder)
    remount("rw")
    train(*pieces, into=RunFolder.resume(folder.path))
    assert kept(folder) == [(2 * STEPS, 2, 0)]


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_checkpoints_deleted_during_the_run_are_missed_at_resume(train):
    removes = "trainer.hooks=[{_target_: user_code.removes_checkpoints, every_epochs: 1}]"
    result, folder = train("cluster=none", removes)  # the last ones were there, and the run is done
    assert result["steps"]["applied"] == 2 * STEPS
    with pytest.raises(CheckpointError):
        train("cluster=none", "trainer.epochs=3", into=RunFolder.resume(folder.path))


@pytest.mark.thorough
def test_a_damaged_checkpoint_is_passed_over_and_set_aside(train):
    pieces = ("cluster=inprocess", "partitioner=fixed_shards", "evaluation=none")
    _, folder = train(*pieces)
    data = max(folder.checkpoints.glob(f"ckpt-{2 * STEPS}.data-*"), key=lambda file: file.stat().st_size)
    flipped(data)
    result, _ = train(*pieces, into=RunFolder.resume(folder.path))
    assert events(folder, "restored")[-1]["step"] == STEPS
    assert "ckpt-24 is damaged" in events(folder, "warning")[-1]["message"]
    assert [(row["step"], row["good"]) for row in result["checkpoints"]] == [(12, True), (24, False), (24, True)]
    assert not remains_and_damage(folder)
    assert Store(folder.checkpoints / "set-aside").steps() == [24]


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_a_truncated_flipped_or_missing_file_of_any_kind_costs_one_checkpoint(train, tmp_path):
    pieces = ("cluster=none", "evaluation=none", "optimizer=adam")
    _, folder = train(*pieces)
    (folder.checkpoints / "checkpoint").write_bytes(b"\x00garbage")  # the state file decides nothing
    names = sorted(file.name for file in folder.checkpoints.glob(f"ckpt-{2 * STEPS}.*"))
    assert len(names) == 4
    harms = (truncated, flipped, Path.unlink)
    # Each kind of damage to the data, and one to each of the other files.
    for name, harm in [*((names[0], harm) for harm in harms), *zip(names[1:], harms, strict=True)]:
        copy = Path(shutil.copytree(folder.path, tmp_path / f"{name}-{harm.__name__}"))
        harm(copy / "checkpoints" / name)
        _, again = train(*pieces, into=RunFolder.resume(copy))
        assert events(again, "restored")[-1]["step"] == STEPS, (name, harm)
        assert commands.main(["diff", str(folder.path), str(copy)]) == ExitCode.DONE  # done again, to the bit


@pytest.mark.thorough
@pytest.mark.parametrize("free_kb", [0, 24])
def test_a_full_disk_ends_the_command_with_one_line_that_names_the_folder(psrun, tmp_path, free_kb):
    """From before there is a run folder to after the first epoch."""
    where = tmp_path / "run"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "psrun-test", where], check=True)
    try:
        (where / "filled").write_bytes(b"." * (64 - free_kb) * 1024)
        done = psrun("cluster=none", "evaluation=none", "trainer.epochs=2", "trainer.steps_per_epoch=5")
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)
    assert done.code == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith(
        f"psrun: the run folder {where} cannot be written to: No space left on device; free disk space"
    )
    assert [line for line in lines[1:] if not line.startswith("(log: ")] == []


@pytest.mark.thorough
def test_a_checkpoint_that_is_complete_survives_what_goes_wrong_after_it(train, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    pieces = ("cluster=none", "evaluation=none", "checkpoint.max_to_keep=1")
    for owner, name in ((Checkpoints, "_point_to"), (Store, "prune")):
        monkeypatch.setattr(owner, name, full)
        result, folder = train(*pieces)
        monkeypatch.undo()
        assert result["steps"]["applied"] == 2 * STEPS
        assert kept(folder)[-1] == (2 * STEPS, 2, 0)
        assert not remains_and_damage(folder)
        assert "older ones could not be removed" in events(folder, "warning")[0]["message"]


@pytest.mark.thorough
def test_another_learning_rate_holds_from_the_resume_on(train, monkeypatch):
    rates: list[float] = []
    at_end = Saves.at_end

    def noted(self, context):
        rates.append(float(context.program.optimizer.learning_rate))
        at_end(self, context)

    monkeypatch.setattr(Saves, "at_end", noted)
    pieces = ("cluster=none", "evaluation=none")
    _, folder = train(*pieces, "optimizer.learning_rate=0.05", "trainer.epochs=1")
    train(*pieces, "optimizer.learning_rate=0.001", into=RunFolder.resume(folder.path))
    # The rate that a callback has set holds where the configuration is the same as before.
    lowers = "{_target_: tf_keras.callbacks.ReduceLROnPlateau, monitor: loss, patience: 0, min_delta: 9, factor: 0.5}"
    lower = ("trainer=fit", "optimizer.learning_rate=0.001", f"trainer.callbacks=[{lowers}]")
    train(*pieces, *lower, "trainer.epochs=5", into=RunFolder.resume(folder.path, completed=True))
    train(*pieces, "optimizer.learning_rate=0.001", "trainer.epochs=6",
          into=RunFolder.resume(folder.path, completed=True))  # fmt: skip
    assert rates[:2] == pytest.approx([0.05, 0.001])
    assert rates[2] < 0.001
    assert rates[2] <= rates[3] < 0.001  # callbacks come after the checkpoint of their epoch


@pytest.mark.thorough
def test_a_callback_that_stops_in_an_epoch_that_was_cut_stops(train, monkeypatch):
    class Stops(tf_keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    pieces = ("cluster=none", "trainer=fit", "trainer.epochs=4", "checkpoint.every_steps=5", "checkpoint.max_to_keep=9")
    _, folder = train(*pieces)
    rewind(folder, 18)
    assert kept(folder)[-1] == (18, 1, 6)
    monkeypatch.setattr(fit, "configured_callbacks", lambda run: [Stops()])
    result, _ = train(*pieces, into=RunFolder.resume(folder.path))
    assert result["steps"]["applied"] == 2 * STEPS
