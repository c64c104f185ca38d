"""Messages about layers, models, optimizers and partitioners, as the golden file has them."""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
import tf_keras
from list_models import Clicks
from list_models import arguments as of_clicks
from support import HARNESS, SMALL, TABLED, run_config, stated

from psrun import layers
from psrun.cluster import partitioners, placement, strategy
from psrun.cluster.placement import Placed
from psrun.data import load
from psrun.data.source import Feature
from psrun.keras3 import layers as keras3
from psrun.layers import EmbeddingCollection, Table
from psrun.models.model import Model
from psrun.optimizers import sparse
from psrun.program import objective, output_widths, stacks
from psrun.program.make_model import make_model
from psrun.program.make_optimizer import make_optimizer
from psrun.recsys.models import tables
from psrun.recsys.models.wide_deep import wide_deep
from psrun.roles import planner

pytestmark = pytest.mark.tensorflow

MISTAKES: dict[str, Callable[[Path], Any]] = {}


def mistakes(**cases: Callable[[], Any]) -> None:
    """Adds functions that raise, by a name with words in it."""
    MISTAKES.update({name: lambda _, call=call: call() for name, call in cases.items()})


# -- layers


def collection(*given: Any, **options: Any) -> EmbeddingCollection:
    """Of tables of five ids, by their names and features."""
    return EmbeddingCollection([Table(name, features, 5, 2) for name, features in given], name="t", **options)


def called(ids: Any, weights: Any = None, feature: str = "x", **options: Any) -> Any:
    """Calls a collection; nested lists stand for RaggedTensors."""
    given = tf.ragged.constant(ids) if isinstance(ids, list) else ids()
    own = {} if weights is None else {feature: tf.ragged.constant(weights) if isinstance(weights, list) else weights()}
    return collection(("a", ("x",)), **options)({"x": given}, weights=own)


LISTS = [[1], [2, 3]]
WHOLE = [[1.0], [1.0, 1.0]]
ITEM = {"name": "a", "features": ("x",), "num_ids": 5, "dim": 2}

mistakes(
    embedding_wire=lambda: layers.Embedding(5, 3, wire="float8"),
    embedding_oov=lambda: layers.Embedding(5, 3, oov="zero"),
    embedding_deduplicate=lambda: layers.Embedding(5, 3, deduplicate=2),
    embedding_without_ids=lambda: layers.Embedding(0, 3),
    embedding_of_negative_width=lambda: layers.Embedding(5, -1),
    embedding_lists_of_lists=lambda: layers.Embedding(5, 2, name="e")(tf.ragged.constant([[[1]], [[2, 3]]])),
    embedding_id_outside=lambda: layers.Embedding(5, 2, name="e")(tf.constant([[1, 7]])),
    collection_stack_of_0=lambda: collection(("a", ("x",)), stack=0),
    collection_deduplicate_of_1=lambda: collection(("a", ("x",)), deduplicate=1),
    collection_features_as_a_text=lambda: collection(("a", "item")),
    collection_table_without_features=lambda: collection(("a", ())),
    collection_tables_of_one_name=lambda: collection(("a", ("x",)), ("a", ("y",))),
    collection_feature_of_two_tables=lambda: collection(("a", ("x",)), ("b", ("x",))),
    collection_without_tables=collection,
    collection_combiner=lambda: collection(("a", ("x",)), combiner="average"),
    collection_combiner_of_no_feature=lambda: collection(("a", ("x",)), combiner={"z": "sum"}),
    collection_combiner_of_a_feature=lambda: collection(("a", ("x",)), combiner={"x": "first"}),
    collection_missing_feature=lambda: collection(("a", ("x",)), ("b", ("y",)))({"x": tf.constant([[1]])}),
    collection_weights_of_no_feature=lambda: called(LISTS, WHOLE, feature="z", combiner="mean"),
    collection_weights_of_max=lambda: called(LISTS, WHOLE, combiner="max"),
    collection_weights_without_combiner=lambda: called(LISTS, WHOLE),
    collection_integer_weights=lambda: called(LISTS, [[1], [1, 2]], combiner="mean"),
    collection_fewer_weights=lambda: called(LISTS, [[1.0], [1.0]], combiner="sum"),
    collection_more_lists_of_weights=lambda: called(LISTS, [*WHOLE, []], combiner="sum"),
    collection_dense_weights=lambda: called(LISTS, lambda: tf.ones([2, 1]), combiner="sum"),
    collection_lists_of_lists=lambda: called([[[1], [2, 3]]]),
    collection_sparse_of_three_axes=lambda: called(lambda: tf.sparse.from_dense([[[1, 0]]])),
    collection_floats=lambda: called(lambda: tf.constant([[1.7], [2.2]])),
    table_optimizer=lambda: EmbeddingCollection([{**ITEM, "optimizer": "adam"}]),
    table_unknown_attribute=lambda: keras3.EmbeddingCollection([{**ITEM, "rows": 3}]),
    table_missing_attribute=lambda: EmbeddingCollection([{"name": "a", "features": ("x",), "num_ids": 5}]),
)


