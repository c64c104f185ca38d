"""Models against their formulas in NumPy, from the values of their variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import run_config

from psrun.data.source import ArraySource, Feature
from psrun.models.model import ArgumentError, Model
from psrun.program import build
from psrun.recsys.models.dcn import dcn
from psrun.recsys.models.deepfm import deepfm
from psrun.recsys.models.matrix_factorization import matrix_factorization
from psrun.recsys.models.mmoe import mmoe
from psrun.recsys.models.sasrec import Newest, sasrec
from psrun.recsys.models.two_tower import two_tower

pytestmark = pytest.mark.tensorflow

SIZE = 7


@pytest.fixture(autouse=True)
def names():
    """Layers have the names of a process with one model."""
    tf_keras.backend.clear_session()


IDS = {"user": 5, "item": 6}


class Examples(ArraySource):
    """Users, items and a number; `history` is a list of items."""

    def __init__(self, task: str = "binary", label: float = 1.0, *, history: bool = False) -> None:
        rng = np.random.default_rng(0)
        features: dict[str, Any] = {name: rng.integers(0, size, (SIZE, 1)) for name, size in IDS.items()}
        kinds = {name: Feature((1,), tf.int64, vocabulary=tuple(range(size))) for name, size in IDS.items()}
        if history:
            lists = [[1, 2, 3], [4], [], [5, 1], [2, 2], [3, 4, 5], [1]]
            features["history"] = tf.ragged.constant(lists, tf.int64, row_splits_dtype=tf.int64)
            kinds["history"] = Feature((None,), tf.int64, vocabulary=tuple(range(6)), max_values=3, table="item")
        else:
            features["price"] = rng.random((SIZE, 1)).astype(np.float32)
            kinds["price"] = Feature((1,), tf.float32)
        part = features, np.full((SIZE, 1), label, np.float32)
        super().__init__(features=kinds, task=task, train=part, evaluation=part)  # type: ignore[arg-type]


def computed(model: Model, source: ArraySource) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The predictions, the inputs of the network, and random values of its variables by name."""
    rng = np.random.default_rng(1)
    for variable in model.network.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    features, _ = next(iter(source.evaluation(batch_size=SIZE)))
    inputs = model.preprocessed(features)
    values = {variable.name.partition(":")[0]: variable.numpy() for variable in model.network.variables}
    arrays = {name: each.numpy() for name, each in inputs.items() if not isinstance(each, tf.RaggedTensor)}
    return model.network(inputs).numpy()[:, 0], arrays, values


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def dense(x: np.ndarray, values: dict[str, np.ndarray], name: str) -> np.ndarray:
    return x @ values[f"{name}/kernel"] + values[f"{name}/bias"]


def rows(model: Model, inputs: dict[str, np.ndarray], suffix: str) -> np.ndarray:
    """The rows of each feature with ids, (features, batch, dim)."""
    found = model.network.get_layer(f"tables_{suffix}")({name: tf.constant(inputs[name]) for name in IDS})
    return np.moveaxis(found.numpy().reshape(SIZE, len(IDS), -1), 1, 0)


def test_deepfm_is_a_linear_model_all_pairs_and_an_mlp():
    source = Examples()
    model = deepfm(source, embedding_dim=3, hidden_units=[4], stack=False)
    predictions, inputs, values = computed(model, source)
    user, item = rows(model, inputs, "rows")
    hidden = np.maximum(dense(np.concatenate([user, item, inputs["price"]], 1), values, "dense"), 0)
    pairs = (user * item).sum(1, keepdims=True)
    parts = [*rows(model, inputs, "linear"), inputs["price"], pairs, hidden]
    assert predictions == pytest.approx(sigmoid(dense(np.concatenate(parts, 1), values, "prediction"))[:, 0], abs=1e-6)


@pytest.mark.parametrize(("structure", "rank"), [("stacked", None), ("parallel", 2)])
def test_dcn_multiplies_the_input_with_itself_layer_by_layer(structure, rank):
    source = Examples()
    options = {"embedding_dim": 3, "hidden_units": [4], "structure": structure, "rank": rank, "stack": False}
    model = dcn(source, **options)
    predictions, inputs, values = computed(model, source)
    first = np.concatenate([*rows(model, inputs, "rows"), inputs["price"]], 1)
    crossed = first
    for name in ("cross", "cross_1"):
        narrow = crossed if rank is None else crossed @ values[f"{name}/narrow/kernel"]
        crossed = first * dense(narrow, values, f"{name}/wide") + crossed
    deep = np.maximum(dense(crossed if structure == "stacked" else first, values, "dense"), 0)
    top = deep if structure == "stacked" else np.concatenate([crossed, deep], 1)
    assert predictions == pytest.approx(sigmoid(dense(top, values, "prediction"))[:, 0], abs=1e-6)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_matrix_factorization_is_a_product_and_biases(task):
    source = Examples(task)
    source.label_mean, source.label_deviation = 3.5, 2.0
    model = matrix_factorization(source, user="user", item="item", embedding_dim=3)
    predictions, inputs, values = computed(model, source)
    user, item = inputs["user"][:, 0], inputs["item"][:, 0]
    vectors = values["user_vectors/embeddings"][user] * values["item_vectors/embeddings"][item]
    biases = values["user_biases/embeddings"][user] + values["item_biases/embeddings"][item]
    score = vectors.sum(1) + biases[:, 0] + values["mean/value"]
    assert predictions == pytest.approx(sigmoid(score) if task == "binary" else 2 * score + 3.5, abs=1e-5)
    towers = {name: each.numpy() for name, each in model.towers.vectors({k: v for k, v in inputs.items()}).items()}
    without_user = score - values["user_biases/embeddings"][user][:, 0] - values["mean/value"]
    assert (towers["query"] * towers["item"]).sum(1) == pytest.approx(without_user, abs=1e-5)


