"""Embedding layers on ids and lists of ids: rows and gradients of TensorFlow's look-ups, and refusals by name."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from outcomes import check_same
from support import TABLED, run_config

from psrun.cluster import strategy
from psrun.errors import NonFiniteLossError
from psrun.layers import Embedding, EmbeddingCollection, Table, lookup
from psrun.layers.collection import arranged_for
from psrun.program import embeddings

pytestmark = pytest.mark.inprocess

ROWS, DIM, BATCH = 30, 4, 9
COMBINERS = ("sum", "mean", "sqrtn", "max")
EXACT = {"rtol": 0, "atol": 1e-6}


def _lists(seed: int, rows: int = ROWS) -> tuple[Any, Any]:
    """Lists of ids, the first, the last and another one empty, and weights, some of which are 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, size=BATCH)
    lengths[[0, 4, -1]] = 0
    ids, weights = rng.integers(rows, size=lengths.sum()), rng.random(lengths.sum()).astype(np.float32)
    weights[::4] = 0
    return tuple(tf.RaggedTensor.from_row_lengths(each, lengths) for each in (ids, weights))


def _expected(table: Any, ids: Any, weights: Any, combiner: str | None) -> Any:
    """The rows of lists by TensorFlow, (batch, dim), or padded; by hand for 'max'."""
    if combiner is None:
        return tf.RaggedTensor.from_row_splits(tf.gather(table, ids.values), ids.row_splits).to_tensor()
    if combiner == "max":
        held = [tf.reduce_max(tf.gather(table, row), 0) if len(row) else tf.zeros(DIM) for row in ids]
        return tf.stack(held)
    sparse = ids.to_sparse(), None if weights is None else weights.to_sparse()
    return tf.nn.safe_embedding_lookup_sparse(table, *sparse, combiner=combiner)


@contextlib.contextmanager
def _shards(cluster_spec: Any, num_shards: int) -> Any:
    """Where variables are in one piece, or in two or three on two parameter servers."""
    if num_shards == 1:
        yield
        return
    rule = run_config("partitioner=fixed_shards", f"partitioner.num_shards={num_shards}").partitioner
    with strategy.parameter_servers(cluster_spec[1], rule).strategy.scope():
        yield


def _by_id(layer: Any, gradient: Any) -> np.ndarray:
    """Rows of a layer's variable, or of its gradient, by id."""
    parts = [tf.convert_to_tensor(each) for each in gradient]
    return tf.gather(tf.concat(parts, 0), layer.position(tf.range(ROWS))).numpy()


@pytest.mark.parametrize(
    ("num_shards", "combiner", "weighted", "deduplicate", "kind"),
    [
        (1, "sum", False, False, "ragged"), (1, "mean", True, True, "sparse"), (1, None, False, True, "ragged"),
        (2, "sum", True, True, "ragged"), (2, "max", False, False, "sparse"), (2, "sqrtn", True, True, "ragged"),
        (3, "mean", False, False, "ragged"), (3, "sqrtn", False, True, "sparse"), (3, None, False, False, "sparse"),
    ],
)  # fmt: skip
def test_rows_and_gradients_are_those_of_tensorflow(cluster_spec, num_shards, combiner, weighted, deduplicate, kind):
    with _shards(cluster_spec, num_shards):
        layer = Embedding(ROWS, DIM, combiner=combiner, deduplicate=deduplicate, embeddings_initializer="normal")
        layer.build(None)
    shards = list(getattr(layer.embeddings, "variables", [layer.embeddings]))
    assert len(shards) == num_shards
    ids, weights = _lists(num_shards)
    weights = weights if weighted else None
    given = [each if kind == "ragged" else each.to_sparse() for each in (ids, weights) if each is not None]

    @tf.function
    def computed() -> Any:
        with tf.GradientTape() as tape:
            rows = layer(*given)
            loss = tf.reduce_sum(rows**3)
        return rows, [tf.convert_to_tensor(each) for each in tape.gradient(loss, shards)]

    rows, gradient = computed()
    table = tf.Variable(_by_id(layer, shards))
    with tf.GradientTape() as tape:
        expected = _expected(table, ids, weights, combiner)
        loss = tf.reduce_sum(expected**3)
    np.testing.assert_allclose(rows, expected, **EXACT)
    np.testing.assert_allclose(_by_id(layer, gradient), tf.convert_to_tensor(tape.gradient(loss, table)), **EXACT)
    if combiner is None:
        np.testing.assert_array_equal(layer.compute_mask(ids), tf.sequence_mask(ids.row_lengths()))
    else:
        np.testing.assert_array_equal(rows[0], np.zeros(DIM))