# -- features that share a table, widths


def shared(given: Any) -> Callable[[Path], None]:
    def share(folder: Path) -> None:
        for name, words in (("one", "a\nb\n"), ("two", "b\na\n"), ("same", "a\nb\n")):
            (folder / f"{name}.txt").write_text(words)
        files = {"filed": "one", "other": "two", "same": "same"}
        words = {"clicked": "abc", "bought": "abc", "turned": "bac", "longer": "abcd", "wide": "abc"}
        features = {
            **{name: Feature((1,), tf.string, tuple(values)) for name, values in words.items()},
            **{name: Feature((1,), tf.string, folder / f"{file}.txt") for name, file in files.items()},
            "seen": Feature((1,), tf.string, num_buckets=9),
            "heard": Feature((1,), tf.string, num_buckets=8),
            "number": Feature((1,), tf.int64, num_buckets=9),
            "price": Feature((1,), tf.float32),
        }
        num_ids = dict.fromkeys([name for name in features if name != "price"], 4)
        make = functools.partial(tables.make_tables, SimpleNamespace(features=features), num_ids)
        dims = {"default": 4, "wide": 2}
        made = make(embedding_dim=dims, shared_tables={"a": ["clicked", "bought"], "b": ["filed", "same"]})
        assert [table.name for table in made[:2]] == ["a", "turned"]
        make(embedding_dim=dims, shared_tables=given)

    return share


MISTAKES |= {
    f"shared_{name}": shared(given)
    for name, given in {
        "as_lists": [["clicked", "bought"]],
        "as_a_text": {"word": "clicked"},
        "with_a_number": {"word": ["clicked", 3]},
        "by_one_feature": {"word": ["clicked"]},
        "by_a_mistyped_one": {"word": ["clicked", "brought"]},
        "by_one_without_ids": {"word": ["clicked", "price"]},
        "twice_by_one": {"word": ["clicked", "clicked"]},
        "in_two_tables": {"a": ["clicked", "bought"], "b": ["bought", "seen"]},
        "under_the_name_of_a_feature": {"seen": ["clicked", "bought"]},
        "under_an_invalid_name": {"a b": ["clicked", "bought"]},
        "words_and_buckets": {"word": ["clicked", "seen"]},
        "other_numbers_of_buckets": {"word": ["seen", "heard"]},
        "words_in_another_order": {"word": ["clicked", "turned"]},
        "more_words": {"word": ["clicked", "longer"]},
        "strings_and_integers": {"word": ["seen", "number"]},
        "files_with_other_words": {"word": ["filed", "other"]},
        "three_kinds": {"word": ["clicked", "bought"], "sound": ["same", "filed", "seen"]},
        "other_widths": {"word": ["clicked", "wide"]},
    }.items()
}


