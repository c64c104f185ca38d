"""Evaluation by psrun itself, between epochs: what is counted, and that all ways give the same numbers."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from support import MODELS, TRAINING, flipped, run_config

from psrun.config.run_config import EarlyStopping
from psrun.config.topology import Task
from psrun.errors import ChiefGoneError, ConfigError
from psrun.results.run_folder import RunFolder
from psrun.training.metric_policies import Plateau

RUN = ("trainer.epochs=1", "trainer.steps_per_epoch=5", "trainer.steps_per_execution=5", "optimizer=sgd",
       "optimizer.learning_rate=0.0001")  # fmt: skip


def counted(*overrides: str, num_examples: int = 100, batch: int = 16, data: str = "Numbered") -> list[str]:
    """A run over numbered examples."""
    return [
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", f"data._target_=example_ids.{data}",
        "~data.num_train_examples", "~data.noise", "~data.num_features", f"data.num_eval_examples={num_examples}",
        f"data.global_batch_size={batch}", *RUN, *overrides,
    ]  # fmt: skip


CASES = [
    (100, 16, "null", "Numbered"),
    (101, 7, "null", "AsOthersHaveIt"),
    (1, 4, "null", "Numbered"),  # fewer than workers
    (50, 50, "9", "Numbered"),  # fewer batches than shards
    (97, 10, "1", "AsOthersHaveIt"),
    (97, 10, "3", "Numbered"),
]


def cases() -> Iterator[Any]:
    for trainer, case in itertools.product(("custom_loop", "fit"), CASES):
        other = (trainer == "fit") == (case[0] in (101, 50) or case[2] == "1")
        default = other and case[0] == 101
        if other:
            yield pytest.param(trainer, *case, marks=() if default else pytest.mark.thorough)


@pytest.mark.inprocess
@pytest.mark.parametrize(("trainer", "num_examples", "batch", "num_shards", "data"), cases())
def test_exact_counts_every_example_once_and_agrees_with_one_process(
    train, trainer, num_examples, batch, num_shards, data
):
    pieces = counted(f"trainer={trainer}", num_examples=num_examples, batch=batch, data=data)
    exact, _ = train(*pieces, "evaluation=exact", f"evaluation.num_shards={num_shards}", num_workers=1)
    direct, _ = train(*pieces, "evaluation=direct", num_workers=1)
    assert exact["evaluation"]["mode"] == "exact"
    assert exact["evaluation"]["examples_seen"] == num_examples
    assert exact["metrics"]["val_not_once"] == 0
    assert exact["metrics"] == pytest.approx(direct["metrics"], rel=1e-5, nan_ok=True)


@pytest.mark.thorough
def test_distributed_sees_as_many_examples_as_it_reports(train):
    result, _ = train(*counted(num_examples=200, batch=10), "evaluation=distributed", "trainer.epochs=2")
    evaluation = result["evaluation"]
    assert (evaluation["mode"], evaluation["examples_seen"]) == ("distributed", 200)
    assert 0 <= result["metrics"]["val_not_once"] <= 200
    exact, _ = train(*counted(num_examples=200, batch=10), "evaluation=exact", "trainer.epochs=2")
    assert result["metrics"]["val_mean_absolute_error"] == pytest.approx(
        exact["metrics"]["val_mean_absolute_error"], rel=0.5
    )


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("+data.endless=true", "the evaluation data is endless"),
        ("+data.wide=true", r"evaluation examples have .*\(2,\)"),
    ],
)
def test_evaluation_data_that_will_not_do_is_reported_before_training(train, option, message):
    with pytest.raises(ConfigError, match=message):
        train(*counted(data="AsOthersHaveIt"), option, "evaluation=exact")


@pytest.mark.tensorflow
def test_without_workers_exact_is_done_by_the_one_process(train):
    result, _ = train(*counted("cluster=none"), "evaluation=exact")
    assert result["evaluation"]["mode"] == "exact"
    assert result["metrics"]["val_not_once"] == 0


@pytest.mark.thorough
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
    refused = psrun("resume=run", "mode=evaluate", "cluster=multi_worker_mirrored", "evaluation=none")
    assert refused.code == 2
    assert "would evaluate all data" in refused.stderr
    assert "requires evaluation=direct, exact or distributed" in refused.stderr


SIDECAR = (
    "cluster=static",
    "cluster.addresses={worker: ['w:1'], ps: ['p:1']}",
    "evaluation=sidecar",
    "evaluation.wait_s=1",
)


@pytest.fixture
def sidecar():
    """Runs the sidecar evaluator in this process on a run folder, to its end."""
    from psrun.process import Stop
    from psrun.results.console import ConsoleSink
    from psrun.roles import sidecar as role

    def run(folder: RunFolder, *overrides: str) -> list[dict[str, Any]]:
        before = len((folder.path / "metrics.jsonl").read_text().splitlines())
        config = run_config(*SIDECAR, *TRAINING, *MODELS["embedding"], *overrides)
        console = ConsoleSink(Console(file=io.StringIO(), width=200))
        role.run(config, RunFolder.join(folder.path), console, Stop(), me=Task("evaluator", 0))
        lines = (folder.path / "metrics.jsonl").read_text().splitlines()[before:]
        return [event for event in map(json.loads, lines) if event["event"] in ("evaluation", "warning", "export")]

    return run


@pytest.mark.thorough
def test_the_sidecar_evaluates_what_there_is_once_and_as_exact_does(train, sidecar):
    trained, folder = train(
        "evaluation=exact", "partitioner=fixed_shards", "trainer.epochs=4", "checkpoint.max_to_keep=9"
    )
    folder.record("ended", status="completed", exit_code=0)
    then = [event for event in events(folder) if event["event"] == "evaluation"]
    best = ("checkpoint.best_metric=val_loss", "checkpoint.best_mode=min", "export.best=true")
    recorded = sidecar(folder, *best)
    evaluations = [event for event in recorded if event["event"] == "evaluation"]
    assert [event["step"] for event in evaluations] == [event["step"] for event in then] == [12, 24, 36, 48]
    for one, other in zip(evaluations, then):
        assert one["examples_seen"] == other["examples_seen"] == 100
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
    assert sorted(path.name for path in (folder.path / "export" / "best").iterdir()) == ["12", "24", "36", "48"]
    result = json.loads((folder.path / "run.json").read_text())
    assert (result["evaluation"]["mode"], result["evaluation"]["step"]) == ("sidecar", 48)
    assert result["metrics"]["val_loss"] == pytest.approx(trained["metrics"]["val_loss"], rel=1e-5)
    assert result["best_checkpoint"]["step"] == 48
    assert sidecar(folder, *best) == []  # nothing is done twice


KERAS = (
    "trainer=fit", "checkpoint=none", "partitioner=fixed_shards", "trainer.epochs=3",
    "trainer.callbacks=[{{_target_: tf_keras.callbacks.ModelCheckpoint, filepath: '{}/ckpt-{{epoch}}',"
    " save_weights_only: true}}]",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.inprocess
def test_the_sidecar_evaluates_what_model_checkpoint_wrote_with_callbacks_and_so_often(train, sidecar, tmp_path):
    weights, notes = tmp_path / "weights", tmp_path / "notes"
    keras = [each.format(weights) for each in KERAS]
    callbacks = (
        f"evaluation.callbacks=[{{_target_: user_code.Tests, path: {notes}}},"
        f"{{_target_: tf_keras.callbacks.TensorBoard, log_dir: '{tmp_path}/tb'}},"
        f"{{_target_: tf_keras.callbacks.SidecarEvaluatorModelExport, export_filepath: '{tmp_path}/best/{{epoch}}',"
        f" checkpoint_filepath: '{weights}/ckpt-{{epoch}}', save_weights_only: true, monitor: loss}}]"
    )
    _, folder = train(*keras, "evaluation=direct")
    then = [event for event in events(folder) if event["event"] == "evaluation"]
    folder.record("ended", status="completed", exit_code=0)
    evaluations = sidecar(folder, *keras, callbacks, "evaluation.max_evaluations=2")
    assert [event["step"] for event in evaluations] == [12, 24]
    for one, other in zip(evaluations, then):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)
    assert sidecar(folder, *keras, "evaluation.max_evaluations=2") == []  # those of before count
    (last,) = sidecar(folder, *keras, f"evaluation.checkpoint_dir={weights}")
    assert last["step"] == 36
    assert json.loads((folder.path / "run.json").read_text())["evaluation"]["step"] == 36
    names = ["accuracy", "auc", "loss"]
    batches = -(-100 // 32)
    called = [["begin", []], *[["batch", names]] * batches, ["end", names]]
    assert json.loads(notes.read_text()) == [[name, step, logs] for step in (12, 24) for name, logs in called]
    assert list((tmp_path / "tb" / "validation").glob("events*"))
    assert list((tmp_path / "best").glob("*.index"))


@pytest.mark.thorough
@pytest.mark.inprocess
def test_the_sidecar_evaluates_checkpoints_of_a_manager_and_refuses_those_of_another_model(train, sidecar, tmp_path):
    """As TensorFlow's tutorial takes them, in an own loop."""
    kept = tmp_path / "kept"
    loop = ("trainer=own_loop", "trainer._target_=user_code.managing", f"+trainer.folder={kept}", "checkpoint=none")
    _, folder = train(*loop, "evaluation=direct")
    then = [event for event in events(folder) if event["event"] == "evaluation"]
    folder.record("ended", status="completed", exit_code=0)
    evaluations = sidecar(folder, *loop, f"evaluation.checkpoint_dir={kept}")
    assert [event["step"] for event in evaluations] == [12, 24]
    assert evaluations[-1]["metrics"] == pytest.approx(then[-1]["metrics"], rel=1e-5)
    for path in folder.evaluations.iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="ckpt-1 is a checkpoint of another model"):
        sidecar(folder, *loop, f"evaluation.checkpoint_dir={kept}", "model.embedding_dim=5")


