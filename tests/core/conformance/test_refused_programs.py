"""Mistakes in layers, placement, optimizers, models and data are refused, by the key or the option that has to change.

What is said: tests/core/contract/test_messages_core.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from list_features import Histories
from list_features import own_data as lists_of
from messages import refused
from sample_weights import own_data
from support import SMALL, TABLED, run_config
from word_labels import Labelled

from psrun.checkpoint import trained_model
from psrun.checkpoint.storage import Contents, Manifest, Position
from psrun.checkpoint.trained_model import LoadedModel
from psrun.cluster import strategy
from psrun.data import loading
from psrun.data.datasets import FashionMnist, HeroFeatures
from psrun.data.source import Feature
from psrun.errors import DataError, ExportError, TrainingError
from psrun.layers import Embedding, EmbeddingCollection, Table
from psrun.models.model import Model, cnn, embedding
from psrun.optimizers import sparse
from psrun.optimizers.schedules import Scaled
from psrun.program import embeddings, objective
from psrun.program.build import make_model
from psrun.program.make_optimizer import make_optimizer
from psrun.roles import checkpoint_modes, planner

pytestmark = pytest.mark.tensorflow


def collection(*given: Any, **options: Any) -> EmbeddingCollection:
    """A collection of tables of five ids, by their names and features."""
    return EmbeddingCollection([Table(name, features, 5, 2) for name, features in given], name="t", **options)


def called(ids: Any, weights: Any = None, feature: str = "x", **options: Any) -> Any:
    """Calls a collection; nested lists stand for RaggedTensors."""
    given = tf.ragged.constant(ids) if isinstance(ids, list) else ids()
    own = {} if weights is None else {feature: tf.ragged.constant(weights) if isinstance(weights, list) else weights()}
    return collection(("a", ("x",)), **options)({"x": given}, weights=own)


LISTS = [[1], [2, 3]]
WHOLE = [[1.0], [1.0, 1.0]]
ITEM = {"name": "a", "features": ("x",), "num_ids": 5, "dim": 2}
# The calls, by a text of their ValueError.
LAYERS: dict[str, list[Callable[[], Any]]] = {
    "oov is": [lambda: Embedding(5, 3, oov="zero")],
    "deduplicate is": [
        lambda: Embedding(5, 3, deduplicate=2),
        lambda: collection(("a", ("x",)), deduplicate=1),
    ],
    "both must be positive": [lambda: Embedding(0, 3), lambda: Embedding(5, -1)],
    "must have lists of ids": [
        lambda: Embedding(5, 2, name="e")(tf.ragged.constant([[[1]], [[2, 3]]])),
        lambda: called([[[1], [2, 3]]]),
        lambda: called(lambda: tf.sparse.from_dense([[[1, 0]]])),
    ],
    "ids of an integer type": [lambda: called(lambda: tf.constant([[1.7], [2.2]]))],
    "stack is": [lambda: collection(("a", ("x",)), stack=0)],
    "must be a tuple of names": [lambda: collection(("a", "item")), lambda: collection(("a", ()))],
    "rename one": [lambda: collection(("a", ("x",)), ("a", ("y",)))],
    "a feature has one table": [lambda: collection(("a", ("x",)), ("b", ("x",)))],
    "at least one table": [collection],
    "combiner names": [lambda: collection(("a", ("x",)), combiner={"z": "sum"})],
    "combiner of x is": [lambda: collection(("a", ("x",)), combiner={"x": "first"})],
    "lack the features y": [lambda: collection(("a", ("x",)), ("b", ("y",)))({"x": tf.constant([[1]])})],
    "weights for z": [lambda: called(LISTS, WHOLE, feature="z", combiner="mean")],
    "choose the combiner": [lambda: called(LISTS, WHOLE, combiner="max"), lambda: called(LISTS, WHOLE)],
    "weights of a floating point type": [lambda: called(LISTS, [[1], [1, 2]], combiner="mean")],
    "as many weights as ids": [lambda: called(LISTS, [[1.0], [1.0]], combiner="sum")],
    "weights of another shape": [
        lambda: called(LISTS, [*WHOLE, []], combiner="sum"),
        lambda: called(LISTS, lambda: tf.ones([2, 1]), combiner="sum"),
    ],
    "optimizer": [lambda: EmbeddingCollection([{**ITEM, "optimizer": "adam"}])],
    "dim": [lambda: EmbeddingCollection([{"name": "a", "features": ("x",), "num_ids": 5}])],
    "amsgrad": [lambda: sparse.LazyAdam(amsgrad=True)],
    "weight_decay": [lambda: sparse.SparseAdagrad(weight_decay=0.1)],
    "rule is": [lambda: Scaled(learning_rate=0.1, factor=2, rule="cubic")],
    "factor is": [lambda: Scaled(learning_rate=0.1, factor=0)],
    "steps is": [lambda: Scaled(learning_rate=0.1, factor=2, steps=-1)],
    "requires one value per example": [lambda: cnn(of_lists()), lambda: embedding(of_lists())],
}


def of_lists() -> Any:
    source = Histories()
    source.task = "binary"
    return source


@pytest.mark.parametrize("text", LAYERS)
def test_layers_optimizers_and_models(text):
    for call in LAYERS[text]:
        refused(text, call, error=ValueError)


def test_an_id_outside_of_a_table():
    refused("ids must be from 0 to 4", lambda: Embedding(5, 2)(tf.constant([[1, 7]])), error=tf.errors.OpError)


def network(*names: str) -> tf_keras.Model:
    """A model of stacked tables."""
    inputs = {name: tf_keras.Input((1,), dtype="int64", name=name) for name in names}
    own = [Table(name, (name,), 10, 4) for name in names]
    return tf_keras.Model(inputs, list(EmbeddingCollection(own, stack=True, name="tables")(inputs).values()))


@pytest.mark.parametrize("name", ["^b/embeddings:0$", "stack_4_of_a"])
def test_stacked_tables_do_not_decay_apart(name):
    optimizer = tf_keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=[name])
    refused("optimizer", embeddings.check_storable, network("a", "b"), optimizer)


@pytest.mark.parametrize(("wanted", "cpus", "gpus"), [(None, (1, 1), (2, 1)), (2, (2, 1), (0, 0))])
def test_replicas_that_a_worker_lacks(wanted, cpus, gpus, monkeypatch):
    def logical(kind: str, counts: tuple[int, ...]) -> list[Any]:
        places = [(task, number) for task, count in enumerate(counts) for number in range(count)]
        names = [f"/job:worker/replica:0/task:{task}/device:{kind}:{number}" for task, number in places]
        return [tf.config.LogicalDevice(name, kind) for name in names]

    of_kind = {"CPU": logical("CPU", cpus), "GPU": logical("GPU", gpus)}
    monkeypatch.setattr(tf.config, "list_logical_devices", of_kind.__getitem__)
    refused("cluster.replicas_per_worker", strategy.replica_devices, wanted)


CUTTING = """
def of(value):
    return lambda shape, dtype: value

