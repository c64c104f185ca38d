"""What psrun says of mistakes in trainers, evaluations, losses, weights, delays and predictions, before it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf
import tf_keras
from sample_weights import own_data
from support import SMALL, raw_config

from psrun.checkpoint import export
from psrun.checkpoint.load_model import LoadedModel
from psrun.checkpoint.manifest import Contents, Manifest, Position
from psrun.config import parse
from psrun.data.features import HeroFeatures
from psrun.data.source import Feature
from psrun.errors import ConfigError, ExportError
from psrun.models.model import Model
from psrun.optimizers.schedules import Scaled
from psrun.roles import predictor
from psrun.tables.table import Table

pytestmark = pytest.mark.tensorflow
LATE = ("cluster=none", "consistency=simulated")
KERAS_STOPS = "trainer.callbacks=[{_target_: tf_keras.callbacks.EarlyStopping}]"
RAISES = "{_target_: user_code.raises"
HOOKS = (f"{RAISES}, every_steps: 1, every_s: 2}}", f"{RAISES}, every_step: 1}}", f"{RAISES}, every_steps: 0}}")
# What is reported together is in one case.
CONFIGURED = {
    "sidecar-inprocess": [
        "cluster=inprocess", "evaluation=sidecar", "early_stopping.metric=val_loss", "reduce_lr.factor=1",
    ],
    "sidecar-without-checkpoints": [
        "cluster=local", "evaluation=sidecar", "checkpoint=none", "trainer=fit", KERAS_STOPS,
    ],
    "export-best-without-metric": ["cluster=local", "evaluation=sidecar", "export.best=true"],
    "distributed-and-export-best-alone": ["cluster=none", "evaluation=distributed", "export.best=true"],
    "sidecar_thread-inprocess": ["cluster=inprocess", "evaluation=sidecar_thread"],
    "sidecar_thread-one-worker": ["cluster=local", "evaluation=sidecar_thread", "cluster.num_workers=1"],
    "stopping-by-each-process": [
        "early_stopping.metric=loss", "early_stopping.mode=min", "cluster=multi_worker_mirrored", "trainer=fit",
        "evaluation=validation",
    ],
    "own_loop-without-target": ["trainer=own_loop", "cluster=local", "evaluation=sidecar", "evaluation.every=2"],
    "own_loop-typo": ["trainer=own_loop", "trainer._target_=user_code.tutorials"],
    "own_loop-option-typo": ["trainer=own_loop", "trainer._target_=user_code.tutorial", "+trainer.clips=1"],
    "target-of-fit": ["trainer=fit", "+trainer._target_=user_code.plain"],
    "hooks": [f"trainer.hooks=[user_code.Notes, {', '.join(HOOKS)}]"],
    "predict-file": ["predict.path=p.csv.gz", "predict.keep=[a,b,a]"],
    "predict-values": ["predict.format=xml", "predict.keep=id"],
    "delay-on-workers": [*LATE, "cluster=inprocess"],
    "delay-in-own-loop": [
        *LATE, "trainer=own_loop", "trainer._target_=user_code.plain", "consistency.mean=1.5", "consistency.run=x",
    ],
    "delay-values": [*LATE, "consistency.mean=-1", "consistency.delay=normal"],
    "delay-without-mean": [*LATE, "consistency.mean=null"],
    "delay-mean-without-effect": [*LATE, "consistency.delay=recorded"],
    "delay-no-file": [*LATE, "consistency.mean=null", "consistency.delay=recorded", "consistency.run=none"],
    "delay-no-json": [*LATE, "consistency.mean=null", "consistency.delay=recorded", "consistency.run=text"],
    "delay-no-histogram": [*LATE, "consistency.mean=null", "consistency.delay=recorded", "consistency.run=."],
    "model-typos": ["model=dense", "model.loss=mse_", "model.metrics=[auk]", "model.class_weight=[1, 2]"],
    "model-names-within": [
        "model=dense", "model.loss=own.loss", "model.metrics={click: [mae, recal]}",
        "model.class_weight={0: 1, 1: much}",
    ],
    "metrics-of-lists": ["model=dense", "model.metrics=[ndcg, ndcg@0, ndgc@10]"],
    "metric-of-lists-without-users": ["model=dense", "model.metrics=[ndcg@10]"],
    "metric-of-lists-without-evaluation": ["model=dense", "evaluation=none", "model.metrics=[ndcg@10]"],
    "metric-of-lists-by-keras": [
        "model=dense", "trainer=fit", "evaluation=validation", "model.metrics=[gauc]", "evaluation.user=x",
    ],
    "lists-counted-about-once": [
        "model=dense", "evaluation=distributed", "model.metrics=[gauc]", "evaluation.user=x",
    ],
    "segments-counted-about-once": ["model=dense", "evaluation=distributed", "evaluation.by=[x]"],
    "candidates-counted-about-once": [
        "model=dense", "evaluation=distributed", "model.metrics=[recall@3]", "evaluation.user=x", "evaluation.item=z",
        "evaluation.candidates=all",
    ],
    "segments-by-keras": ["model=dense", "trainer=fit", "evaluation=validation", "evaluation.by=[x, x]"],
    "candidates-of-nothing": ["model=dense", "evaluation.candidates=0"],
    "candidates-alone": ["model=dense", "evaluation.candidates=all", "evaluation.by=[z]"],
    "coverage-without-all": ["model=dense", "model.metrics=[coverage@10]", "evaluation.user=x"],
    "coverage-of-drawn": [
        "model=dense", "model.metrics=[coverage@9]", "evaluation.user=x", "evaluation.item=y",
        "evaluation.candidates=9",
    ],
    "top-without-features": ["model=dense", "predict.top_k=0", "export.top_k=5"],
    "top-of-tfrecord": ["model=dense", "predict.top_k=3", "predict.path=p.tfrecord", "predict.keep=[a]"],
    "loss-by-output": ["model=dense", "model.loss={click: mze}"],
    "loss-number": ["model=dense", "model.loss=3"],
    "loss-option": ["model=dense", "model.loss={_target_: sample_weights.off_by_more, power_: 2}"],
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURED)
def test_mistakes_that_the_configuration_shows(name, tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("mean: 3")
    (tmp_path / "run.json").write_text('{"staleness": {"mean": 3}}')
    says(parse.load, raw_config(*CONFIGURED[name]))


def weighted(*pieces: str, **keys: str) -> tuple[str, ...]:
    return tuple(own_data("cluster=none", *pieces, **keys))


def numbered(*pieces: str, data: str = "Numbered") -> tuple[str, ...]:
    return (
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", f"data._target_=example_ids.{data}",
        "~data.num_train_examples", "~data.noise", "~data.num_features", "data.num_eval_examples=100",
        "trainer.epochs=1", *pieces,
    )  # fmt: skip


def steps(*pieces: str, model: str = "steps") -> tuple[str, ...]:
    own = ("model=dense", "~model.hidden_units", f"model._target_=user_models.{model}", "optimizer=sgd")
    return (*own, "cluster=none", *pieces)


CSV_FIRST = "{_target_: tf_keras.callbacks.CSVLogger, filename: /dev/null}, "
EARLY = "{_target_: tf_keras.callbacks.EarlyStopping, monitor: val_los}"
MAX = "early_stopping.mode=max"
BUILT: Mapping[str, tuple[str, ...]] = {
    "batch-larger-than-data": ("cluster=none", "data.global_batch_size=501"),
    "nothing-to-evaluate": ("cluster=none", "data.num_eval_examples=0"),
    "no-features": ("cluster=none", "model=dense", "data=features", *SMALL["features"], "~model.hidden_units"),
    "no-device": ("cluster=one_device", "cluster.device=/GPU:7"),
    "class_weight-missing": weighted("model.class_weight={0: 1}"),
    "class_weight-others": weighted("model.class_weight={0: 1, 2: 3}"),
    "task-without-loss": weighted("+data.task=ranking"),
    "metric-needs-arguments": weighted("model.metrics=[MeanIoU]"),
    "metrics-of-one-name": weighted("model.metrics=[mae, mae]", "+data.weights=none"),
    "metric-of-several-values": weighted("model.metrics=[AUC, F1Score]", "+data.weights=none"),
    "metric-wrong-with-weights": weighted("model.metrics=[{_target_: tf_keras.metrics.F1Score, average: micro}]"),
    "logits-twice": weighted(
        "model.loss={_target_: tf_keras.losses.BinaryCrossentropy, from_logits: true}", "model.from_logits=false",
        "+model.activation=null",
    ),
    "stopping-metric-typo": ("cluster=none", "early_stopping.metric=val_acu", MAX),
    "stopping-without-evaluation": ("cluster=none", "early_stopping.metric=val_auc", MAX, "evaluation=none"),
    "stopping-metric-of-own-step": steps("early_stopping.metric=mae", "early_stopping.mode=min"),
    "best-metric-typo": ("cluster=none", "checkpoint.best_metric=val_acu"),
    "rate-of-a-schedule": (
        "cluster=none", "optimizer._target_=example_ids.scheduled", "~optimizer.learning_rate",
        "reduce_lr.metric=loss", "reduce_lr.mode=min",
    ),
    "second-callback-metric-typo": ("cluster=none", "trainer=fit", f"trainer.callbacks=[{CSV_FIRST}{EARLY}]"),
    "evaluation-endless": numbered("+data.endless=true", "evaluation=exact", data="AsOthersHaveIt"),
    "evaluation-wide": numbered("+data.wide=true", "evaluation=exact", data="AsOthersHaveIt"),
    "rows-without-tables": ("model=embedding", "trainer.prefetch_rows=true"),
    "own-step-of-a-loss-each": steps("evaluation=none", model="wrong"),
    "own-step-of-a-loss-each-by-fit": steps("evaluation=none", "trainer=fit", model="wrong"),
    "loop-idles": ("cluster=none", "model=dense", "trainer=own_loop", "trainer._target_=user_code.idle"),
    "loop-fails": ("cluster=none", "model=dense", "trainer=own_loop", "trainer._target_=user_code.fails"),
    "hook-fails": (
        "cluster=none", "evaluation=none",
        "trainer.hooks=[{_target_: user_code.raises, at: 12, every_epochs: 1}]",
    ),
}  # fmt: skip


@pytest.mark.inprocess
@pytest.mark.parametrize("name", BUILT)
def test_mistakes_that_the_program_shows(name, train, says):
    says(train, *BUILT[name], num_workers=1)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("pieces", "key"),
    [
        (("cluster=none", "model.embedding_dim=-1"), "model"),
        (("cluster=none", "optimizer=adam", "+optimizer.learnign_rate=1"), "optimizer"),
        (weighted("model.loss={clik: mse}"), "model.loss"),
        (numbered("trainer=fit", "evaluation=validation"), "evaluation"),  # a metric cannot be cloned
    ],
)
def test_errors_that_quote_keras_have_the_key(train, pieces, key):
    with pytest.raises(ConfigError) as raised:
        train(*pieces, num_workers=1)
    assert [problem.key for problem in raised.value.problems] == [key]


def test_data_that_ends(train, monkeypatch, says):
    endless = HeroFeatures.train
    monkeypatch.setattr(HeroFeatures, "train", lambda self, **keys: endless(self, **keys).take(3))
    says(train, "cluster=none", "model=embedding")


ROWS = {"age": [1.5, 2.5, 3.5, 4.5], "w": [2.0, 0.0, 0.25, 7.0], "label": [0, 1, 1, 0]}
WEIGHTS = {
    "no-column": ({}, {"weight": "wt"}),
    "feature-of-that-name": ({}, {"features": {"w": {"column": "age"}}}),
    "words": ({"w": ["a", "b", "c", "d"]}, {"max_bad_rows": 99}),
    "nothing": ({"w": [""] * 4}, {"max_bad_rows": 99}),
    "zeros": ({"w": [0] * 4}, {}),
    **{f"row-{bad}": ({"w": [1.0, bad, 2.0, 3.0]}, {}) for bad in (-1, -1e-50, "nan", "inf", "", "much")},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_columns_that_cannot_have_weights(name, tmp_path, says):
    columns, options = WEIGHTS[name]
    path = tmp_path / "rows.csv"
    rows = [[*ROWS], *zip(*(ROWS | columns).values())]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    says(Table, **{"path": str(path), "label": "label", "task": "binary", "weight": "w", **options})


def test_what_cannot_be_exported(tmp_path):
    class Data:
        task, features = "regression", {"x": Feature((1,), tf.string)}

    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1.0]), 0.0)
    network = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)])
    manifest = Manifest(7, Position(), Contents("", {}, {}, []), "", "")
    hidden = Model(network, lambda features: table.lookup(features["x"]))  # where TensorFlow does not find the table
    data: Any = Data()
    with pytest.raises(ExportError) as raised:
        export.write(LoadedModel(hidden, data, manifest), tmp_path, print)
    assert f"could not be exported to {tmp_path}/7" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_predictions_that_are_no_columns(says):
    values = {"words": tf.ragged.constant([[0.5], [0.25, 0.75]])}
    says(predictor._by_name, values, (), alone="prediction")


@pytest.mark.parametrize("options", [{"rule": "cubic"}, {"factor": 0}, {"steps": -1}])
def test_schedules_that_cannot_be(options, says):
    says(Scaled, **{"learning_rate": 0.1, "factor": 2, **options})