def test_mmoe_mixes_the_experts_of_all_labels_by_the_gate_of_each():
    source = Examples()
    source.task, source.label_tasks = None, {"click": "binary", "seconds": "regression"}
    source.label_scales = {"seconds": {"mean": 5.0, "deviation": 2.0}}
    model = mmoe(source, embedding_dim=3, experts=2, expert_units=[4], tower_units=[3], stack=False)
    rng = np.random.default_rng(1)
    for variable in model.network.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    features, _ = next(iter(source.evaluation(batch_size=SIZE)))
    inputs = model.preprocessed(features)
    predictions = {name: each.numpy()[:, 0] for name, each in model.network(inputs).items()}
    values = {variable.name.partition(":")[0]: variable.numpy() for variable in model.network.variables}
    arrays = {name: each.numpy() for name, each in inputs.items()}
    shared = np.concatenate([*rows(model, arrays, "rows"), arrays["price"]], 1)
    experts = np.stack([np.maximum(dense(shared, values, name), 0) for name in ("dense", "dense_1")], 1)
    for name, tower in (("click", "dense_2"), ("seconds", "dense_3")):
        gate = np.exp(dense(shared, values, f"{name}_gate"))
        mixed = (experts * (gate / gate.sum(1, keepdims=True))[:, :, np.newaxis]).sum(1)
        top = np.maximum(dense(mixed, values, tower), 0)
        if name == "click":
            expected = sigmoid(dense(top, values, "click"))
        else:
            expected = 2 * dense(top, values, "seconds_standardized") + 5
        assert predictions[name] == pytest.approx(expected[:, 0], abs=1e-5)
    label = np.full((SIZE, 1), 9.0, np.float32)
    loss = model.loss["seconds"](label, predictions["seconds"][:, np.newaxis])
    assert float(loss) == pytest.approx(((predictions["seconds"] - 9) ** 2).mean() / 4, rel=1e-5)


def encoded(history: list[int], table: np.ndarray, layer: Newest) -> np.ndarray:
    """The newest item of a history, oldest first, one vector after another."""
    values = {variable.name.partition("/")[2].partition(":")[0]: variable.numpy() for variable in layer.variables}
    places = values["places"]
    x = np.array([table[item] * layer.dim**0.5 + places[len(history) - 1 - at] for at, item in enumerate(history)])

    def normal(rows: np.ndarray, name: str) -> np.ndarray:
        deviation = np.sqrt(rows.var(-1, keepdims=True) + 1e-3)
        return (rows - rows.mean(-1, keepdims=True)) / deviation * values[f"{name}/gamma"] + values[f"{name}/beta"]

    for block in range(layer.blocks):
        query, key, value = (values[f"{name}_{block}/kernel"] for name in ("query", "key", "value"))
        before = normal(x, f"before_{block}")
        attended = np.empty_like(x)
        for at in range(len(x)):
            scores = (before[at] @ query) @ (x[: at + 1] @ key).T / layer.dim**0.5
            shares = np.exp(scores - scores.max())
            attended[at] = before[at] + shares / shares.sum() @ (x[: at + 1] @ value)
        between = normal(attended, f"between_{block}")
        x = between + dense(np.maximum(dense(between, values, f"inner_{block}"), 0), values, f"outer_{block}")
    return normal(x, "last")[-1]


@pytest.mark.parametrize("newest", ["first", "last"])
def test_sasrec_encodes_the_newest_item_by_those_before_it(newest):
    rng = np.random.default_rng(2)
    layer = Newest(4, 3, 2, 0.5, newest)
    histories = [[1, 2, 3], [4], [], [5, 1]]
    table = rng.normal(size=(6, 4)).astype(np.float32)
    ordered = [each[::-1] if newest == "first" else each for each in histories]
    padded = np.array([each + [0] * (3 - len(each)) for each in ordered])
    mask = np.arange(3) < np.array([len(each) for each in histories])[:, np.newaxis]
    layer(table[padded], mask=tf.constant(mask))
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(scale=0.5, size=variable.shape))
    found = layer(table[padded], mask=tf.constant(mask)).numpy()
    expected = [encoded(each, table, layer) if each else np.zeros(4) for each in histories]
    assert found == pytest.approx(np.array(expected), abs=1e-4)
    copy = Newest.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()