def with_widths(embedding_dim: Any) -> Any:
    source = SimpleNamespace(
        features={"city": Feature((1,), tf.string, ("ulm", "bonn"))}, task="binary", num_classes=2, facts={}
    )
    return wide_deep(source, embedding_dim=embedding_dim)


mistakes(
    width_of_0=lambda: with_widths(0),
    width_of_a_word=lambda: with_widths("wide"),
    width_of_no_feature=lambda: with_widths({"street": "auto"}),
    width_below_0=lambda: with_widths({"default": "auto", "city": -1}),
)


# -- stacks, placement, replicas


def network(*names: str) -> tf_keras.Model:
    """A model of stacked tables."""
    inputs = {name: tf_keras.Input((1,), dtype="int64", name=name) for name in names}
    own = [Table(name, (name,), 10, 4) for name in names]
    return tf_keras.Model(inputs, list(EmbeddingCollection(own, stack=True, name="tables")(inputs).values()))


def decaying(*names: str) -> Any:
    optimizer = tf_keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=list(names))
    return optimizer


def devices(wanted: int | None, cpus: tuple[int, ...], gpus: tuple[int, ...]) -> Any:
    def logical(kind: str, counts: tuple[int, ...]) -> list[Any]:
        places = [(task, number) for task, count in enumerate(counts) for number in range(count)]
        names = [f"/job:worker/replica:0/task:{task}/device:{kind}:{number}" for task, number in places]
        return [tf.config.LogicalDevice(name, kind) for name in names]

    with pytest.MonkeyPatch.context() as patched:
        of_kind = {"CPU": logical("CPU", cpus), "GPU": logical("GPU", gpus)}
        patched.setattr(tf.config, "list_logical_devices", of_kind.__getitem__)
        return strategy.replica_devices(wanted)


PLACED = [Placed(f"{name}/embeddings", 0, "ps-0", 10, "model", (3, 1), "float32") for name in "ab"]
LEGACY = tf_keras.optimizers.legacy

mistakes(
    stack_of_a_legacy_optimizer=lambda: stacks.check_storable(network("a", "b"), LEGACY.Adam(0.1)),
    stack_that_decays_in_parts=lambda: stacks.check_storable(network("a", "b"), decaying("^b/embeddings:0$")),
    stack_that_decays_apart=lambda: stacks.check_storable(network("a", "b"), decaying("stack_4_of_a")),
    placement_few_rows=lambda: placement.check_rows(PLACED, 4, stacked={"b/embeddings"}),
    placement_memory=lambda: placement.check_memory(PLACED, 19),
    replicas_of_different_workers=lambda: devices(None, (1, 1), (2, 1)),
    replicas_that_a_worker_lacks=lambda: devices(2, (2, 1), (0, 0)),
)


# -- partitioners

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


def cut(name: str, *options: str) -> Callable[[Path], Any]:
    def cut_in_shards(folder: Path) -> Any:
        (folder / "cutting.py").write_text(textwrap.dedent(CUTTING))
        with pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(str(folder))
            patched.delitem(sys.modules, "cutting", raising=False)
            own = [f"partitioner._target_=cutting.{name}"] if name else []
            more = [f"+partitioner.{option}" for option in options]
            partition = partitioners.make(run_config("partitioner=custom", *own, *more).partitioner)
            return partition(shape=tf.TensorShape([8, 20]), dtype=tf.float32)

    return cut_in_shards


MISTAKES |= {
    "partitioner_misspelt": cut("by_row"),
    "partitioner_unknown_option": cut("by_rows", "row=3"),
    "partitioner_missing_option": cut("Wide"),
    "partitioner_without_a_name": cut(""),
    "partitioner_returns_a_number": cut("of", "value=3"),
    "partitioner_returns_a_fraction": cut("of", "value=[1.5,1]"),
    "partitioner_returns_0": cut("of", "value=[0,1]"),
    "partitioner_returns_no_number": cut("of", "value=[]"),
    "partitioner_returns_a_boolean": cut("of", "value=[true,1]"),
    "partitioner_cuts_columns": cut("of", "value=[2,2]"),
    "partitioner_fails": cut("failing"),
    "partitioner_function_returns_none": cut("nothing"),
}
mistakes(partitioner_target_of_none=lambda: run_config("+partitioner._target_=cutting.by_rows"))


