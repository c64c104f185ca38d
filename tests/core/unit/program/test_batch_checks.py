"""Labels and features of batches against what their source declares: the rules, for each task, type and shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import wrong_data

from psrun.data.source import ArraySource, Feature
from psrun.errors import ConfigError, DataError
from psrun.program import batch_checks
from psrun.program.batch_checks import BatchChecks, Place

pytestmark = pytest.mark.tensorflow


def source_of(label: Any, **options: Any) -> SimpleNamespace:
    given = {"task": "binary", "num_classes": 1, "features": {}, **options}
    return SimpleNamespace(label=label, **given)


def message(source: Any, batch: tuple[Any, ...], *, loss: Any = None, metrics: Any = None) -> str | None:
    """What is wrong with a batch, as the pipeline reports it; None if it is right."""
    checks = BatchChecks(source, SimpleNamespace(loss=loss, metrics=metrics), has_labels=True)
    dataset = tf.data.Dataset.from_tensors(batch).map(lambda *each: checks.checked(each, Place("evaluation")))
    try:
        list(dataset)
    except tf.errors.InvalidArgumentError as error:
        return batch_checks.wrong_data_in(str(error))
    return None


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, np.newaxis]


NUMBERS = {"x": np.zeros((4, 2), np.float32)}
CLASSES = {"task": "multiclass", "num_classes": 3}
OWN = {"loss": "binary_crossentropy", "metrics": list}
NAN = np.nan
INF = np.inf


@pytest.mark.parametrize(
    ("label", "options"),
    [
        (column(0, 1, 1, 0), {}),
        (np.array([0, 1, 1, 0]), {}),
        (np.array([True, False, True, True]), {}),
        (np.array([[0, 1], [1, 1], [0, 0], [1, 0]], np.float32), {}),
        (np.array([0, 2, 1, 0]), CLASSES),
        (np.array([0, 2, 1, 0], np.uint8), CLASSES),
        (column(0, 2, 1, 0), CLASSES),
        (np.eye(3, dtype=bool)[[0, 2, 1, 0]], CLASSES),
        (np.eye(3, dtype=np.float32)[[0, 2, 1, 0]], CLASSES),
        (column(-3e30, 2.5, 1, 0), {"task": "regression"}),
        (np.array([-3, 7, 1, 0]), {"task": "regression"}),
        (column(0, 7, 1, 0), {"task": None}),
    ],
)
def test_labels_that_fit_the_task_are_right(label, options):
    assert message(source_of(label, **options), (NUMBERS, label)) is None


@pytest.mark.parametrize(
    ("label", "options", "value"),
    [
        (column(0, 1, 2, 3), {}, "2"),
        (column(0, 1, 0.5, 0), {}, "0.5"),
        (column(0, 1, -1, 0), {}, "-1"),
        (column(0, 1, NAN, 0), {}, "nan"),
        (column(0, 1, INF, 0), {}, "inf"),
        (np.array([0, 1, 2, 0]), {}, "2"),
        (np.array([[0, 1], [1, 1], [0, 7], [1, 0]], np.float32), {}, "7"),
        (np.array([0, 2, 3, 0]), CLASSES, "3"),
        (np.array([0, 2, -1, 0]), CLASSES, "-1"),
        (np.array([0, 2, 255, 0], np.uint8), CLASSES, "255"),
        (column(0, 2, 1.5, 0), CLASSES, "1.5"),
        (column(0, 2, NAN, 0), CLASSES, "nan"),
        (2 * np.eye(3, dtype=np.float32)[[0, 2, 1, 0]] - np.eye(3)[[0, 2, 0, 0]].astype(np.float32), CLASSES, "-1"),
        (column(0, 2, NAN, 0), {"task": "regression"}, "nan"),
        (column(0, 2, -INF, 0), {"task": "regression"}, "-inf"),
        (column(0, 2, NAN, 0), {"task": None}, "nan"),
    ],
)
def test_other_labels_are_named_with_their_value_and_row(label, options, value):
    found = message(source_of(label, **options), (NUMBERS, label))
    assert found is not None
    assert found.startswith(f"SimpleNamespace: the label is {value} in row 2 of a batch (evaluation)")


def test_losses_and_weights_of_ones_own_allow_more_labels():
    soft = column(0, 1, 0.5, 0)
    assert message(source_of(soft), (NUMBERS, soft), **OWN) is None
    assert message(source_of(soft), (NUMBERS, soft), loss="mse") is not None
    assert message(source_of(soft), (NUMBERS, np.array([True, False, True, True])), **OWN) is None
    assert "from 0 to 1" in (message(source_of(soft), (NUMBERS, column(0, 1, 2, 0)), **OWN) or "")
    ignoring = tf_keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    assert message(source_of(soft, **CLASSES), (NUMBERS, np.array([0, -1, 1, 2])), loss=ignoring) is None
    weight = np.array([1, 1, 0, 1], np.float32)
    assert message(source_of(soft), (NUMBERS, column(0, 1, -1, 0), weight)) is None
    assert message(source_of(soft), (NUMBERS, column(-1, 1, -1, 0), weight)) is not None
    assert message(source_of(soft), (NUMBERS, column(0, 1, NAN, 0), weight)) is not None


@pytest.mark.parametrize(
    ("weight", "loss", "expected"),
    [
        (np.array([1, 0, 0.5, 3]), None, None),
        (column(1, 0, 0.5, 3), None, None),
        (np.array([1, 0, 2, 3]), None, None),
        (np.array([True, False, True, True]), None, None),
        (np.array([1, 1, NAN, 1]), "mse", "the weight is nan in row 2 of a batch (evaluation)"),
        (np.array([1, 1, INF, 1]), "mse", "the weight is inf in row 2 of a batch (evaluation)"),
        (np.array([1, 1, -0.5, 1]), None, "the weight is -0.5 in row 2 of a batch (evaluation), but must be 0 or more"),
        (np.array([1, 1, -2, 1]), None, "the weight is -2 in row 2 of a batch (evaluation), but must be 0 or more"),
        (np.array([1, 1, -0.5, 1]), "mse", None),  # such as advantages
        (np.array([1.0]), None, "a batch (evaluation) has 1 weights for 4 rows of features"),
    ],
)
def test_weights_are_numbers_one_for_each_row(weight, loss, expected):
    label = column(0, 1, 1, 0)
    found = message(source_of(label), (NUMBERS, label, weight), loss=loss)
    assert found == (expected and f"SimpleNamespace: {expected}")


def test_labels_and_weights_without_names_have_numbers():
    right = column(0, 1, 1, 0)
    source = source_of(right, task=None)
    ones = np.ones(4)
    found = message(source, (NUMBERS, (right, column(0, 1, NAN, 0))))
    assert "the label 1 is nan in row 2" in (found or "")
    found = message(source, (NUMBERS, (right, right), (ones, np.array([1, 1, NAN, 1]))))
    assert "the weight 1 is nan in row 2" in (found or "")


def test_each_of_several_labels_has_its_own_rule():
    several = {"click": column(0, 1, 0, 1), "seconds": column(0, 1, 30, 1)}
    source = source_of(several, task=None, label_tasks={"click": "binary", "seconds": "regression"})
    assert message(source, (NUMBERS, several)) is None
    wrong = {**several, "click": several["seconds"]}
    assert "the label click is 30" in (message(source, (NUMBERS, wrong)) or "")


@pytest.mark.parametrize("declared", [tf.int64, tf.string])
def test_a_feature_of_a_type_that_would_lose_values_is_refused(declared):
    source = source_of(None, features={"item": Feature((1,), declared)})
    spec = ({"item": tf.TensorSpec((None, 1), tf.float64)}, tf.TensorSpec((None, 1)))
    with pytest.raises(ConfigError, match=f"item is float64 in the batches, but declared as {declared.name}"):
        batch_checks.check_spec(source, spec)


def test_fewer_labels_than_rows_are_refused():
    label = tf.data.Dataset.from_generator(lambda: iter([column(1)]), output_signature=tf.TensorSpec((None, 1)))
    features = tf.data.Dataset.from_tensors(NUMBERS)
    checks = BatchChecks(source_of(None), SimpleNamespace(loss=None, metrics=None), has_labels=True)
    batches = tf.data.Dataset.zip((features, label)).map(lambda *batch: checks.checked(batch, Place("training")))
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        list(batches)
    assert "has 1 labels for 4 rows" in (batch_checks.wrong_data_in(str(raised.value)) or "")


FLOATS = Feature((2,), tf.float32)


@pytest.mark.parametrize(
    ("value", "feature", "expected"),
    [
        (np.array([[0, 0], [0, NAN]], np.float32), FLOATS, "the feature x is nan in row 1"),
        (np.array([[0, 0], [0, -INF]], np.float32), FLOATS, "the feature x is -inf in row 1"),
        (np.array([[0, 0], [0, NAN]], np.float32), Feature((2,), tf.float32, nullable=True), None),
        ([[0.0], [], [1.0, NAN]], Feature((None,), tf.float32, max_values=3), "is nan in row 2"),
        ([[0.0], [], [1.0]], Feature((None,), tf.float32, max_values=3), None),
    ],
)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_numbers_of_features_are_finite(value, feature, expected, is_sparse):
    num_rows = len(value)
    if feature.is_list:
        value = tf.ragged.constant(value)
        value = value.to_sparse() if is_sparse else value
    batch = ({"first": np.zeros((num_rows, 3), np.float32), "x": value}, np.zeros(num_rows, np.float32))
    source = source_of(None, features={"first": Feature((3,), tf.float32), "x": feature})
    found = message(source, batch)
    assert found is None if expected is None else expected in (found or "")


@pytest.mark.parametrize(
    ("given", "declared", "is_right"),
    [
        (tf.float32, tf.float32, True),
        (tf.int32, tf.int64, True),
        (tf.bool, tf.float32, True),
        (tf.int16, tf.float32, True),
        (tf.float64, tf.int64, False),
        (tf.float64, tf.float32, True),
        (tf.int64, tf.int32, True),
        (tf.int64, tf.float32, True),
        (tf.float32, tf.int32, False),
        (tf.string, tf.int64, False),
        (tf.int64, tf.string, False),
    ],
)
def test_a_type_of_another_kind_than_the_declared_one_is_refused(given, declared, is_right):
    source = source_of(None, features={"x": Feature((2,), declared)})
    batch = ({"x": tf.TensorSpec((None, 2), given)}, tf.TensorSpec((None,), tf.float32))
    if is_right:
        batch_checks.check_spec(source, batch)
        return
    with pytest.raises(
        ConfigError, match=f"SimpleNamespace: the feature x is {given.name} .*declared as {declared.name}"
    ):
        batch_checks.check_spec(source, batch)


@pytest.mark.parametrize(
    ("given", "declared", "is_right"),
    [
        ((None, 3), (3,), True),
        ((None, None), (3,), True),  # known in each batch
        ((None, 3), (None,), True),
        (None, (3,), False),
        ((None, 2), (3,), False),
        ((None,), (1,), False),
        ((None, 1), (), False),
        ((), (), False),  # examples that are not in batches
    ],
)
def test_another_shape_than_the_declared_one_is_refused(given, declared, is_right):
    source = source_of(None, features={"x": Feature(declared, tf.float32)})
    batch = ({"x": tf.TensorSpec(given, tf.float32)}, tf.TensorSpec((None,), tf.float32))
    if is_right:
        batch_checks.check_spec(source, batch)
        return
    with pytest.raises(ConfigError, match=r"the feature x has (the|no known) shape"):
        batch_checks.check_spec(source, batch)


def test_a_shape_that_the_spec_leaves_open_is_checked_in_each_batch():
    rows = tf.data.Dataset.from_generator(
        lambda: iter([np.zeros((4, 3)), np.zeros((4, 2))]), output_signature=tf.TensorSpec((4, None), tf.float32)
    )
    source = source_of(None, features={"x": Feature((3,), tf.float32)}, task="regression")
    checks = BatchChecks(source, SimpleNamespace(loss=None, metrics=None), has_labels=True)
    batches = iter(rows.map(lambda x: checks.checked(({"x": x}, tf.zeros([4, 1])), Place("training"))))
    next(batches)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(batches)
    found = batch_checks.wrong_data_in(str(raised.value))
    assert (
        found
        == "SimpleNamespace: a batch has the feature x with the shape (batch, 2), but it is declared as (batch, 3)"
    )


def test_a_feature_that_the_batches_lack_is_refused():
    source = source_of(None, features={"x": FLOATS, "y": FLOATS})
    with pytest.raises(ConfigError, match="the feature y is declared, but not in the batches"):
        batch_checks.check_spec(source, ({"x": tf.TensorSpec((None, 2), tf.float32)}, tf.TensorSpec((None,))))


def test_all_rows_of_arrays_are_looked_at_before_the_training():
    def check(source: ArraySource) -> None:
        checks = BatchChecks(source, SimpleNamespace(loss=None, metrics=None), has_labels=True)
        batch_checks.check_arrays(source, checks)

    check(wrong_data.Arrays())
    for wrong, value in (("label", 2.0), ("x", NAN)):
        with pytest.raises(DataError, match=f"{wrong} is {value:g} in training example {wrong_data.BAD_ROW}"):
            check(wrong_data.Arrays(wrong=wrong, value=value))
    rows = {"x": np.zeros((4, 2), np.float32)}
    with pytest.raises(ConfigError, match="the feature x has 4 rows, the label has 3 rows"):
        check(ArraySource(features={"x": FLOATS}, task="binary", train=(rows, column(0, 1, 1)),
                          evaluation=(rows, column(0, 1, 1, 0))))  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "missing"),
    [
        ({"nums": tf_keras.Input((2,), name="x")}, "nums"),  # the key counts
        ([tf_keras.Input((2,), name="user"), tf_keras.Input((2,), name="nums")], "nums"),
    ],
)
def test_an_input_that_the_features_lack_is_named(inputs, missing):
    network = tf_keras.Model(inputs, tf_keras.layers.Add()([*tf.nest.flatten(inputs), *tf.nest.flatten(inputs)]))
    features = {"user": tf.zeros((4, 2)), "x": tf.zeros((4, 2))}
    specs = tf.nest.map_structure(tf.type_spec_from_value, features)
    with pytest.raises(ConfigError) as raised, batch_checks.checking_inputs(network, specs):
        network(features)
    (problem,) = raised.value.problems
    expected = f"has the input {missing}, but the features are user, x; give both the same name"
    assert (problem.key, problem.message) == ("model", expected)


def test_more_columns_are_checked_by_as_many_operations():
    def operations(number: int) -> int:
        features = {f"x{index}": Feature((1,), tf.float32) for index in range(number)}
        checks = BatchChecks(source_of(None, features=features), SimpleNamespace(loss=None, metrics=None),
                             has_labels=False)  # fmt: skip

        @tf.function
        def checked(batch: dict[str, tf.Tensor]) -> Any:
            return checks.checked((batch, tf.zeros([1])), Place("evaluation"))

        specs = {name: tf.TensorSpec([None, 1], tf.float32, name) for name in features}
        whole = checked.get_concrete_function(specs).graph.as_graph_def()
        nodes = [*whole.node, *(node for branch in whole.library.function for node in branch.node_def)]
        return sum(node.op not in ("Placeholder", "Identity") for node in nodes)

    assert operations(3) == operations(30)