def test_sasrec_scores_the_item_by_its_row_of_the_table_of_histories():
    source = Examples("regression", history=True)
    model = sasrec(source, history="history", item="item", embedding_dim=4, dropout=0.0)
    features, _ = next(iter(source.evaluation(batch_size=SIZE)))
    inputs = model.preprocessed(features)
    vectors = model.towers.vectors(inputs)
    products = (vectors["query"].numpy() * vectors["item"].numpy()).sum(1)
    assert model.network(inputs).numpy()[:, 0] == pytest.approx(products, abs=1e-5)
    looked_up = model.network.get_layer("tables_rows")({name: inputs[name] for name in ("item", "history")})
    assert vectors["item"].numpy() == pytest.approx(looked_up["item"].numpy()[:, 0])
    assert (model.towers.item_features, list(model.unused)) == (("item",), ["user"])
    for arguments, unused in ((["evaluation.user=user"], []), (["evaluation.by=[user]"], []), ([], ["user"])):
        run = run_config("model=dense", *arguments)
        assert build.unused_features(model, run.evaluation) == unused


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: mmoe(Examples()), ""),
        (lambda: dcn(Examples(), cross_layers=0), "cross_layers"),
        (lambda: dcn(Examples(), structure="beside"), "structure"),
        (lambda: dcn(Examples(), rank=0), "rank"),
        (lambda: matrix_factorization(Examples(), user="price", item="item"), "user"),
        (lambda: matrix_factorization(Examples(), user="item", item="item"), "item"),
        (lambda: matrix_factorization(Examples("multiclass"), user="user", item="item"), ""),
        (lambda: matrix_factorization(Examples(label=0.0), user="user", item="item", objective="softmax"), "objective"),
        (lambda: matrix_factorization(Examples(), user="user", item="item", objective="bpr"), "objective"),
        (lambda: sasrec(Examples(history=True), history="history", item="item", newest="middle"), "newest"),
        (lambda: sasrec(Examples(history=True), history="history", item="item", blocks=0), "blocks"),
        (lambda: sasrec(Examples(history=True), history="user", item="item"), "history"),
        (lambda: sasrec(Examples(history=True), history="history", item="itme"), "item"),
    ],
)
def test_arguments_that_do_not_fit(make, argument):
    with pytest.raises(ArgumentError) as refused:
        make()
    assert [name for name, _ in refused.value.problems] == [argument]


class InBlocks(ArraySource):
    """Examples whose order keeps some of them together, as that of a file does."""

    together = 32

    def block(self, batch_size: int) -> int:
        return self.together


def shop(*, in_order: bool, together: int) -> InBlocks:
    """Purchases of users; an item has a price, which is NaN for one of them, and tags."""
    rng = np.random.default_rng(0)
    count = 1024
    user = np.sort(rng.integers(0, 40, count))
    item = rng.integers(0, 50, count)
    time = rng.random(count).astype(np.float32)
    order = np.arange(count) if in_order else rng.permutation(count)
    price = np.where(item == 3, np.nan, item / 50).astype(np.float32)
    numbers = {"user": user, "item": item, "time": time, "price": price}
    features: dict[str, Any] = {name: each[order, np.newaxis] for name, each in numbers.items()}
    tags = [[each, 1] for each in item[order].tolist()]
    features["tags"] = tf.ragged.constant(tags, tf.int64, row_splits_dtype=tf.int64)
    kinds = {name: Feature((1,), tf.int64, vocabulary=tuple(range(50))) for name in ("user", "item")}
    kinds |= {name: Feature((1,), tf.float32) for name in ("time", "price")}
    kinds["tags"] = Feature((None,), tf.int64, vocabulary=tuple(range(50)), max_values=3)
    part = features, np.ones((count, 1), np.float32)
    source = InBlocks(features=kinds, task="binary", train=part, evaluation=part)
    source.together = together
    return source


@pytest.mark.parametrize(
    ("in_order", "together", "warns"),
    [(True, 32, True), (False, 32, False), (True, 1, False)],  # the order of single examples mixes them
    ids=["sorted", "shuffled", "mixed"],
)
def test_batches_of_rows_that_are_not_in_random_order_are_a_warning(in_order, together, warns):
    source = shop(in_order=in_order, together=together)
    towers = two_tower(source, query_features=["user", "time"], item="item", objective="softmax")
    factors = matrix_factorization(source, user="user", item="item", objective="softmax")
    for model in (towers, factors):
        assert len(model.warnings) == warns
        for text in model.warnings:
            assert "not in random order" in text
            assert "have the same 'user'" in text


def test_a_feature_that_differs_within_an_item_is_no_property_of_the_item():
    model = two_tower(shop(in_order=False, together=1), query_features=["user"], item="item", objective="softmax")
    (warning,) = model.warnings
    assert "the item tower reads 'time', which differs" in warning
    assert list(model.notes) == ["query tower: user; item tower: item, time, price, tags"]