def _features() -> tuple[dict[str, Any], dict[str, Any], dict[str, str | None]]:
    """Ids of eight features, the weights of some, and their combiners; tables of `sum` and `mean` have 20 rows."""
    rng = np.random.default_rng(3)
    ids: dict[str, Any] = {"one": tf.constant(rng.integers(20, size=(BATCH, 1)))}
    ids["two"], ids["three"] = (tf.constant(rng.integers(9, size=(BATCH, width))) for width in (2, 3))
    weights = {}
    combiners = dict(zip(("sum", "mean", "sqrtn", "max", "weighted"), (*COMBINERS, "mean")))
    for number, name in enumerate((*combiners, "sequence")):
        ids[name], held = _lists(number, 20 if name in ("sum", "mean") else 9)
        if name == "weighted":
            weights[name] = held
    combiners |= {"two": "sum"}
    ids["sqrtn"] = ids["sqrtn"].to_sparse()
    return ids, weights, combiners


@pytest.mark.parametrize(
    ("num_shards", "deduplicate", "stack", "oov"),
    [(1, True, False, "error"), (2, False, True, "row"), (3, True, True, "error")],
)
def test_features_of_a_collection_are_pooled_as_those_of_single_layers(num_shards, deduplicate, stack, oov):
    ids, weights, combiners = _features()
    tables = [
        Table("a", ("one", "sum", "mean"), 20, DIM), Table("b", ("two", "max"), 9, DIM),
        Table("c", ("sqrtn", "sequence", "weighted"), 9, DIM), Table("d", ("three",), 9, 2),
    ]  # fmt: skip
    with arranged_for(num_shards):
        layer = EmbeddingCollection(tables, stack=stack, deduplicate=deduplicate, combiner=combiners, oov=oov)
        layer.build(None)
    assert len(layer.trainable_variables) == (2 if stack else 4)
    clone = EmbeddingCollection.from_config(layer.get_config())
    assert clone.get_config() == layer.get_config()
    with tf.GradientTape() as tape:
        rows = layer(ids, weights=weights)
        loss = tf.add_n([tf.reduce_sum(each**3) for each in rows.values()])
    gradient = tape.gradient(loss, layer.trainable_variables)
    total = sum(float(tf.reduce_sum(tf.convert_to_tensor(each))) for each in gradient)
    assert rows["sequence"]._keras_mask.shape == rows["sequence"].shape[:2]
    assert [name for name, each in rows.items() if each._keras_mask is not None] == ["sequence"]

    expected_total = 0.0
    for table in tables:
        (held,) = [each for each in layer.stacks if table in each.tables]
        values = _rows_of(held, table)
        for name in table.features:
            single = Embedding(table.num_ids, table.dim, combiner=combiners.get(name), oov=oov)
            single.build(None)
            single.embeddings.assign(values)
            with tf.GradientTape() as tape:
                expected = single(ids[name], weights=weights.get(name))
                loss = tf.reduce_sum(expected**3)
            np.testing.assert_allclose(rows[name], expected, **EXACT, err_msg=name)
            expected_total += float(tf.reduce_sum(tf.convert_to_tensor(tape.gradient(loss, single.embeddings))))
    assert total == pytest.approx(expected_total, rel=1e-5)


def _rows_of(stack: Any, table: Any) -> np.ndarray:
    index = stack.tables.index(table)
    if stack.layout is None:
        return stack.variable.numpy()
    shard_rows, values = stack.layout.shard_rows, stack.variable.numpy()
    blocks = stack.layout.blocks(index)
    first = [(block.shard * shard_rows + block.offset, block.num_rows) for block in blocks]
    return np.concatenate([values[start : start + count] for start, count in first])


