"""The run folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from psrun import files, process
from psrun.errors import ConfigError, DataError, ExitCode, RunFolderError
from psrun.results import run_folder, run_state
from psrun.results.events import Event
from psrun.results.run_folder import RunFolder
from psrun.roles import run_process
from psrun.roles.table import Identity


def test_run_json_is_whole_at_every_moment_and_knows_no_nan(tmp_path):
    folder = RunFolder.create(tmp_path / "run", raw={"seed": 1})
    folder.reserve_disk_space()
    folder.emit("ended", status="failed", metrics={"loss": float("nan")})
    folder.emit("code", commit="a")
    folder.emit("code", commit="b")
    result = json.loads((folder.path / "run.json").read_text())
    assert result == {"status": "failed", "metrics": {"loss": None}, "code": {"commit": "b"}}
    assert [path.name for path in folder.path.iterdir() if path.name.startswith((".run.json", ".reserve"))] == []


def test_facts_about_a_thousand_columns_are_beside_run_json(tmp_path):
    features = {f"column_{number}": {"dtype": "float32", "logarithm": True} for number in range(1000)}
    folder = RunFolder.create(tmp_path, raw={})
    folder.emit("started", status="running")
    folder.emit_data({"num_train_examples": 9, "features": features, "hashes": {}})
    assert (tmp_path / "run.json").stat().st_size < 1000
    assert folder.metrics.stat().st_size < 1000
    assert folder.stored()["data"] == {"num_train_examples": 9, "hashes": {}, "more_in": "data.json"}
    known = {"num_train_examples": 9, "features": features, "hashes": {}}
    assert RunFolder.open(tmp_path).data_facts() == known
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(DataError, match=r"data.json, which has what the run knows .* restore it from a copy"):
        folder.data_facts()


def test_facts_about_few_columns_are_in_run_json(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    assert folder.data_facts() is None
    folder.emit_data({"features": {"age": {"dtype": "float32"}}, "share": float("nan")})
    assert folder.data_facts() == folder.stored()["data"] == {"features": {"age": {"dtype": "float32"}}, "share": None}
    assert not (tmp_path / "data.json").exists()


def test_the_placement_of_thousands_of_variables_is_beside_run_json(tmp_path):
    placed = [{"variable": f"column_{number}/embeddings", "shard": 0, "task": "ps-0", "bytes": 80, "kind": "model",
               "variable_shape": [20, 1]} for number in range(3000)]  # fmt: skip
    folder = RunFolder.create(tmp_path, raw={})
    folder.event(Event("placement", step=0, wall_s=0.5, data={"placement": placed, "num_ps": 1, "least": 1}))
    assert (tmp_path / "run.json").stat().st_size < 1000
    assert folder.metrics.stat().st_size < 1000
    assert folder.stored() == {"placement_in": "placement.json", "balance": {"least": 1}}
    assert run_folder.placement_of(folder.stored(), tmp_path) == placed
    folder.event(Event("placement", step=0, wall_s=0.5, data={"placement": placed[:1], "num_ps": 1}))
    assert folder.stored() == {"placement": placed[:1], "placement_in": None, "balance": {}}
    assert run_folder.placement_of(folder.stored(), tmp_path) == placed[:1]


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created or written to: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", raw={})


def test_a_full_disk_is_reported_with_the_folder_and_passes_for_an_os_error(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    folder.metrics.symlink_to("/dev/full")
    with pytest.raises(
        RunFolderError, match=rf"run folder {tmp_path} cannot be written to: No space.*; free disk space"
    ) as raised:
        folder.event(Event("start", step=0, wall_s=0.5, data={}))
    assert isinstance(raised.value, OSError)
    assert (raised.value.errno, raised.value.exit_code) == (errno.ENOSPC, 1)


@pytest.mark.parametrize(("code", "recorded"), [(errno.ENOSPC, "failed"), (errno.EDQUOT, "failed"), (errno.EACCES, "")])
def test_the_end_of_a_run_is_recorded_on_a_disk_that_is_full(tmp_path, monkeypatch, code, recorded):
    folder = RunFolder.create(tmp_path, raw={})
    folder.reserve_disk_space()
    write = files.write_atomic

    def full(path, text, **options):
        if (tmp_path / ".reserve").exists():
            raise OSError(code, os.strerror(code))
        write(path, text, **options)

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(RunFolderError):
        folder.emit("code", commit="a")
    assert (tmp_path / ".reserve").stat().st_size == 64 * 1024
    with contextlib.nullcontext() if recorded else pytest.raises(RunFolderError):
        folder.emit("ended", status="failed")
    assert folder.stored().get("status", "") == recorded


def test_a_run_whose_process_is_gone_is_not_reported_as_running(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    folder.emit("begun", overrides=[], process={**process.place(), "pid": 2**22 + 1})  # more than Linux has
    for file in (tmp_path / "run.json", folder.metrics):
        os.utime(file, (0, 0))
    state = run_state.look(tmp_path)
    assert (state.status, state.outcome) == ("running", "gone")
    assert state.gone.endswith("exited without recording a status")


@pytest.mark.parametrize(("resumes", "key"), [(True, "resume"), (False, "hydra.run.dir")])
def test_a_run_that_is_running_is_not_started_again(tmp_path, resumes, key):
    held = files.lock(tmp_path)
    try:
        with pytest.raises(ConfigError) as refused:
            RunFolder.lock(tmp_path, resumes=resumes)
    finally:
        os.close(held)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert (f"psrun watch {tmp_path}" in problem.message and f"psrun stop {tmp_path}" in problem.message) == resumes


def test_a_limit_of_the_size_of_files_is_named(tmp_path):
    error = RunFolderError(tmp_path, OSError(errno.EFBIG, os.strerror(errno.EFBIG)))
    assert str(error).endswith("File too large; raise the limit of the size of files (ulimit -f)")
    assert run_process._CANNOT_BE_WRITTEN.count(errno.EFBIG) == 1


@pytest.mark.parametrize("trained", [True, False])
def test_an_error_of_the_configuration_after_training_removes_nothing(tmp_path, monkeypatch, trained):
    """A task that starts again may find that the limit of open files is too low now, or that a file is gone."""

    def ends(raw, path, overrides, started_s, is_own):
        folder = RunFolder.create(path, raw={})
        if trained:
            folder.emit("epoch", metrics={"loss": 1.0})
        return ExitCode.USAGE

    monkeypatch.setattr(run_process, "_execute", ends)
    code = run_process.execute({}, tmp_path / "run", [], started_s=0.0, keep_unrun=False)
    assert (code, (tmp_path / "run").exists()) == (ExitCode.USAGE, trained)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, True),
        ({"trainer": {"epochs": 20, "steps_per_epoch": 9}}, True),
        ({"trainer": {"epochs": 21, "steps_per_epoch": 5}}, False),
        ({"early_stopping": {"metric": "val_auc", "patience": 5}}, False),
    ],
)
def test_a_run_that_ended_early_trains_on_only_with_another_rule_or_length(tmp_path, changes, ends):
    raw = {"trainer": {"epochs": 20, "steps_per_epoch": 5}, "early_stopping": {"metric": "val_auc", "patience": 2}}
    folder = RunFolder.create(tmp_path / "run", raw=raw)
    folder.end_early("val_auc has not improved in 2 evaluations")
    folder.emit("ended", status="completed")
    again = RunFolder.resume(folder.path, completed=True, raw={**raw, **changes})
    assert again.ends_early() == ends


RAW = {"trainer": {"epochs": 2}, "optimizer": {"learning_rate": 1e-05}, "resume": None}


def completed(path):
    folder = RunFolder.create(path, raw=RAW)
    folder.emit("begun", started_s=0.0, overrides=[])
    folder.emit("epoch", step=40, epoch=2, epochs=2, metrics={"loss": 0.5})
    folder.emit("trained", steps={"applied": 40}, time_to_first_step_s=1.0)
    folder.emit("ended", status="completed", exit_code=0, wall_s=3.0)
    return folder


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"resume": "somewhere"}, "complete after epoch 2; .*: psrun resume .* trainer.epochs=4"),
        ({"trainer": {"epochs": 3}}, ""),
        ({"optimizer": {"learning_rate": 1e-04}}, ""),
    ],
)
def test_a_completed_run_has_nothing_to_train_with_what_it_recorded(tmp_path, changes, says):
    folder = completed(tmp_path / "run")
    assert re.search(says, run_state.nothing_to_train(folder.path, {**RAW, **changes}))
    assert bool(run_state.nothing_to_train(folder.path, {**RAW, **changes})) == bool(says)


def test_a_run_that_ended_before_its_last_epoch_has_nothing_to_train_only_if_it_says_so(tmp_path):
    """One of Keras' callbacks may have ended it: it is completed, but does not end early when it is resumed."""
    folder = completed(tmp_path / "run")
    raw = {**RAW, "trainer": {"epochs": 9}}
    run_folder.write_config(folder.path, raw)
    assert run_state.nothing_to_train(folder.path, raw) == ""
    folder.end_early("val_auc has not improved")
    assert "ended early (val_auc has not improved); to train on, change" in run_state.nothing_to_train(folder.path, raw)
    folder.emit("ended", status="interrupted")
    assert run_state.nothing_to_train(folder.path, raw) == ""


