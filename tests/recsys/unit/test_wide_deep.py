"""`wide_deep` on numbers: their encoding, missing ones, labels of another scale, the decay of the MLP."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from psrun.data.source import ArraySource, Feature
from psrun.models import model
from psrun.recsys.models.wide_deep import CLIP, NumberEncoding, automatic_dim, standardized, wide_deep

pytestmark = pytest.mark.tensorflow

AGE = Feature((1,), tf.float32, mean=40.0, deviation=10.0, boundaries=(20.0, 40.0, 60.0), nullable=True)
FARE = Feature((1,), tf.float32)
CITY = Feature((1,), tf.string, ("ulm", "bonn"))


def source(features: dict[str, Feature], task: str = "binary", **attributes: float) -> ArraySource:
    values = {tf.float32: np.zeros([4, 1], np.float32), tf.string: np.full([4, 1], b"ulm")}
    examples = {name: values[feature.dtype] for name, feature in features.items()}, np.zeros([4, 1], np.float32)
    made = ArraySource(features=features, task=task, train=examples, evaluation=examples)  # type: ignore[arg-type]
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def test_codes_of_a_number_are_linear_within_its_bin_and_constant_outside() -> None:
    layer = NumberEncoding([[-2.0, 0.0, 2.0]], [True])
    values, codes = layer(tf.constant([[-9.0], [-1.0], [0.0], [1.0], [9.0], [np.nan]]))
    np.testing.assert_allclose(values[:, 0], [-CLIP, -1, 0, 1, CLIP, 0])
    below, above = -0.5, 0.5
    np.testing.assert_allclose(
        codes, [[below, below, 0], [0, below, 0], [above, below, 0], [above, 0, 0], [above, above, 0], [0, 0, 1]]
    )


def test_columns_without_boundaries_pass_unclipped() -> None:
    values, codes = NumberEncoding([[], [0.0, 1.0]], [False, False])(tf.constant([[1e6, 1e6]]))
    np.testing.assert_allclose(values, [[1e6, CLIP]])
    np.testing.assert_allclose(codes, [[0.5]])


def test_boundaries_that_float32_cannot_tell_apart_make_no_bin() -> None:
    _, codes = NumberEncoding([[1.0, 1.0 + 1e-12, 2.0]], [False])(tf.constant([[1.5]]))
    np.testing.assert_allclose(codes, [[0.0]])


def test_boundaries_are_scaled_like_the_numbers() -> None:
    assert standardized(AGE) == [-2.0, 0.0, 2.0]
    counts = Feature((1,), tf.float32, logarithm=True, mean=1.0, deviation=2.0, boundaries=(-1.0, 0.0, np.e - 1))
    np.testing.assert_allclose(standardized(counts), [-0.5, -0.5, 0.0])


def test_a_network_without_boundaries_has_no_encoding() -> None:
    def encodings(features: dict[str, Feature]) -> int:
        layers = wide_deep(source(features)).network.layers
        return sum(isinstance(layer, NumberEncoding) for layer in layers)

    assert encodings({"fare": FARE, "city": CITY}) == 0
    assert encodings({"age": AGE, "fare": FARE, "city": CITY}) == 1


@pytest.mark.parametrize(
    "names",
    [
        ("prediction", "prediction_", "dense", "dense_2", "rescaling_1"),
        ("age", "age_scaled", "standardized_prediction", "concatenate", "rescaling"),
    ],
)
def test_features_may_have_the_names_that_layers_could_have(names: tuple[str, ...]) -> None:
    tf_keras.backend.reset_uids()  # as in a new process: Keras numbers layers over all models
    wide_deep(source(dict.fromkeys(names, AGE), "regression", label_mean=3.0, label_deviation=2.0))
    wide_deep(source({name: CITY for name in [*names, "city", "city_ids"]}))


def test_missing_numbers_stay_nan_only_for_models_that_mark_them() -> None:
    raw = {"age": tf.constant([[np.nan], [50.0]])}
    kept, _ = model.prepared(source({"age": AGE}), keep_missing=True)
    replaced, _ = model.prepared(source({"age": AGE}))
    np.testing.assert_allclose(kept(raw)["age"], [[np.nan], [1.0]])  # type: ignore[misc]
    np.testing.assert_allclose(replaced(raw)["age"], [[0.0], [1.0]])  # type: ignore[misc]


def test_predictions_and_gradients_of_missing_numbers_are_finite() -> None:
    made = wide_deep(source({"age": AGE, "fare": FARE, "city": CITY}))
    batch = {
        "age": tf.constant([[np.nan], [30.0]]),
        "fare": tf.constant([[7.0], [8.0]]),
        "city": tf.constant([["ulm"], ["?"]]),
    }
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(made.network(made.preprocessed(batch), training=True))
    gradients = tape.gradient(total, made.network.trainable_variables)
    assert all(np.isfinite(tf.convert_to_tensor(each)).all() for each in gradients)


def test_a_regression_starts_at_the_mean_of_the_labels_in_their_units() -> None:
    made = wide_deep(source({"age": AGE}, "regression", label_mean=200_000.0, label_deviation=80_000.0))
    predictions = made.network({"age": tf.random.normal([200, 1])}).numpy()
    assert abs(predictions.mean() - 200_000) < 80_000
    assert 0 < predictions.std() < 160_000
    plain = wide_deep(source({"age": AGE}, "regression"))
    assert abs(plain.network({"age": tf.random.normal([200, 1])}).numpy().mean()) < 2


@pytest.mark.parametrize("deviation", [1.0, 30.0])
def test_the_decay_of_the_mlp_is_in_its_gradient_and_not_in_the_loss(deviation: float) -> None:
    labels = {"label_mean": 0.0, "label_deviation": deviation}
    made = wide_deep(source({"fare": FARE}, "regression", **labels), dropout=0.0, weight_decay=0.5)
    assert made.network.losses == []
    kernels = [layer.kernel for layer in made.network.layers if isinstance(layer, model.DecayedDense)]
    with tf.GradientTape() as tape:
        nothing = 0.0 * tf.reduce_sum(made.network({"fare": tf.ones([2, 1])}))
    for kernel, gradient in zip(kernels, tape.gradient(nothing, kernels)):
        np.testing.assert_allclose(gradient, 0.5 * deviation**2 * kernel, rtol=1e-5)


def test_decay_is_the_gradient_of_a_keras_regularizer() -> None:
    decayed = model.DecayedDense(3, decay=0.2, activation="relu", kernel_initializer="ones")
    regularized = tf_keras.layers.Dense(
        3, "relu", kernel_initializer="ones", kernel_regularizer=tf_keras.regularizers.L2(0.1)
    )
    inputs = tf.constant([[1.0, 2.0]])
    with tf.GradientTape(persistent=True) as tape:
        ours = tf.reduce_sum(decayed(inputs))
        keras = tf.reduce_sum(regularized(inputs)) + regularized.losses[0]
    np.testing.assert_allclose(tape.gradient(ours, decayed.kernel), tape.gradient(keras, regularized.kernel), rtol=1e-6)


@pytest.mark.parametrize(("num_ids", "dim"), [(2, 4), (5, 4), (6, 8), (17, 8), (18, 16), (1_000_000, 16)])
def test_widths_of_tables(num_ids: int, dim: int) -> None:
    assert automatic_dim(num_ids) == dim


def test_automatic_widths_by_feature() -> None:
    features = {"city": CITY, "street": Feature((1,), tf.string, num_buckets=100), "house": CITY}
    made = wide_deep(source(features), embedding_dim={"default": "auto", "house": 3}, stack=False)
    shapes = {each.name: tuple(each.shape) for each in made.network.trainable_variables if "_deep" in each.name}
    assert [shape for _, shape in sorted(shapes.items())] == [(3, 4), (3, 3), (100, 16)]


@pytest.mark.thorough
def test_an_export_predicts_for_raw_features(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = wide_deep(source({"age": AGE, "city": CITY}, "regression", label_mean=5.0, label_deviation=2.0))
    inputs = {"age": tf_keras.Input([1], name="age"), "city": tf_keras.Input([1], dtype=tf.string, name="city")}
    whole = tf_keras.Model(inputs, made.network(made.preprocessing(inputs)))
    whole.save(tmp_path / "export", save_format="tf")
    raw = {"age": tf.constant([[np.nan], [30.0]]), "city": tf.constant([["bonn"], ["?"]])}
    served = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    (prediction,) = served(**raw).values()
    np.testing.assert_allclose(prediction, whole(raw), rtol=1e-6)


def test_more_columns_add_no_layers_but_inputs() -> None:
    def layers(number: int) -> list[str]:
        features = {}
        for index in range(number):
            features |= {f"age_{index}": AGE, f"city_{index}": CITY}
        network = wide_deep(source(features)).network
        return [type(layer).__name__ for layer in network.layers if not isinstance(layer, tf_keras.layers.InputLayer)]

    assert layers(2) == layers(9)