@pytest.mark.thorough
def test_the_sidecar_takes_the_latest_and_passes_over_what_is_damaged(train, sidecar):
    _, folder = train("evaluation=none", "trainer.epochs=4", "checkpoint.max_to_keep=9")
    folder.record("ended", status="completed", exit_code=0)
    flipped(folder.checkpoints / "ckpt-48.index")
    recorded = sidecar(folder, "evaluation.every=latest")
    assert [(event["event"], event["step"]) for event in recorded] == [("warning", 48), ("evaluation", 36)]
    assert "ckpt-48 is damaged" in recorded[0]["message"]


@pytest.mark.thorough
def test_a_checkpoint_that_is_removed_under_the_sidecar_is_not_missed(train, sidecar, monkeypatch):
    from psrun.checkpoint.store import Store
    from psrun.roles.sidecar import Sidecar

    _, folder = train("evaluation=none", "trainer.epochs=3", "checkpoint.max_to_keep=9")
    folder.record("ended", status="completed", exit_code=0)
    chosen = Sidecar._evaluated

    def removed(self, step):
        if step == 24:
            Store(folder.checkpoints)._remove(24)
        return chosen(self, step)

    monkeypatch.setattr(Sidecar, "_evaluated", removed)
    recorded = [(event["event"], event["step"]) for event in sidecar(folder)]
    assert recorded == [("evaluation", 12), ("warning", 24), ("evaluation", 36)]


