"""Evaluations of checkpoints: by the sidecar, of what psrun, Keras or the user wrote, and by mode=evaluate."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import table_files
from outcomes import events
from support import MODELS, TRAINING, flipped

from psrun.checkpoint.storage import Store
from psrun.errors import ChiefGoneError, ConfigError
from psrun.results.run_folder import RunFolder
from psrun.roles import sidecar as role
from psrun.roles.sidecar import Sidecar

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def trained_once(trainings, tmp_path_factory) -> RunFolder:
    _, folder = trainings(tmp_path_factory.mktemp("trained"))(
        "evaluation=exact", "partitioner=fixed_shards", "trainer.epochs=4", "checkpoint.max_to_keep=9"
    )
    folder.emit("ended", status="completed", exit_code=0)
    return folder


@pytest.fixture
def trained(trained_once, tmp_path) -> RunFolder:
    """A copy of a run with four checkpoints, and an evaluation of each."""
    return RunFolder(shutil.copytree(trained_once.path, tmp_path / "trained"))


def test_checkpoints_of_a_run_are_evaluated_later_on_another_cluster(psrun):
    quick = ["trainer.steps_per_epoch=20", "data.num_train_examples=500", "data.num_eval_examples=100"]
    first = psrun("cluster=inprocess", "partitioner=fixed_shards", "trainer.epochs=2", *quick)
    before = (first.folder / "run.json").read_bytes()
    done = psrun("resume=run", "mode=evaluate", "evaluation=exact", "cluster=none", "restore=20")
    assert done.code == 0, done.stderr
    assert "step 20 (exact, 100 examples)" in done.stdout
    result = json.loads((first.folder / "evaluations" / "20-exact.json").read_text())
    (then,) = (event for event in first.events if event["event"] == "evaluation" and event["step"] == 20)
    assert result["metrics"] == pytest.approx(then["metrics"], rel=1e-5)
    assert (first.folder / "run.json").read_bytes() == before


@pytest.fixture
def evaluated(sidecar):
    """The events of the sidecar evaluator on a run folder, to its end."""

    def run(folder: RunFolder, *overrides: str) -> list[dict[str, Any]]:
        before = len(folder.metrics.read_text().splitlines())
        sidecar(folder, *TRAINING, *MODELS["embedding"], "evaluation.wait_s=1", *overrides)
        recorded = map(json.loads, folder.metrics.read_text().splitlines()[before:])
        return [event for event in recorded if event["event"] in ("evaluation", "warning", "export")]

    return run


def test_the_sidecar_evaluates_what_there_is_once_and_as_exact_does(trained, evaluated):
    then = events(trained, "evaluation")
    best = ("checkpoint.best_metric=val_loss", "checkpoint.best_mode=min", "export.best=true")
    evaluations = [event for event in evaluated(trained, *best) if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [event["step"] for event in then] == [12, 24, 36, 48]
    for one, other in zip(evaluations, then):
        assert one["examples_seen"] == other["examples_seen"] == 100
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
        assert min(one["seconds"], other["seconds"]) > 0
    assert sorted(path.name for path in (trained.path / "export" / "best").iterdir()) == ["12", "24", "36", "48"]
    result = trained.stored()
    assert (result["evaluation"]["mode"], result["evaluation"]["step"]) == ("sidecar", 48)
    assert result["metrics"]["val_loss"] == pytest.approx(then[-1]["metrics"]["loss"], rel=1e-5)
    assert result["best_checkpoint"]["step"] == 48
    assert evaluated(trained, *best) == []  # nothing is done twice


KERAS = (
    "trainer=fit", "checkpoint=none", "trainer.epochs=3",
    "trainer.callbacks=[{{_target_: tf_keras.callbacks.ModelCheckpoint, filepath: '{}/ckpt-{{epoch}}',"
    " save_weights_only: true}}]",
)  # fmt: skip


def test_the_sidecar_evaluates_what_model_checkpoint_wrote_with_callbacks_and_so_often(train, evaluated, tmp_path):
    weights, notes = tmp_path / "weights", tmp_path / "notes"
    keras = ["cluster=none", *(each.format(weights) for each in KERAS)]
    callbacks = (
        f"evaluation.callbacks=[{{_target_: user_code.Tests, path: {notes}}},"
        f"{{_target_: tf_keras.callbacks.TensorBoard, log_dir: '{tmp_path}/tb'}},"
        f"{{_target_: tf_keras.callbacks.SidecarEvaluatorModelExport, export_filepath: '{tmp_path}/best/{{epoch}}',"
        f" checkpoint_filepath: '{weights}/ckpt-{{epoch}}', save_weights_only: true, monitor: loss}}]"
    )
    _, folder = train(*keras, "evaluation=direct")
    then = events(folder, "evaluation")
    folder.emit("ended", status="completed", exit_code=0)
    keras.remove("cluster=none")
    evaluations = evaluated(folder, *keras, callbacks, "evaluation.max_evaluations=2")
    assert [event["step"] for event in evaluations] == [12, 24]
    for one, other in zip(evaluations, then):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
    assert evaluated(folder, *keras, "evaluation.max_evaluations=2") == []  # those of before count
    (last,) = evaluated(folder, *keras, f"evaluation.checkpoint_dir={weights}")
    assert last["step"] == 36
    assert json.loads((folder.path / "run.json").read_text())["evaluation"]["step"] == 36
    names = ["accuracy", "auc", "loss"]
    batches = -(-100 // 32)
    called = [["begin", []], *[["batch", names]] * batches, ["end", names]]
    assert json.loads(notes.read_text()) == [[name, step, logs] for step in (12, 24) for name, logs in called]
    assert list((tmp_path / "tb" / "validation").glob("events*"))
    assert list((tmp_path / "best").glob("*.index"))


def test_the_sidecar_evaluates_checkpoints_of_a_manager_and_refuses_those_of_another_model(train, evaluated, tmp_path):
    """As TensorFlow's tutorial takes them, in an own loop."""
    kept = tmp_path / "kept"
    loop = ("trainer=own_loop", "trainer._target_=user_code.managing", f"+trainer.folder={kept}", "checkpoint=none")
    _, folder = train("cluster=none", *loop, "evaluation=direct")
    then = events(folder, "evaluation")
    folder.emit("ended", status="completed", exit_code=0)
    evaluations = evaluated(folder, *loop, f"evaluation.checkpoint_dir={kept}")
    assert [event["step"] for event in evaluations] == [12, 24]
    assert evaluations[-1]["metrics"] == pytest.approx(then[-1]["metrics"], rel=1e-5)
    for path in folder.evaluations.iterdir():
        path.unlink()
    with pytest.raises(ConfigError):
        evaluated(folder, *loop, f"evaluation.checkpoint_dir={kept}", "model.embedding_dim=5")