def nothing():
    pass

def failing(shape, dtype):
    raise KeyError(shape[0])

def by_rows(shape, dtype, axis=0, rows: int = 3):
    return [-(-shape[0] // rows), 1]

class Wide:
    def __init__(self, least: int): self.least = least
    def __call__(self, shape, dtype, axis=0): return (2,)
"""
PARTITIONERS = {
    ("partitioner._target_=cutting.by_row",): "partitioner._target_",
    ("partitioner._target_=cutting.by_rows", "+partitioner.row=3"): "partitioner.row",
    ("partitioner._target_=cutting.Wide",): "partitioner.least",
    (): "partitioner._target_",
    ("partitioner._target_=cutting.of", "+partitioner.value=[1.5,1]"): "partitioner",
    ("partitioner._target_=cutting.of", "+partitioner.value=[0,1]"): "partitioner",
    ("partitioner._target_=cutting.of", "+partitioner.value=[]"): "partitioner",
    ("partitioner._target_=cutting.of", "+partitioner.value=[true,1]"): "partitioner",
    ("partitioner._target_=cutting.nothing",): "partitioner",
    ("partitioner._target_=cutting.failing",): "partitioner",
    ("partitioner._target_=cutting.of", "+partitioner.value=3"): "partitioner",
}


@pytest.mark.parametrize("pieces", PARTITIONERS)
def test_partitioners(pieces, tmp_path, monkeypatch):
    def cut() -> Any:
        run = run_config("partitioner=custom", *pieces)
        return strategy.make_partitioner(run.partitioner)(shape=tf.TensorShape([8, 20]), dtype=tf.float32)

    (tmp_path / "cutting.py").write_text(CUTTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cutting", raising=False)
    refused(PARTITIONERS[pieces], cut)
    sys.modules.pop("cutting", None)


CUT = ("cluster=local", "partitioner=fixed_shards", "model=dense", "data=regression", *SMALL["regression"])
BOUNDED = (*CUT, "~model.hidden_units", "model._target_=user_models.bounded")
BASKET = (*(each for each in TABLED if not each.startswith("data._target_")), "data._target_=embeddings.Basket",
          "model._target_=embeddings.basket", "cluster=none")  # fmt: skip
SECOND = (*CUT, "~model.hidden_units", "model._target_=user_optimizers.network")
OWN = "optimizer._target_=user_optimizers."
OF_TABLES = ("optimizer=sgd", "table_optimizer=sgd")
PLANNED = {
    "all rows of a stack": ((*BASKET, f"{OWN}Lamb"), "optimizer"),
    "all rows of shards": ((*CUT, f"{OWN}Lamb", "optimizer.learning_rate=1e-9"), "partitioner"),
    "all rows, by an optimizer of a model": ((*SECOND, "+model.kind=Adafactor"), "partitioner"),
    "averages of an optimizer of a model": ((*SECOND, "+model.kind=Averaged"), "model"),
    "a legacy optimizer of a model": ((*SECOND, "+model.kind=Legacy"), "model"),
    "a constraint of columns": ((*BOUNDED, "+model.kind=columns"), "partitioner"),
    "a regularizer of columns": ((*BOUNDED, "+model.kind=orthogonal"), "partitioner"),
    "sharding by files of a source without": (
        ("cluster=multi_worker_mirrored", "trainer=fit", "model=dense", "data.sharding=file"),
        "data.sharding",
    ),
}


@pytest.mark.parametrize("case", PLANNED)
def test_what_a_plan_shows(case):
    pieces, key = PLANNED[case]
    run = run_config(*pieces)
    refused(key, planner.make, run, loading.load_source(run))


@pytest.mark.parametrize(
    ("pieces", "key"),
    [
        ((f"{OWN}scaled_nadam", "~optimizer.learning_rate"), "optimizer"),
        ((f"{OWN}scaled_legacy",), "optimizer._target_"),
        (("optimizer._target_=tensorflow.compat.v1.train.AdagradOptimizer",), "optimizer._target_"),
        ((*OF_TABLES, f"table_{OWN}scaled_nadam", "~table_optimizer.learning_rate"), "table_optimizer"),
        ((*OF_TABLES, f"table_{OWN}with_averages"), "table_optimizer"),
        ((*OF_TABLES, f"table_{OWN}clipping"), "table_optimizer.clipnorm"),
        ((*OF_TABLES, f"table_{OWN}scaled"), "table_optimizer._target_"),
        ((*OF_TABLES, f"{OWN}Centered"), "optimizer._target_"),
    ],
)
def test_optimizers(pieces, key):
    refused(key, make_optimizer, run_config(*pieces), tf_keras.Sequential())


def width(task: str, predicted: tuple[int | None, ...], label: tuple[int | None, ...]) -> None:
    source: Any = SimpleNamespace(task=task, num_classes=10)
    specs = [tf.TensorSpec(shape, tf.float32) for shape in (predicted, label)]
    objective.check_widths(*specs, Model(tf_keras.Sequential()), source)


def test_widths_of_predictions():
    refused("model", width, "binary", (None, 2), (None, 1))
    refused("model", width, "regression", (None, 7, 1), (None, 1))


HEROES = ("model._target_=user_models.heroes", "~model.embedding_dim")


@pytest.mark.parametrize(
    "pieces",
    [
        ("model.from_logits=true",),
        ("model=dense", "model.from_logits=true"),
        (*HEROES, "+model.loss_logits=false", "model.from_logits=true"),
    ],
)
def test_logits(pieces):
    run = run_config(*pieces)
    refused(
        "model.from_logits",
        lambda: objective.metrics_of(make_model(run, loading.load_source(run)), "regression"),
    )


# -- data


def test_labels_and_their_words():
    plain = Labelled()
    words = Labelled(values=["no", "yes"])
    _, spec = words.train(batch_size=1, seed=np.int64(0)).element_spec
    assert [problem.key for problem in loading.vocabulary_problems(plain, ("a", "b", "c"))] == ["data.label_vocabulary"]
    three = Labelled(num_classes=3)
    assert [problem.key for problem in loading.vocabulary_problems(three, ("a", "b"))] == ["data.label_vocabulary"]
    refused("data.label_vocabulary", loading.to_class_numbers, plain, ("a", "b"))
    refused("data.label_vocabulary", loading.check_label_specs, spec)
    refused("data", loading.check_label_specs, type(spec)(None, "float32"))


def test_images(tmp_path):
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte")
    header = bytes([0, 0, 8, 1, 0, 0, 0, 5])
    for damage, content in {"whole": header + bytes(5), "truncated": header[:6]}.items():
        folder = tmp_path / damage
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(content)
        refused(str(folder), FashionMnist, error=DataError, path=str(folder))
    np.savez(tmp_path / "f.npz", x=np.zeros(3))
    refused("f.npz", FashionMnist, error=DataError, path=str(tmp_path / "f.npz"))


# -- what the program shows


def numbered(*pieces: str, data: str = "Numbered") -> tuple[str, ...]:
    return (
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", f"data._target_=example_ids.{data}",
        "~data.num_train_examples", "~data.noise", "~data.num_features", "data.num_eval_examples=100",
        "trainer.epochs=1", *pieces,
    )  # fmt: skip


def weighted(*pieces: str) -> tuple[str, ...]:
    return tuple(own_data("cluster=none", *pieces))


def steps(*pieces: str) -> tuple[str, ...]:
    own = ("model=dense", "~model.hidden_units", "model._target_=user_models.steps", "optimizer=sgd")
    return (*own, "cluster=none", *pieces)


COUNTED = (
    "~model.embedding_dim", "model._target_=example_ids.model", "~data.num_train_examples", "~data.num_eval_examples",
    "evaluation=none",
)  # fmt: skip
MAX = "early_stopping.mode=max"
CSV_FIRST = "{_target_: tf_keras.callbacks.CSVLogger, filename: /dev/null}, "
EARLY = "{_target_: tf_keras.callbacks.EarlyStopping, monitor: val_los}"
BUILT: Mapping[str, tuple[tuple[str, ...], str]] = {
    "no-features": (
        ("cluster=none", "model=dense", "data=features", *SMALL["features"], "~model.hidden_units"),
        "model",
    ),
    "no-device": (("cluster=one_device", "cluster.device=/GPU:7"), "cluster.device"),
    "class_weight-missing": (weighted("model.class_weight={0: 1}"), "model.class_weight"),
    "class_weight-others": (weighted("model.class_weight={0: 1, 2: 3}"), "model.class_weight"),
    "task-without-loss": (weighted("+data.task=ranking"), "model.loss"),
    "loss-of-no-output": (weighted("model.loss={clik: mse}"), "model.loss"),
    "metric-needs-arguments": (weighted("model.metrics=[MeanIoU]"), "model.metrics[0]"),
    "metrics-of-one-name": (weighted("model.metrics=[mae, mae]", "+data.weights=none"), "model.metrics"),
    "metric-of-several-values": (weighted("model.metrics=[AUC, F1Score]", "+data.weights=none"), "model.metrics"),
    "metric-wrong-with-weights": (
        weighted("model.metrics=[{_target_: tf_keras.metrics.F1Score, average: micro}]"),
        "model.metrics",
    ),
    "logits-twice": (
        weighted(
            "model.loss={_target_: tf_keras.losses.BinaryCrossentropy, from_logits: true}",
            "model.from_logits=false",
            "+model.activation=null",
        ),
        "model.from_logits",
    ),
    "stopping-without-evaluation": (
        ("cluster=none", "early_stopping.metric=val_auc", MAX, "evaluation=none"),
        "early_stopping.metric",
    ),
    "stopping-metric-of-own-step": (
        steps("early_stopping.metric=mae", "early_stopping.mode=min"),
        "early_stopping.metric",
    ),
    "best-metric-typo": (
        ("cluster=none", "checkpoint.best_metric=val_acu", "checkpoint.best_mode=max"),
        "checkpoint.best_metric",
    ),
    "rate-of-a-schedule": (
        (
            "cluster=none", "optimizer._target_=example_ids.scheduled", "~optimizer.learning_rate",
            "reduce_lr.metric=loss", "reduce_lr.mode=min",
        ),
        "reduce_lr.metric",
    ),
    "second-callback-metric-typo": (
        ("cluster=none", "trainer=fit", f"trainer.callbacks=[{CSV_FIRST}{EARLY}]"),
        "trainer.callbacks[1].monitor",
    ),
    "evaluation-endless": (numbered("+data.endless=true", "evaluation=exact", data="AsOthersHaveIt"), "data"),
    "evaluation-wide": (numbered("+data.wide=true", "evaluation=exact", data="AsOthersHaveIt"), "data"),
    "metric-that-cannot-be-cloned": (numbered("trainer=fit", "evaluation=validation"), "evaluation"),
    "rows-without-tables": (("model=embedding", "trainer.prefetch_rows=true"), "trainer.prefetch_rows"),
    "once-without-numbers": (
        (*COUNTED, "data._target_=example_ids.AsOthersHaveIt", "data.visitation=once"),
        "data.visitation",
    ),
    "a-pass-shorter-than-dense_sync_every": (
        (
            *COUNTED, "data._target_=example_ids.Numbered", "data.visitation=once", "data.global_batch_size=100",
            "trainer.steps_per_epoch=null", "trainer.dense_sync_every=3",
        ),
        "trainer.dense_sync_every",
    ),
    "one-value-for-lists": (lists_of("model._target_=list_features.dense_inputs"), "model, model"),
    "lists-that-are-not-declared": (
        lists_of("+data.declared=false", "model._target_=list_features.called"),
        "data, data",
    ),
    "unknown-combiner": (lists_of("+data.combiner=median"), "data"),
    "width": (("cluster=none", "model.embedding_dim=-1"), "model"),
    "option-of-an-optimizer": (("cluster=none", "optimizer=adam", "+optimizer.learnign_rate=1"), "optimizer"),
}  # fmt: skip


@pytest.mark.inprocess
@pytest.mark.parametrize("name", BUILT)
def test_mistakes_that_the_program_shows(name, train):
    pieces, keys = BUILT[name]
    refused(keys, train, *pieces, num_workers=1)


@pytest.mark.inprocess
def test_a_loop_that_fails(train):
    pieces = ("cluster=none", "model=dense", "trainer=own_loop", "trainer._target_=user_code.fails")
    refused("user_code.fails failed: KeyError", train, *pieces, error=TrainingError)


def test_data_that_ends(train, monkeypatch):
    endless = HeroFeatures.train
    monkeypatch.setattr(HeroFeatures, "train", lambda self, **keys: endless(self, **keys).take(3))
    refused("data", train, "cluster=none", "model=embedding")


def test_what_cannot_be_exported(tmp_path):
    class Data:
        task, features = "regression", {"x": Feature((1,), tf.string)}

    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1.0]), 0.0)
    network = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)])
    manifest = Manifest(7, Position(), Contents("", {}, {}, [], {}), "", "")
    hidden = Model(network, lambda features: table.lookup(features["x"]))  # where TensorFlow does not find the table
    data: Any = Data()
    place = f"could not be exported to {tmp_path}/7"
    refused(place, trained_model.export, LoadedModel(hidden, data, manifest), tmp_path, print, error=ExportError)
    assert list(tmp_path.iterdir()) == []


def test_predictions_that_are_no_columns():
    values = {"words": tf.ragged.constant([[0.5], [0.25, 0.75]])}
    refused("model", checkpoint_modes._by_name, values, (), alone="prediction")