@pytest.mark.parametrize(
    ("code", "steps", "restored"), [(2, 41, True), (175, 40, True), (1, 40, True), (175, 41, False)]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_completed_run_stays_so_where_a_resumption_trains_no_step(tmp_path, code, steps, restored, at_once):
    folder = completed(tmp_path / "run")
    folder.end_early("val_auc has not improved")
    before = folder.stored()
    run = SimpleNamespace(resume=str(folder.path), mode="train")
    undo = run_process.Undo.of(run, Identity("coordinator", "chief-0"), folder.path)
    again = RunFolder.resume(folder.path, completed=True, raw={**RAW, "trainer": {"epochs": 3}})
    run_folder.write_config(folder.path, {**RAW, "trainer": {"epochs": 3}})
    again.emit("begun", started_s=0.0, overrides=["trainer.epochs=3"])
    again.emit("trained", steps={"applied": steps}, time_to_first_step_s=None)
    again.emit("ended", status="interrupted", exit_code=code, wall_s=9.0)
    assert undo(ExitCode(code), at_once=at_once) == restored
    assert (folder.stored() == before) == restored == folder.has_configuration(RAW) == folder.ends_early()
    assert run_folder.rebuilt(folder.path) == folder.stored()


def refused(path):
    folder = RunFolder.create(path, raw={"seed": 1})
    folder.emit("begun", started_s=0.0, overrides=["seed=1"])
    for name in ("chief-0.log", "planner.log", "of-the-user.log"):
        (path / "logs" / name).write_text("Traceback")
    run_folder.write_name(path, "first")
    folder.emit("ended", status="failed", exit_code=2, error={"message": "no such metric"}, wall_s=1.0)
    return folder


def test_a_run_that_was_refused_before_its_first_step_makes_room_for_the_next_one(tmp_path):
    folder = refused(tmp_path / "run")
    (folder.path / "notes.txt").write_text("of the user")
    again = RunFolder.create(folder.path, raw={"seed": 2})
    assert not again.has_run
    names = {path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*") if path.is_file()}
    assert names == {"config.yaml", "notes.txt", "logs/of-the-user.log"}
    assert again.has_configuration({"seed": 2})


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("ended", {"status": "failed", "exit_code": 1}),
        ("ended", {"status": "interrupted", "exit_code": 175}),
        ("ended", {"status": "completed", "exit_code": 0}),
        ("begun", {"started_s": 0.0, "overrides": []}),
        ("trained", {"steps": {"applied": 3}, "time_to_first_step_s": 1.0}),
        ("epoch", {"metrics": {"loss": 1.0}}),
    ],
)
def test_every_other_run_keeps_its_folder(tmp_path, kind, data):
    folder = refused(tmp_path)
    folder.emit(kind, wall_s=1.0, **data)
    before = folder.stored()
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(tmp_path, raw={})
    (tmp_path / "checkpoints").mkdir()
    assert not folder.was_refused
    assert folder.stored() == before