@pytest.mark.thorough
def test_a_sidecar_without_checkpoints_or_with_another_model_is_an_error(train, sidecar, tmp_path, monkeypatch):
    from psrun.roles import sidecar as role

    monkeypatch.setattr(role, "_REPORT_AFTER_S", 0.0)
    empty = RunFolder.create(tmp_path / "empty", raw={})
    (empty.path / "metrics.jsonl").touch()
    with pytest.raises(ChiefGoneError, match=r"no checkpoint in .* and no chief for 1 s"):
        sidecar(empty)
    assert [event["event"] for event in events(empty)] == ["waiting"]
    _, folder = train("evaluation=none", "trainer.epochs=1")
    folder.record("ended", status="completed", exit_code=0)
    with pytest.raises(ConfigError, match="8x5 float32 here and 8x20 float32 there"):
        sidecar(folder, "model.embedding_dim=5")


@pytest.mark.tensorflow
@pytest.mark.parametrize("trainer", ["custom_loop", pytest.param("fit", marks=pytest.mark.thorough)])
def test_a_training_stops_early_on_request(train, trainer, monkeypatch):
    from psrun.training.loop import TrainingRun

    begin = TrainingRun.begin

    def begin_last(self, join):
        self.folder.end_early("enough")
        return begin(self, join)

    monkeypatch.setattr(TrainingRun, "begin", begin_last)
    result, folder = train("cluster=none", f"trainer={trainer}", "trainer.epochs=5")
    assert result["steps"] == {"applied": 12, "scheduled": 12, "repeated": 0}
    assert result["checkpoints"][-1]["step"] == 12
    monkeypatch.undo()
    folder.record("ended", status="completed")
    again = RunFolder.take_over(folder.path, completed=True, raw={"trainer": {"epochs": 2}})  # other than recorded
    with_more, _ = train("cluster=none", f"trainer={trainer}", into=again)
    assert with_more["steps"]["applied"] == 24


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster=inprocess", "evaluation=sidecar"], "'sidecar' requires an evaluator task; choose cluster=local"),
        (["cluster=local", "evaluation=sidecar", "checkpoint=none"], "'sidecar' requires checkpoints"),
        (["cluster=local", "evaluation=sidecar", "export.best=true"], "requires checkpoint.best_metric"),
        (["cluster=inprocess", "evaluation=sidecar_thread"], "requires workers in separate processes"),
        (["cluster=local", "evaluation=sidecar_thread", "cluster.num_workers=1"], "must be at least 2"),
        (["early_stopping.metric=val_loss"], "early_stopping.mode: is required for val_loss"),
        (["reduce_lr.factor=1"], r"reduce_lr.factor: is 1.*, must be between 0 and 1"),
        (
            ["early_stopping.metric=loss", "cluster=multi_worker_mirrored", "trainer=fit", "evaluation=validation"],
            "each process would decide independently",
        ),
        (
            [
                "trainer=fit",
                "cluster=local",
                "evaluation=sidecar",
                "trainer.callbacks=[{_target_: tf_keras.callbacks.EarlyStopping}]",
            ],
            "EarlyStopping monitors val_loss, which evaluation=sidecar does not provide; use early_stopping",
        ),
        (["export.best=true"], "requires an evaluator task; choose evaluation=sidecar"),
        (["cluster=none", "evaluation=distributed"], "'distributed' requires parameter server training"),
        (["evaluation=sidecar", "cluster=local", "evaluation.every=2"], "must be one of each, latest"),
    ],
)
def test_modes_that_cannot_be_are_reported_before_anything_starts(overrides, message):
    with pytest.raises(ConfigError, match=message):
        run_config(*overrides)