@pytest.mark.parametrize("names", [("one", "sum"), ("sum", "mean"), ("sum", "max", "one")])
def test_a_pooled_feature_is_one_column_of_a_concatenation(names):
    ids, _, combiners = _features()
    chosen = {name: combiners.get(name) for name in names}
    for combiner in (chosen, {name: each and "mean" for name, each in chosen.items()}):
        tables = [Table(name, (name,), 20, DIM) for name in names]
        layer = EmbeddingCollection(tables, stack=True, concatenate=True, combiner=combiner)
        block = layer({name: ids[name] for name in names})
        by_feature = EmbeddingCollection(tables, stack=True, combiner=combiner)
        by_feature.build(None)
        by_feature.set_weights(layer.get_weights())
        rows = by_feature({name: ids[name] for name in names})
        expected = tf.concat([tf.reshape(rows[name], [BATCH, 1, DIM]) for name in names], 1)
        np.testing.assert_array_equal(block, expected)


def test_ids_outside_of_their_tables_are_named_or_share_a_row():
    ids = {"x": tf.ragged.constant([[0, 4], [], [7, -2]]), "y": tf.ragged.constant([[3], [], []])}
    tables = [Table("a", ("x",), 5, 2), Table("b", ("y",), 9, 2)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x \(table a, ids from 0 to 4\)\S*\] \[-2\] \[7\]"):
        EmbeddingCollection(tables, combiner="sum")(ids)
    rows = EmbeddingCollection(tables, combiner="sum", oov="row")(ids)
    outside = EmbeddingCollection(tables, combiner="sum", oov="row")
    assert rows["x"].shape == outside(ids)["x"].shape == (3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to 4"):
        Embedding(5, 2, combiner="mean")(ids["x"])


@pytest.mark.parametrize("combiner", [None, "mean"])
def test_a_batch_without_any_id_gives_zeros(combiner):
    empty = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), tf.zeros([4], tf.int64))
    layer = EmbeddingCollection([Table(n, (n,), 5, 2) for n in "xy"], combiner=combiner, stack=True)
    with tf.GradientTape() as tape:
        rows = layer({"x": empty, "y": empty})
        loss = tf.reduce_sum(rows["x"]) + tf.reduce_sum(rows["y"])
    assert rows["x"].shape == ((3, 0, 2) if combiner is None else (3, 2))
    assert not np.any(rows["y"])
    (gradient,) = tape.gradient(loss, layer.trainable_variables)
    assert not np.any(tf.convert_to_tensor(gradient))