def test_the_sidecar_takes_the_latest_and_passes_over_what_is_damaged(trained, evaluated):
    flipped(trained.checkpoints / "ckpt-48.index")
    recorded = evaluated(trained, "evaluation.every=latest")
    assert [(event["event"], event["step"]) for event in recorded] == [("warning", 48), ("evaluation", 36)]


def test_a_checkpoint_that_is_removed_under_the_sidecar_is_not_missed(trained, evaluated, monkeypatch):
    chosen = Sidecar._evaluated

    def removed(self, step):
        if step == 24:
            Store(trained.checkpoints)._remove(24)
        return chosen(self, step)

    monkeypatch.setattr(Sidecar, "_evaluated", removed)
    recorded = [(event["event"], event["step"]) for event in evaluated(trained)]
    assert recorded == [("evaluation", 12), ("warning", 24), ("evaluation", 36), ("evaluation", 48)]


def test_a_sidecar_without_checkpoints_or_with_another_model_is_an_error(trained, evaluated, tmp_path, monkeypatch):
    monkeypatch.setattr(role, "_REPORT_AFTER_S", 0.0)
    empty = RunFolder.create(tmp_path / "empty", raw={})
    empty.metrics.touch()
    with pytest.raises(ChiefGoneError):
        evaluated(empty)
    assert [event["event"] for event in map(json.loads, empty.metrics.read_text().splitlines())] == ["waiting"]
    with pytest.raises(ConfigError) as raised:
        evaluated(trained, "model.embedding_dim=5")
    assert [problem.key for problem in raised.value.problems] == ["model"]


@pytest.mark.inprocess
def test_rows_of_another_program_are_warned_of_and_counted_in_run_json(train, evaluate, predict, tmp_path):
    plans = ["gold", "silver", "bronze"] * 40
    columns = {"plan": plans, "flag": ["True", "False"] * 60, "churn": [0, 1, 1] * 40}
    others = {**columns, "plan": [plan.upper() for plan in plans], "flag": ["true", "false"] * 60}
    path = table_files.write(tmp_path / "train.csv", columns)
    other = table_files.write(tmp_path / "other.csv", others)
    pieces = ["data=table", "data._target_=psrun.tables.table.Table", "model=wide_deep", "cluster=none",
              f"data.path={path}", "data.label=churn",
              f"data.cache={tmp_path}/cache", "data.global_batch_size=16"]  # fmt: skip
    result, folder = train(*pieces)
    assert result["data"]["compared"]["evaluation"]["unknown_words"] == {"plan": 0, "flag": 0}
    folder.emit("ended", status="completed", exit_code=0)
    printed = evaluate(folder, *pieces, f"data.eval_path={other}")
    printed += predict(folder, *pieces, f"data.eval_path={other}")
    for title in ("evaluation rows", "rows to predict"):
        assert f"{title}: plan: 120 of 120 values" in printed
        assert f"{title}: flag: 120 of 120 values" in printed
    later = folder.stored()["later_data"]
    for mode in ("evaluate", "predict"):
        assert later[mode]["evaluation"]["unknown_words"] == {"plan": 120, "flag": 120}