@pytest.mark.parametrize(
    ("mode", "min_delta", "values", "reached"),
    [
        ("max", 0.0, [0.5, 0.6, 0.6, 0.5, 0.7], [False, False, False, True, False]),
        ("min", 0.0, [3, 2, 2, 2, 2, 2], [False, False, False, True, False, True]),
        ("max", 0.2, [0.5, 0.6, 0.7], [False, False, True]),
        ("min", 0.0, [float("nan"), float("nan"), 1.0], [False, True, False]),
    ],
)
def test_a_plateau_is_reached_when_patience_runs_out(mode, min_delta, values, reached):
    plateau = Plateau(EarlyStopping("val_auc", mode, 2, min_delta))
    assert [plateau.reached({"val_auc": value}) for value in values] == reached
    assert not plateau.reached({"loss": 0.1})  # without the metric nothing counts


def events(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


STILL = ("optimizer=sgd", "optimizer.learning_rate=0.000001", "trainer.epochs=9")


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("trainer", "way"),
    [("custom_loop", "exact"), ("custom_loop", "distributed"), ("fit", "direct"), ("fit", "validation")],
)
def test_early_stopping_and_learning_rate_follow_every_way_to_evaluate(train, trainer, way):
    result, folder = train(
        *STILL, f"trainer={trainer}", f"evaluation={way}", "partitioner=fixed_shards",
        *("early_stopping.metric=val_auc", "early_stopping.mode=max", "early_stopping.min_delta=1"),
        *("reduce_lr.metric=val_auc", "reduce_lr.mode=max", "reduce_lr.min_delta=1", "reduce_lr.patience=1"),
    )  # fmt: skip
    # The first evaluation sets the mark, the next three do not pass it.
    assert result["steps"]["applied"] == 4 * 12
    assert result["checkpoints"][-1]["step"] == 4 * 12
    lowered = [event for event in events(folder) if event["event"] == "learning_rate"]
    assert [event["step"] for event in lowered] == [24, 36, 48]
    assert [event["value"] for event in lowered] == pytest.approx([5e-7, 2.5e-7, 1.25e-7])
    assert "val_auc has not improved in 3 evaluations" in (folder.path / "end-early").read_text()


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_a_resumed_run_keeps_its_learning_rate_and_its_patience(train, monkeypatch):
    from psrun.training.metric_policies import MetricPolicies

    ended = MetricPolicies.after_evaluation
    rates = []

    def after_evaluation(self, context):
        ended(self, context)
        rates.append(float(self._optimizer.learning_rate))

    monkeypatch.setattr(MetricPolicies, "after_evaluation", after_evaluation)
    rules = ("cluster=none", *STILL, "reduce_lr.metric=val_auc", "reduce_lr.mode=max", "reduce_lr.min_delta=1",
             "reduce_lr.patience=2", "reduce_lr.min_lr=0.0000003", "trainer.steps_per_epoch=3")  # fmt: skip
    train(*rules)
    whole, rates[:] = list(rates), []
    _, folder = train(*rules, "trainer.epochs=4")
    folder.record("ended", status="completed")
    train(*rules, into=RunFolder.take_over(folder.path, completed=True))
    assert rates == whole == pytest.approx([1e-6] * 2 + [5e-7] * 2 + [3e-7] * 5)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["early_stopping.metric=val_acu", "early_stopping.mode=max"],
            "'val_acu', which this run does not have; choose one of loss, auc",
        ),
        (
            ["early_stopping.metric=val_auc", "early_stopping.mode=max", "evaluation=none"],
            "which this run does not have",
        ),
    ],
)
def test_a_followed_metric_that_the_run_lacks_is_reported(train, overrides, message):
    with pytest.raises(ConfigError, match=message):
        train("cluster=none", "early_stopping.mode=max", *overrides)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("metric", "message"), [("NotOnce", "not_once cannot be cloned"), ("R2Score", "r2_score creates")]
)
def test_a_metric_that_keras_cannot_merge_is_refused_before_training(train, monkeypatch, metric, message):
    import example_ids as data

    def model(source):
        original = inner(source)
        return replace(original, metrics=lambda: [m for m in original.metrics() if type(m).__name__ == metric])

    inner = data.model
    monkeypatch.setattr(data, "model", model)
    with pytest.raises(ConfigError, match=f"'validation' adds up the workers' metrics, but {message}.*choose exact"):
        train(*counted("trainer=fit", "evaluation=validation"))