@pytest.mark.parametrize("combiner", ["mean", "max"])
def test_lists_of_one_value_are_the_rows_themselves(combiner):
    """In one function for all lengths: that nothing is summed where all have one value is decided for each batch."""
    layer = EmbeddingCollection([Table(n, (n,), 9, DIM) for n in "xy"], combiner=combiner, stack=True)
    layer.build(None)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)] * 2)
    def pooled(x: Any, y: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            rows = layer({"x": x, "y": y})
            loss = tf.reduce_sum(rows["x"] ** 3 + 2 * rows["y"] ** 3)
        return rows, tf.convert_to_tensor(tape.gradient(loss, layer.trainable_variables)[0])

    single = tf.constant([[3], [0], [3]]), tf.constant([[8], [8], [1]])
    rows, gradient = pooled(*(tf.RaggedTensor.from_tensor(tf.cast(each, tf.int64)) for each in single))
    alone = EmbeddingCollection(layer.tables, stack=True)
    alone.build(None)
    alone.stacks[0].variable.assign(layer.stacks[0].variable)
    with tf.GradientTape() as tape:
        expected = alone({"x": single[0][:, 0], "y": single[1][:, 0]})
        loss = tf.reduce_sum(expected["x"] ** 3 + 2 * expected["y"] ** 3)
    for name in "xy":
        np.testing.assert_array_equal(rows[name], expected[name])
    by_hand = tf.convert_to_tensor(tape.gradient(loss, alone.trainable_variables)[0])
    np.testing.assert_allclose(gradient, by_hand, rtol=1e-6)
    # As many values as lists, but not one in each.
    rows, _ = pooled(tf.ragged.constant([[3, 0], [], [3]], dtype=tf.int64), tf.ragged.constant([[8]] * 3, tf.int64))
    reduce = tf.reduce_mean if combiner == "mean" else tf.reduce_max
    np.testing.assert_allclose(rows["x"][0], reduce(expected["x"][:2], 0), rtol=1e-6)
    assert not np.any(rows["x"][1])


def test_parts_without_common_rows_are_deduplicated_as_the_whole():
    parts = [tf.constant([4, 2, 4, 4]), tf.zeros([0], tf.int32), tf.constant([9]), tf.constant([8, 8, 7])]
    whole = tf.unique(tf.concat(parts, 0))
    for given, expected in zip(lookup._unique(tf.concat(parts, 0), [4, 0, 1, 3]), whole):
        np.testing.assert_array_equal(given, expected)

    ids = {name: tf.ragged.constant([[1, 1], [2]]) for name in "abc"} | {"d": tf.constant([[1], [1]])}
    tables = [Table(name, (name,), 5, DIM) for name in "abd"]
    combiner = dict.fromkeys("abc", "sum")
    for changed, sizes in ((Table("c", ("c",), 5, DIM), [2, 3, 3, 3]), (Table("c", ("c", "e"), 5, DIM), [])):
        layer = EmbeddingCollection([*tables, changed], stack=True, combiner=combiner)
        layer.build(None)
        (only,) = layer.fetch({**ids, "e": ids["d"]})
        assert only.ids.parts == sizes


IDS = [[1], [2, 3]]


def test_weights_of_other_lengths_are_an_error_of_the_step_that_names_the_feature():
    layer = EmbeddingCollection([Table("a", ("x",), 5, 2)], combiner="sum", name="t")
    spec = [tf.RaggedTensorSpec([None, None], dtype) for dtype in (tf.int64, tf.float32)]
    step = tf.function(lambda ids, weights: layer({"x": ids}, weights={"x": weights}), input_signature=spec)
    ids = tf.ragged.constant(IDS, tf.int64)
    assert step(ids, tf.ragged.constant([[1.0], [2.0, 3.0]]))["x"].shape == (2, 2)
    for weights in ([[1.0, 2.0], [3.0]], [[1.0], [2.0]], [[1.0], [2.0, 3.0], []]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="feature x"):
            step(ids, tf.ragged.constant(weights, tf.float32))


def test_the_gradients_of_weights_of_0_are_finite():
    ids = tf.ragged.constant([[1, 2], [3], []], dtype=tf.int64)
    weights = tf.Variable([0.0, 0.0, 1.0])
    for combiner in ("mean", "sqrtn"):
        layer = Embedding(5, 2, combiner=combiner, embeddings_initializer="ones")
        with tf.GradientTape() as tape:
            rows = layer(ids, ids.with_values(tf.identity(weights)))
            loss = tf.reduce_sum(rows)
        np.testing.assert_array_equal(rows, [[0, 0], [1, 1], [0, 0]])
        assert np.isfinite(tape.gradient(loss, weights)).all()


def test_layers_get_the_mask_of_sequences_in_a_functional_model(tmp_path):
    ids, _ = _lists(4)
    inputs = {"x": tf_keras.Input((None,), dtype=tf.int64, name="x", ragged=True)}
    rows = EmbeddingCollection([Table("a", ("x",), ROWS, DIM)], name="tables")(inputs)["x"]
    network = tf_keras.Model(inputs, [rows, tf_keras.layers.GlobalAveragePooling1D()(rows)])
    padded, averaged = network({"x": ids})
    assert padded.shape == (BATCH, 5, DIM)
    filled = np.asarray(ids.row_lengths()) > 0
    table = network.layers[-2].stacks[0]
    expected = _expected(table.variable, ids.with_values(table.positions({"x": ids}, "t").positions), None, "mean")
    np.testing.assert_allclose(averaged.numpy()[filled], expected.numpy()[filled], **EXACT)
    clone = tf_keras.models.clone_model(network)
    clone.set_weights(network.get_weights())
    np.testing.assert_array_equal(clone({"x": ids})[1], averaged)


# -- tables of one id a value


MODEL = (*TABLED, "model._target_=embeddings.model", "optimizer=sparse_adagrad", "partitioner=fixed_shards")


def test_the_layer_gives_what_keras_does_and_its_gradients():
    ids = tf.constant([[3, 3, 0], [9, 1, 3]])
    for deduplicate, oov in itertools.product([True, False], ["error", "row"]):
        ours, theirs = Embedding(10, 4, deduplicate=deduplicate, oov=oov), tf_keras.layers.Embedding(10, 4)
        with tf.GradientTape() as tape:
            rows = ours(ids)
            loss = tf.reduce_sum(rows * rows)
        theirs.build(None)
        theirs.embeddings.assign(tf.gather(ours.embeddings, ours.position(tf.range(10))))
        np.testing.assert_array_equal(rows, theirs(ids))
        gradient = tf.convert_to_tensor(tape.gradient(loss, ours.embeddings))
        counts = np.bincount(np.ravel(ids), minlength=10)[:, np.newaxis]
        np.testing.assert_allclose(
            tf.gather(gradient, ours.position(tf.range(10))), 2 * counts * theirs.embeddings.numpy(), rtol=1e-6
        )
        clone = Embedding.from_config(ours.get_config())
        assert clone.get_config() == ours.get_config()


@pytest.mark.thorough
def test_what_is_frozen_stays_and_the_rest_trains_as_in_one_process(train):
    pieces = (*MODEL, "model._target_=embeddings.partly_frozen", "trainer.steps_per_execution=3")
    (_, here), (_, there) = (train(*pieces, f"cluster={cluster}", num_workers=1) for cluster in ("none", "inprocess"))
    held = check_same(there, here)
    weights = [value for name, value in held.items() if name.startswith("model") and value.ndim == 2]
    assert sorted(bool((value == 1).all()) for value in weights) == [False, False, True, True, True]


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_table(train):
    """A row that is seldom looked up would stay spoilt without a loss that shows it."""
    with pytest.raises(NonFiniteLossError, match=r"embedding/embeddings"):
        train(*MODEL, "model._target_=embeddings.rooted", "cluster=none", "trainer=custom_loop")


def test_rows_and_gradients_that_travel_in_bfloat16_are_rounded(cluster_spec):
    with _shards(cluster_spec, 2):
        layer = Embedding(10, 4, wire="bfloat16", embeddings_initializer="normal")
        layer.build(None)
    shards = layer.embeddings.variables
    ids = tf.constant([[3, 3, 0], [9, 1, 3]])

    @tf.function
    def computed():
        with tf.GradientTape() as tape:
            rows = layer(ids)
            loss = tf.reduce_sum(rows * 0.3)
        return rows, [tf.convert_to_tensor(each) for each in tape.gradient(loss, shards)]

    rows, gradients = computed()
    place = layer.position(tf.range(10))
    table = tf.gather(tf.concat([*shards], 0), place)
    rounded = tf.cast(tf.cast(table, tf.bfloat16), tf.float32)
    np.testing.assert_array_equal(rows, tf.gather(rounded, ids))
    assert np.any(rounded != table)
    sent = float(tf.cast(tf.constant(0.3, tf.bfloat16), tf.float32))
    times = np.bincount(np.ravel(ids), minlength=10)[:, np.newaxis]
    np.testing.assert_allclose(tf.gather(tf.concat(gradients, 0), place), np.tile(sent * times, (1, 4)), rtol=1e-6)


def test_whether_duplicates_are_sent_once_is_decided_by_a_batch():
    few = tf.constant(np.arange(32).reshape(8, 4) % 5)
    for batch, share, deduplicates in ((few, 5 / 32, True), (tf.reshape(tf.range(32), [8, 4]), 1.0, False)):
        ids = tf_keras.Input((4,), dtype="int64", name="ids")
        layer = Embedding(50, 3)
        inner = tf_keras.Sequential([tf_keras.Input((4,), dtype="int64"), Embedding(50, 3)])
        network = tf_keras.Model({"ids": ids}, [layer(ids), inner(ids)])
        (decided,) = embeddings.decide_deduplication(
            network, {"ids": batch}
        )  # nothing for a table in a model within the model
        assert (decided.layer, decided.distinct) == (layer.name, pytest.approx(share, abs=1e-3))
        assert (layer.deduplicate, decided.deduplicate) == (deduplicates, deduplicates)


def test_ids_of_other_kinds_and_outside_of_the_table():
    layer = Embedding(3000, 2)
    assert len(set(layer.position(tf.range(3000)).numpy())) == 3000
    wanted = layer(tf.constant([[2999, 0]]))
    np.testing.assert_array_equal(layer(tf.constant([[2999.0, 0.0]])), wanted)
    assert layer(tf.zeros([0, 2], tf.int64)).shape == (0, 2, 2)
    assert Embedding(300, 2)(tf.constant([255], tf.uint8)).shape == (1, 2)
    layer = Embedding(50, 3, oov="row", embeddings_initializer="normal")
    inside, shared, negative = layer(tf.constant([49, 77, -1]))
    np.testing.assert_array_equal(shared, negative)
    assert np.any(shared != inside)
    assert layer.num_rows > 50
