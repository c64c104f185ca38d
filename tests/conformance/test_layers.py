"""The embedding layer: its rows, its gradients, what it sends, and ids that are outside of the table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support import SAME, TABLED, variables

from psrun.errors import NonFiniteLossError, PsrunError

pytestmark = pytest.mark.inprocess

MODEL = (*TABLED, "model._target_=embeddings.model", "optimizer=sparse_adagrad", "partitioner=fixed_shards")


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 50, 1000, 4099, 1_000_003])
def test_every_id_has_a_row_of_its_own_and_frequent_ones_are_spread(rows):
    import tensorflow as tf

    from psrun.layers import Embedding

    layer = Embedding(rows, 1)
    positions = layer.position(tf.range(rows, dtype=tf.int64)).numpy()
    assert len(set(positions)) == rows
    assert 0 <= positions.min() <= positions.max() < layer.num_rows < rows + 1024
    for num_shards in (2, 3, 4) if rows >= 1000 else ():
        head = positions[: rows // 20] * num_shards // layer.num_rows
        counts = np.bincount(head, minlength=num_shards)
        assert counts.max() < 1.25 * counts.mean()


def test_the_layer_gives_what_keras_does_and_its_gradients():
    import tensorflow as tf
    import tf_keras

    from psrun.layers import Embedding

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


@pytest.mark.parametrize(
    ("deduplicate", "num_shards"),
    [("true", 2), *(pytest.param("false", n, marks=pytest.mark.thorough) for n in (1, 3))],
)
def test_a_cluster_trains_it_as_one_process_does(train, deduplicate, num_shards):
    pieces = (*MODEL, f"+model.deduplicate={deduplicate}", f"partitioner.num_shards={num_shards}")
    initial = "+model.embeddings_initializer=ones"  # shards draw other random numbers than whole tables do
    (_, here), (_, there) = (
        train(*pieces, initial, f"cluster={cluster}", num_workers=1) for cluster in ("none", "inprocess")
    )
    held = variables(there)
    for name, values in variables(here).items():
        np.testing.assert_allclose(held[name], values, **SAME, err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("pieces", [("trainer=fit",), ("trainer=custom_loop", "trainer.steps_per_execution=3")])
def test_what_is_frozen_stays_and_the_rest_trains_as_in_one_process(train, pieces):
    pieces = (*MODEL, "model._target_=embeddings.partly_frozen", *pieces)
    (_, here), (_, there) = (train(*pieces, f"cluster={cluster}", num_workers=1) for cluster in ("none", "inprocess"))
    held = variables(there)
    for name, values in variables(here).items():
        np.testing.assert_allclose(held[name], values, **SAME, err_msg=name)
    weights = [value for name, value in held.items() if name.startswith("model") and value.ndim == 2]
    assert sorted(bool((value == 1).all()) for value in weights) == [False, False, True, True, True]


@pytest.mark.thorough
def test_rounded_rows_stay_near(train):
    """8 significant bits a row and a gradient: after 24 steps still within a hundredth."""
    (exact, here), (rounded, there) = (
        train(*MODEL, "+model.embeddings_initializer=ones", f"+model.wire={wire}", num_workers=1)
        for wire in ("float32", "bfloat16")
    )
    held, differs = variables(there), 0.0
    for name, values in variables(here).items():
        np.testing.assert_allclose(held[name], values, rtol=0.02, atol=0.02, err_msg=name)
        differs = max(differs, np.abs(held[name] - values).max())
    assert differs > 1e-6
    assert rounded["metrics"]["loss"] == pytest.approx(exact["metrics"]["loss"], rel=0.01)


@pytest.mark.parametrize(("distinct", "deduplicates"), [(5, True), pytest.param(50, False, marks=pytest.mark.thorough)])
def test_whether_duplicates_are_sent_once_is_decided_by_the_first_batch(train, distinct, deduplicates):
    """32 ids a batch, of 5 different ones or of 50."""
    result, _ = train(*MODEL, f"+data.distinct={distinct}")
    (lookup,) = result["lookups"]
    assert lookup["deduplicate"] is deduplicates
    assert (lookup["distinct"] < 0.2) is deduplicates


@pytest.mark.parametrize(("cluster", "trainer"), [("none", "fit"), ("inprocess", "custom_loop")])
def test_an_id_outside_of_the_table_is_an_error_that_names_it(train, cluster, trainer):
    with pytest.raises(PsrunError, match=r"embedding of ids: ids must be from 0 to 49.*\[\d\d\]"):
        train(*MODEL, f"cluster={cluster}", f"trainer={trainer}", "+data.highest=100", "+data.distinct=100")


@pytest.mark.parametrize(
    ("cluster", "trainer"), [("none", "custom_loop"), pytest.param("inprocess", "fit", marks=pytest.mark.thorough)]
)
def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_table(train, cluster, trainer):
    """A row that is seldom looked up would stay spoilt without a loss that shows it."""
    with pytest.raises(NonFiniteLossError, match=r"not finite: the gradient of .*embeddings.*learning_rate"):
        train(*MODEL, "model._target_=embeddings.rooted", f"cluster={cluster}", f"trainer={trainer}")


@pytest.mark.thorough
def test_ids_outside_of_the_table_share_a_row_where_that_is_chosen(train):
    """Half of the ids are outside: their row, the last one, is the one that moves most."""
    initial = "+model.embeddings_initializer=ones"
    _, folder = train(*MODEL, "+data.highest=100", "+data.distinct=100", "+model.oov=row", initial)
    table = next(values for name, values in variables(folder).items() if "embeddings" in name)
    from psrun.layers import Embedding

    layer = Embedding(50, 3, oov="row")
    assert table.shape == (layer.num_rows, 3)
    moved = np.abs(table - 1).sum(axis=1)
    assert np.argmax(moved) == int(layer.position(np.array([77]))[0]) == int(layer.position(np.array([-1]))[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"wire": "float8"}, "wire is 'float8'"), ({"oov": "zero"}, "oov is 'zero'"), ({"deduplicate": 2}, "deduplicate"),
     ({"input_dim": 0}, "0 x 3"), ({"output_dim": -1}, "-1")],
)  # fmt: skip
def test_what_is_no_argument_of_it_is_refused(options, message):
    from psrun.layers import Embedding

    with pytest.raises(ValueError, match=message):
        Embedding(**{"input_dim": 5, "output_dim": 3, **options})


@pytest.mark.thorough
def test_a_table_of_two_shards_resumes_in_three_and_in_one_process(train):
    _, folder = train(*MODEL)
    before = variables(folder)
    for pieces in (("partitioner.num_shards=3",), ("cluster=none", "partitioner=none")):
        *kept, _ = MODEL
        train(*kept, "partitioner=fixed_shards", *pieces, "trainer.epochs=3", into=folder)
    after = variables(folder)
    assert {name: np.shape(values) for name, values in after.items()} == {
        name: np.shape(values) for name, values in before.items()
    }


def test_a_table_in_a_model_within_the_model_trains_and_decides_nothing(train):
    result, _ = train(*TABLED, "model._target_=embeddings.towers", "optimizer=sparse_adagrad")
    assert result["steps"]["applied"] > 0
    assert "lookups" not in result


def test_ids_of_other_kinds():
    import tensorflow as tf

    from psrun.layers import Embedding

    layer = Embedding(3000, 2)
    wanted = layer(tf.constant([[2999, 0]]))
    np.testing.assert_array_equal(layer(tf.constant([[2999.0, 0.0]])), wanted)
    assert layer(tf.zeros([0, 2], tf.int64)).shape == (0, 2, 2)
    assert Embedding(300, 2)(tf.constant([255], tf.uint8)).shape == (1, 2)
    with pytest.raises(ValueError, match=r"must have lists of ids, \(batch, None\), not a RaggedTensor of \(2, N"):
        layer(tf.ragged.constant([[[1]], [[2, 3]]]))