# -- optimizers


def plan(*pieces: str) -> planner.Plan:
    run = run_config(*pieces)
    return planner.make(run, load.load_source(run))


CUT = ("cluster=local", "partitioner=fixed_shards", "model=dense", "data=regression", *SMALL["regression"])
BOUNDED = (*CUT, "~model.hidden_units", "model._target_=user_models.bounded")
BASKET = (*(each for each in TABLED if not each.startswith("data._target_")), "data._target_=embeddings.Basket",
          "model._target_=embeddings.basket", "cluster=none")  # fmt: skip
SECOND = ("model._target_=user_optimizers.network",)
OWN = "optimizer._target_=user_optimizers."

mistakes(
    optimizer_momentum=lambda: sparse.SparseSGD(momentum=0.9),
    optimizer_amsgrad=lambda: sparse.LazyAdam(amsgrad=True),
    optimizer_weight_decay=lambda: sparse.SparseAdagrad(weight_decay=0.1),
    optimizer_with_averages=lambda: make_optimizer(run_config(f"{OWN}with_averages")),
    optimizer_nadam=lambda: make_optimizer(run_config(f"{OWN}scaled_nadam", "~optimizer.learning_rate")),
    optimizer_that_is_none=lambda: make_optimizer(run_config(f"{OWN}nothing")),
    optimizer_of_tensorflow1=lambda: make_optimizer(
        run_config("optimizer._target_=tensorflow.compat.v1.train.AdagradOptimizer")
    ),
    optimizer_by_all_rows_of_a_stack=lambda: plan(*BASKET, f"{OWN}Lamb"),
    optimizer_of_a_model=lambda: plan(*CUT, "~model.hidden_units", *SECOND, "+model.kind=Adafactor"),
    optimizer_of_a_model_with_averages=lambda: plan(*CUT, "~model.hidden_units", *SECOND, "+model.kind=Averaged"),
    optimizer_of_keras3=lambda: make_optimizer(run_config("optimizer._target_=keras3_mistakes.optimizer")),
    optimizer_by_all_rows_of_shards=lambda: plan(*CUT, f"{OWN}Lamb", "optimizer.learning_rate=1e-9"),
    constraint_of_columns=lambda: plan(*BOUNDED, "+model.kind=columns"),
    regularizer_of_columns=lambda: plan(*BOUNDED, "+model.kind=orthogonal"),
)


# -- models


def width(task: str, predicted: tuple[int | None, ...], label: tuple[int | None, ...]) -> None:
    source: Any = SimpleNamespace(task=task, num_classes=10)
    specs = [tf.TensorSpec(shape, tf.float32) for shape in (predicted, label)]
    output_widths.check(*specs, Model(tf_keras.Sequential()), source)


def made(*pieces: str) -> Any:
    """The metrics of a model, which is checked as it is made."""
    run = run_config(*pieces)
    return objective.metrics_of(make_model(run, load.load_source(run)), "regression")


def of_lists(model: str, *pieces: str, **changes: dict[str, Any]) -> Any:
    return make_model(run_config(*of_clicks(model, *pieces)), Clicks(changes=changes))


HEROES = ("model._target_=user_models.heroes", "~model.embedding_dim")

