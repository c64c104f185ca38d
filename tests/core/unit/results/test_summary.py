"""run.json is what the events of a run add up to, and only the run folder writes it."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator

import pytest
from sources import PSRUN, modules, nodes

from psrun.config.topology import Task
from psrun.errors import ConfigError
from psrun.launch.losses import Recoveries, TrainingStatus
from psrun.results import run_state
from psrun.results.events import (
    CHANGES,
    PENDING_LOSS,
    Event,
    EventReader,
    Measured,
    Reporter,
    best_measured,
    fold,
    staleness_by_worker,
)
from psrun.results.run_folder import RunFolder, rebuilt

SHARD = {"variable": "table", "task": "ps-0", "bytes": 8}
EVALUATION = {"mode": "exact", "examples_seen": 100, "metrics": {"auc": 0.7}}
LOST = {"task": "chief-0", "at_s": 1.0, "steps_repeated": 0}
GOOD = {"path": "ckpt-2", "step": 2, "good": True}
DAMAGED = {"path": "ckpt-1", "step": 1, "good": False}
STALE = staleness_by_worker({"worker-0": {0: 9, 2: 1}})
AS_THEY_ARE = {
    "cluster": {"cluster": {"num_ps": 2}, "versions": {"psrun": "1"}},
    "lookups": {"lookups": [{"name": "ids"}]},
    "plan": {"placement": [SHARD], "bytes_per_step": {"read_bytes": 1}},
    "best_checkpoint": {"best_checkpoint": None},
}
UNDER_A_KEY = {
    "chosen": "chosen",
    "network": "network",
    "library": "network",
    "replicas": "replicas",
    "packing": "steps_per_execution",
    "packed": "steps_per_execution",
    "profile": "profile",
    "prediction": "prediction",
    "consistency": "consistency",
    "search": "search",
    "code": "code",
    "environment": "environment",
    "reproduction": "reproduction",
}
BEGUN = {"status": "running", "exit_code": None, "error": None, "mode": "train"}
CASES = [
    ("begun", {"search": {"state": "paused"}}, {"mode": "train", "overrides": []},
     {**BEGUN, "overrides": [], "search": None}),
    ("begun", {"error": {"type": "E"}, "exit_code": 1}, {"mode": "train", "overrides": ["a=1"]},
     {**BEGUN, "overrides": ["a=1"]}),
    ("begun", {"overrides": ["a=1"]}, {"mode": "train", "overrides": []}, {**BEGUN, "overrides": ["a=1"]}),
    ("begun", {}, {"mode": "train", "overrides": []}, {**BEGUN, "overrides": []}),
    ("data", {"data": {"old": 1}}, {"data": {"num": 5}}, {"data": {"num": 5}, "evaluation": None}),
    ("data", {"evaluation": EVALUATION}, {"data": {}}, {"data": {}, "evaluation": EVALUATION}),
    ("sharding", {"data": {"num": 5}}, {"sharding": "files"}, {"data": {"num": 5, "sharding": "files"}}),
    ("hashes", {"data": {"num": 5}}, {"hashes": {"a.csv": {}}}, {"data": {"num": 5, "hashes": {"a.csv": {}}}}),
    ("later_data", {"later_data": {"evaluate": {}}}, {"predict": {"evaluation": {}}},
     {"later_data": {"evaluate": {}, "predict": {"evaluation": {}}}}),
    ("placement", {}, {"placement": [SHARD], "most_bytes": 8}, {"placement": [SHARD], "balance": {"most_bytes": 8}}),
    ("tracker", {}, {"name": "mlflow", "kind": "mlflow", "run_id": "a"},
     {"tracker": {"kind": "mlflow", "run_id": "a"}, "trackers": {"mlflow": {"kind": "mlflow", "run_id": "a"}}}),
    ("tracker", {"tracker": {"kind": "mlflow"}, "trackers": {"mlflow": {}}}, {"name": "team", "kind": "wandb"},
     {"tracker": {"kind": "mlflow"}, "trackers": {"mlflow": {}, "team": {"kind": "wandb"}}}),
    ("epoch", {}, {"metrics": {}, "steps": {}, "virtual": {"time_s": 2.0}},
     {"metrics": {}, "steps": {}, "virtual": {"time_s": 2.0}}),
    ("epoch", {"virtual": {"time_s": 2.0}, "prediction": {"staleness": {}}}, {"metrics": {}, "steps": {}},
     {"metrics": {}, "steps": {}, "virtual": None, "prediction": None}),
    ("epoch", {"metrics": {"val_auc": 0.5}}, {"epoch": 2, "metrics": {"loss": 1.0}, "steps": {"applied": 9}},
     {"metrics": {"loss": 1.0}, "steps": {"applied": 9}}),
    ("placement", {}, {"placement": [SHARD], "num_ps": 2, "most_bytes": 8},
     {"placement": [SHARD], "balance": {"most_bytes": 8}}),
    ("staleness", {}, {"epoch": 1, **STALE}, {"staleness": STALE}),
    ("staleness", {"staleness": STALE}, {"epoch": 2, **staleness_by_worker({"worker-1": {7: 1}})},
     {"staleness": staleness_by_worker({"worker-0": {0: 9, 2: 1}, "worker-1": {7: 1}})}),
    ("evaluation", {"metrics": {"loss": 1.0, "val_auc": 0.5}}, EVALUATION,
     {"metrics": {"loss": 1.0, "val_auc": 0.7}, "evaluation": {"step": 7, **EVALUATION}}),
    ("last_evaluation", {"metrics": {"loss": 1.0, "val_auc": 0.5}}, EVALUATION,
     {"metrics": {"loss": 1.0, "val_auc": 0.7}, "evaluation": {"step": 7, **EVALUATION}}),
    ("evaluation", {"metrics": {"val_old": 1.0}}, {**EVALUATION, "path": "7-exact.json"},
     {"metrics": {"val_auc": 0.7}, "evaluation": {"step": 7, **EVALUATION}}),
    ("checkpoints", {"checkpoints": [GOOD]}, {"good": [{**GOOD, "step": 3}], "damaged": [DAMAGED], "removed": [2]},
     {"checkpoints": [DAMAGED, {**GOOD, "step": 3}]}),
    ("checkpoints", {"checkpoints": [DAMAGED, GOOD]}, {"good": [{**GOOD, "step": 1}], "damaged": [], "removed": [1]},
     {"checkpoints": [DAMAGED, {**GOOD, "step": 1}, GOOD]}),
    ("checkpoints", {}, {"good": [GOOD], "damaged": [], "removed": []}, {"checkpoints": [GOOD]}),
    ("waits", {"consistency": {"mode": "ssp", "waited_s": {"worker-0": 0.5}}},
     {"epoch": 2, "waited_s": {"worker-0": 1.0}}, {"consistency": {"mode": "ssp", "waited_s": {"worker-0": 1.0}}}),
    ("trained", {"time_to_first_step_s": 3.0}, {"time_to_first_step_s": 9.0},
     {"time_to_first_step_s": 3.0, "wall_s": 1.0}),
    ("trained", {}, {"time_to_first_step_s": 9.0}, {"time_to_first_step_s": 9.0, "wall_s": 1.0}),
    ("trained", {"time_to_first_step_s": None, "time_to_first_step_by_part_s": None},
     {"time_to_first_step_s": 9.0, "time_to_first_step_by_part_s": {"import": 4.0, "trace": 5.0}},
     {"time_to_first_step_s": 9.0, "time_to_first_step_by_part_s": {"import": 4.0, "trace": 5.0}, "wall_s": 1.0}),
    ("trained", {"time_to_first_step_s": 3.0, "time_to_first_step_by_part_s": {"import": 1.0, "trace": 2.0}},
     {"time_to_first_step_s": 9.0, "time_to_first_step_by_part_s": {"import": 4.0, "trace": 5.0}},
     {"time_to_first_step_s": 3.0, "time_to_first_step_by_part_s": {"import": 1.0, "trace": 2.0}, "wall_s": 1.0}),
    ("trained", {"time_to_first_step_s": 3.0},
     {"time_to_first_step_s": 9.0, "time_to_first_step_by_part_s": {"import": 4.0, "trace": 5.0}},
     {"time_to_first_step_s": 3.0, "time_to_first_step_by_part_s": None, "wall_s": 1.0}),
    ("ended", {}, {"status": "failed"}, {"status": "failed"}),
    ("ended", {"started_s": 5.0}, {"status": "failed"}, {"status": "failed", "wall_s": 1.0}),
    ("export", {}, {"path": "export/7"}, {"export": "export/7"}),
    ("predictions", {}, {"path": "p.csv", "count": 3}, {"predictions": {"path": "p.csv", "count": 3, "step": 7}}),
    ("lost", {}, {"task": "ps-0", "cause": "ended", "at_s": 2.0},
     {PENDING_LOSS: {"task": "ps-0", "cause": "ended", "at_s": 2.0, "step": 7}}),
    ("recovery", {}, LOST, {"recoveries": [LOST]}),
    ("recovery", {"recoveries": [{**LOST, "at_s": 0.5}], PENDING_LOSS: {"task": "ps-0"}}, LOST,
     {"recoveries": [{**LOST, "at_s": 0.5}, LOST], PENDING_LOSS: None}),
    ("recoveries", {}, {"rows": []}, {"recoveries": []}),
    ("recoveries", {PENDING_LOSS: {"task": "ps-0"}}, {"rows": []}, {"recoveries": [], PENDING_LOSS: {"task": "ps-0"}}),
    ("recoveries", {"recoveries": [{**LOST, "at_s": 0.5}, LOST]}, {"rows": [{**LOST, "steps_repeated": 4}]},
     {"recoveries": [{**LOST, "at_s": 0.5}, {**LOST, "steps_repeated": 4}]}),
    *((kind, {}, data, data) for kind, data in AS_THEY_ARE.items()),
    *((kind, {key: {"kind": "old"}}, {"kind": "new"}, {key: {"kind": "new"}}) for kind, key in UNDER_A_KEY.items()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "before", "data", "changed"), CASES)
def test_what_an_event_changes(kind, before, data, changed):
    state = {"seed": 1, **before}
    kept = json.dumps(state)
    after = fold(state, Event(kind, 7, 1.0, data))
    assert after == {**state, **changed}
    assert json.dumps(state) == kept  # nothing of what was there before is changed in place


def test_each_kind_that_changes_something_is_tested_and_another_changes_nothing():
    assert {kind for kind, *_ in CASES} == set(CHANGES)
    assert fold({"status": "running"}, Event("preparing", 7, 1.0, {"status": "odd"})) == {"status": "running"}


def test_the_folder_folds_events_and_stored_events_fold_to_the_same(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    reporter = Reporter([folder], started_s=0.0)
    reporter.emit("epoch", step=7, metrics={"loss": 1.0}, steps={"applied": 7})
    reporter.warn("odd")
    reporter.emit("evaluation", step=7, **EVALUATION)
    reporter.emit("recovery", step=9, **LOST)
    result = {"metrics": {"loss": 1.0, "val_auc": 0.7}, "steps": {"applied": 7},
              "evaluation": {"step": 7, **EVALUATION}, "recoveries": [LOST]}  # fmt: skip
    assert folder.stored() == result
    written = EventReader(folder.metrics).read()
    assert functools.reduce(fold, written, {}) == result
    assert all(event.wall_s > 0 for event in written)


def test_a_run_json_that_is_lost_is_what_the_events_add_up_to(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    folder.emit("begun", mode="train", overrides=["a=1"], started_s=0.0)
    with folder.metrics.open("a") as file:
        file.write('{"event": "epo')  # as a killed process leaves it
    folder.emit("ended", wall_s=2.5, status="failed", exit_code=1)
    result = folder.stored()
    (tmp_path / "run.json").unlink()
    assert RunFolder(tmp_path).stored() == result
    assert (result["status"], result["wall_s"]) == ("failed", 2.5)
    assert run_state.look(tmp_path).status == "failed"
    assert run_state.result_changed_s(tmp_path) > 0
    with pytest.raises(ConfigError):
        RunFolder.create(tmp_path, raw={})


def test_events_of_a_run_of_an_earlier_version_add_up_once_it_goes_on(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"status": "interrupted", "mode": "train", "overrides": ["a=1"]}))
    folder = RunFolder(tmp_path)
    folder.journal.event(Event("epoch", 7, 1.0, {"metrics": {"loss": 1.0}}))
    assert rebuilt(tmp_path) == {}
    folder.emit("begun", overrides=[], started_s=0.0)
    assert rebuilt(tmp_path) == folder.stored()
    folder.revert({"status": "interrupted"})
    assert rebuilt(tmp_path) == folder.stored() == {"status": "interrupted"}


def test_several_processes_add_to_it_one_after_another(tmp_path):
    chief, beside = RunFolder.create(tmp_path, raw={}), RunFolder(tmp_path)
    chief.emit("begun", mode="train", overrides=[])
    beside.journal.event(Event("epoch", 7, 1.0, {"metrics": {"loss": 1.0}}))
    assert "metrics" not in chief.stored()
    beside.emit("recoveries", rows=[LOST])
    chief.emit("export", path="export/7")
    chief.emit_at_once("ended", status="interrupted")
    result = chief.stored()
    assert (result["status"], result["mode"], result["recoveries"], result["export"]) == (
        "interrupted", "train", [LOST], "export/7"
    )  # fmt: skip
    assert rebuilt(tmp_path) == result


def test_a_recovery_is_there_at_once_and_the_steps_it_repeated_once_they_are_known(tmp_path):
    folder = RunFolder.create(tmp_path, raw={})
    folder.emit("recoveries", rows=[LOST])  # of the process before this one
    recoveries = Recoveries(Reporter([folder], started_s=0.0))
    recoveries.failed(Task("worker", 0), "ended", step=1, attempt=True)
    recoveries.end(9)
    assert folder.stored()["recoveries"] == [LOST, *recoveries.rows]
    recoveries.count_repeated(4)
    folder.emit("recoveries", rows=recoveries.rows)
    assert [row["steps_repeated"] for row in folder.stored()["recoveries"]] == [0, 4]


def test_losses_that_follow_each_other_before_a_step_have_a_row_each_and_lose_steps_once(tmp_path):
    recoveries = Recoveries(Reporter([RunFolder.create(tmp_path, raw={})], started_s=0.0))
    recoveries.failed(Task("worker", 0), "ended", step=8, attempt=False)
    for task in (Task("ps", 0), Task("ps", 0), Task("chief", 0)):
        recoveries.failed(task, "ended", step=9, attempt=True)
    recoveries.restored(4)
    recoveries.look(TrainingStatus("training", 5, 0.1, 0), lambda task: True)
    recoveries.look(TrainingStatus("training", 6, 0.1, 0), lambda task: True)
    rows = [(row["task"], row["steps_lost"]) for row in recoveries.rows]
    assert sorted(rows) == [("chief-0", 0), ("ps-0", 0), ("ps-0", 5), ("worker-0", 0)]


@pytest.mark.parametrize("text", [None, "", '{"status": "run'])
def test_one_that_was_lost_or_damaged_meanwhile_is_written_again(tmp_path, text):
    folder = RunFolder.create(tmp_path, raw={})
    folder.emit("begun", mode="train", overrides=[])
    (tmp_path / "run.json").unlink() if text is None else (tmp_path / "run.json").write_text(text)
    folder.emit("export", path="export/7")
    assert (folder.stored()["mode"], folder.stored()["export"]) == ("train", "export/7")


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """The module, the name of the function, and the call."""
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.Call):
                yield str(path.relative_to(PSRUN)), ast.unparse(node.func).rpartition(".")[2], node


def test_only_the_run_folder_writes_run_json():
    writing = {"write_atomic", "write_text", "write_bytes", "open", "dump", "replace", "rename"}
    writers = {module for module, name, call in calls() if name in writing
               and {"RESULT", "'run.json'"} & {ast.unparse(part) for part in ast.walk(call)}}  # fmt: skip
    assert writers == {"results/run_folder.py"}
    assert not hasattr(RunFolder, "update")


def test_each_kind_that_a_run_folder_emits_changes_run_json():
    kinds = set()
    for module, name, call in calls():
        if name not in ("emit", "emit_at_once") or module == "results/events.py":
            continue
        receiver = ast.unparse(call.func).rpartition(".")[0]
        if not receiver.endswith("reporter") and isinstance(call.args[0], ast.Constant):
            kinds.add(call.args[0].value)
    assert len(kinds) > 15
    assert kinds - {"result"} <= set(CHANGES)


# -- the best evaluation


def epochs(*values: float | None, first: int = 1) -> list[Event]:
    """Epochs of 10 steps from number `first` on, each with an evaluation of this loss."""
    found = []
    for epoch, value in enumerate(values, first):
        found.append(Event("epoch", 10 * epoch, 0.0, {"epoch": epoch, "metrics": {"loss": 0.5}}))
        data = {"mode": "direct", "examples_seen": 9, "metrics": {"loss": value, "auc": 0.9}}
        found.append(Event("evaluation", 10 * epoch, 0.0, data))
    return found


START = Event("start", None, 0.0, {"title": "dense"})
RESTORED = Event("restored", 20, 0.0, {"path": "ckpt-20"})


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ([START, *epochs(0.3, 0.1, 0.2)], 20),
        ([START, *epochs(0.3, 0.1, 0.1)], 20),  # the first of equal ones
        ([START, *epochs(None, 0.3)], 20),
        ([START, *epochs(0.3, 0.2, 0.1), START, RESTORED, *epochs(0.25, 0.15, first=3)], 40),  # epoch 3 was lost
        ([START, *epochs(0.3, 0.1, 0.2), START, RESTORED, *epochs(0.4, first=3)], 20),
        ([START, *epochs(0.1, 0.1), START, *epochs(0.3, 0.2)], 20),  # no checkpoint: the run began anew
        ([START, *epochs(0.3, 0.2), Event("evaluation", 10, 0.0, {"path": "a", "metrics": {"loss": 0.0}})], 20),
        ([START, *epochs(None, None)], None),
        ([], None),
    ],
)
def test_the_best_evaluation_is_of_weights_that_the_training_went_on_from(events, step):
    best = best_measured(events, "val_loss", "min")
    assert (best and best.step) == step
    if best is not None:
        assert (best.epoch, best.metrics["val_auc"], best.metrics["loss"]) == (best.step // 10, 0.9, 0.5)


def test_the_best_may_be_the_greatest_value_and_of_the_training():
    assert best_measured(epochs(0.3, 0.1, 0.2), "val_loss", "max").step == 10
    assert best_measured(epochs(0.3), "loss", "min") == Measured(10, 1, {"loss": 0.5, "val_loss": 0.3, "val_auc": 0.9})
    within = Event("evaluation", 15, 0.0, {"mode": "sidecar", "metrics": {"loss": 0.01}})
    assert best_measured([*epochs(0.3), within], "val_loss", "min") == Measured(15, None, {"val_loss": 0.01})