@pytest.mark.tensorflow
def test_a_run_stopped_early_by_its_training_loss_is_evaluated_at_its_end(train):
    result, _ = train("cluster=none", *STILL, "early_stopping.metric=loss", "early_stopping.mode=min",
                      "early_stopping.min_delta=9", "early_stopping.patience=2", "evaluation.every=5",
                      "checkpoint.every_epochs=5")  # fmt: skip
    assert result["steps"]["applied"] == 3 * 12
    assert result["evaluation"]["step"] == 3 * 12
    assert result["checkpoints"][-1]["step"] == 3 * 12


@pytest.mark.tensorflow
def test_a_schedule_that_a_function_makes_cannot_be_lowered(train):
    with pytest.raises(ConfigError, match=r"but the optimizer has a schedule"):
        train("cluster=none", "optimizer._target_=example_ids.scheduled", "~optimizer.learning_rate",
              "reduce_lr.metric=loss", "reduce_lr.mode=min")  # fmt: skip


@pytest.mark.tensorflow
def test_a_callback_of_keras_that_monitors_no_metric_of_the_run_is_refused(train):
    """One that an earlier callback of one's own may add is not."""
    early = "{_target_: tf_keras.callbacks.EarlyStopping, monitor: val_los}"
    fit = ("cluster=none", "trainer=fit", "trainer.epochs=1")
    for named, key in ((early, "0"), ("{_target_: tf_keras.callbacks.CSVLogger, filename: /dev/null}, " + early, "1")):
        message = rf"callbacks\[{key}\]\.monitor: is 'val_los', which this run does not have; .* loss, auc, .*val_loss"
        with pytest.raises(ConfigError, match=message):
            train(*fit, f"trainer.callbacks=[{named}]")
    lowers = "{_target_: tf_keras.callbacks.ReduceLROnPlateau, monitor: val_auc, mode: max}"
    saves = "{_target_: tf_keras.callbacks.ModelCheckpoint, filepath: /dev/null/never, monitor: x, save_freq: 1000}"
    result, _ = train(*fit, f"trainer.callbacks=[{lowers}, {saves}, {{_target_: example_ids.Adds}}, {early}]")
    assert result["steps"]["applied"]