mistakes(
    predictions_of_too_few_classes=lambda: width("multiclass", (None, 3), (None, 1)),
    predictions_of_two_columns=lambda: width("binary", (None, 2), (None, 1)),
    predictions_of_a_sequence=lambda: width("regression", (None, 7, 1), (None, 1)),
    logits_of_a_sigmoid=lambda: made("model.from_logits=true"),
    logits_of_a_regression=lambda: made("model=dense", "model.from_logits=true"),
    logits_that_the_loss_denies=lambda: made(*HEROES, "+model.loss_logits=false", "model.from_logits=true"),
    lists_without_combiner=lambda: of_lists("dlrm", history={"combiner": None}),
    lists_with_weights_of_max=lambda: of_lists("wide_deep", history={"combiner": "max"}),
    lists_without_ids=lambda: of_lists("two_tower", words={"num_buckets": None}),
    lists_beside_a_history=lambda: of_lists("din", words={"combiner": None}),
    history_of_other_items=lambda: of_lists("din", item={"vocabulary": (1, 2)}),
    history_in_another_table=lambda: of_lists("din", item={"table": "goods"}, history={"table": "owned"}),
    history_without_the_table=lambda: of_lists("din", item={"table": "goods"}),
    history_of_one_value=lambda: of_lists("din", "model.history=item"),
    history_without_ids=lambda: of_lists("din", "model.history=x"),
    target_that_is_a_list=lambda: of_lists("din", "model.target=words"),
    target_that_is_missing=lambda: of_lists("din", "model.target=nothing"),
)


# -- models of Keras 3


def of_keras3(name: str, *settings: str) -> Callable[[Path], Any]:
    own = [f"+model.settings={{{','.join(settings)}}}"] if settings else []
    return lambda _: made("model=dense", "~model.hidden_units", f"model._target_=keras3_mistakes.{name}", *own)


def callbacks_of_keras3() -> Any:
    from psrun.training.callbacks import made as callbacks

    return callbacks([{"_target_": "keras3_mistakes.Callback"}], "trainer.callbacks")


MISTAKES |= {
    "keras3_own_step": of_keras3("own_step"),
    "keras3_large_table": of_keras3("large_table"),
    "keras3_half_precision": of_keras3("half"),
    "keras3_constraint": of_keras3("constrained"),
    "keras3_metric_in_a_layer": of_keras3("metric_in_layer"),
    "keras3_layer_of_tf_keras_within": of_keras3("of_tf_keras_within"),
    "keras3_layer_within_tf_keras": of_keras3("of_keras3_within"),
    "keras3_layer_in_a_sequential": of_keras3("in_a_sequential"),
    "keras3_input_of_tf_keras": of_keras3("on_an_input"),
    "keras3_own_metric": of_keras3("own_metric"),
    "keras3_compiled_with_an_optimizer": of_keras3("compiled", "optimizer: adam"),
    "keras3_compiled_to_run_eagerly": of_keras3("compiled", "run_eagerly: true"),
    "keras3_compiled_with_loss_weights": of_keras3("compiled", "loss_weights: [2.0]"),
}
OF_KERAS3 = "+trainer.callbacks=[{_target_: keras.callbacks.CSVLogger, filename: a}]"
mistakes(
    keras3_callback=callbacks_of_keras3,
    keras3_callback_by_name=lambda: run_config("trainer=fit", OF_KERAS3),
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_messages_about_models(mistake, tmp_path, snapshot):
    with pytest.raises(Exception) as raised:  # noqa: PT011
        MISTAKES[mistake](tmp_path)
    assert essential(stated(raised.value, tmp=tmp_path, harness=HARNESS)) == snapshot


def essential(text: str) -> str:
    """Without what Keras puts around the error of a layer, addresses, folders of libraries, and numbers of lines."""
    kind = text.partition(":")[0]
    if within := re.search(
        r"^\w+: Exception encountered when calling layer .*?\n\n(.*?)\n\nCall arguments", text, re.DOTALL
    ):
        text = f"{kind}: {within[1]}"
    text = re.sub(r"\{\{function_node .*?\}\} ", "", text)
    text = re.sub(r" object at 0x\w+", "", text)
    text = re.sub(r"\S+/site-packages/(\S+\.py)", r"\1", text)
    return re.sub(r"\.py, line \d+", ".py", text)