def plan(path: Path, *, status: str = "completed") -> RunFolder:
    folder = RunFolder.create(path, raw={"seed": 1})
    folder.emit("begun", mode="plan", started_s=0.0, overrides=[])
    folder.emit("ended", status=status, exit_code=0, wall_s=1.0)
    return folder


def test_a_plan_makes_room_for_a_run(tmp_path):
    folder = plan(tmp_path / "run")
    (folder.path / "notes.txt").write_text("of the user")
    assert folder.holds_plan
    again = RunFolder.create(folder.path, raw={"seed": 2})
    assert not again.has_run
    assert (folder.path / "notes.txt").exists()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("begun", {"mode": "train", "started_s": 0.0, "overrides": []}),  # it was resumed
        ("begun", {"mode": "plan", "started_s": 0.0, "overrides": []}),  # it is being planned again
        ("trained", {"steps": {"applied": 3}, "time_to_first_step_s": 1.0}),
        ("epoch", {"metrics": {"loss": 1.0}}),
    ],
)
def test_what_is_more_than_a_plan_keeps_its_folder(tmp_path, kind, data):
    folder = plan(tmp_path)
    folder.emit(kind, wall_s=1.0, **data)
    assert not folder.holds_plan
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(tmp_path, raw={})


def test_a_plan_is_removed_and_files_of_others_stay(tmp_path):
    folder = plan(tmp_path / "run")
    (folder.path / ".hydra").mkdir()
    (folder.path / ".hydra" / "config.yaml").touch()
    (folder.path / "notes.txt").touch()
    folder.remove_plan()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]
    other = plan(tmp_path / "other")
    other.remove_plan()
    assert not other.path.exists()


def test_a_signal_handler_records_the_end_while_the_interrupted_thread_writes(tmp_path, monkeypatch):
    """The interrupted thread holds the lock, and goes on only after the handler."""
    monkeypatch.setattr(run_folder, "_LOCK_TIMEOUT_S", 0.01)
    folder = RunFolder.create(tmp_path, raw={})
    with folder._lock:
        handler = threading.Thread(target=lambda: folder.emit_at_once("ended", status="interrupted"), daemon=True)
        handler.start()
        handler.join(10)
        assert not handler.is_alive()
    assert folder.stored()["status"] == "interrupted"
