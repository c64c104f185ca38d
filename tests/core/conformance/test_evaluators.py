"""Every way to evaluate gives the numbers of tf-keras' `evaluate` on the same weights and data, or refuses by name.

Nothing is trained. The sidecar and mode=evaluate without a cluster evaluate as `direct` in one process does here, and
mode=evaluate on a cluster as the way that it names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import example_ids
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import run_config

from psrun import metrics
from psrun.cluster import strategy
from psrun.cluster.strategy import Distribution
from psrun.data.source import Feature
from psrun.errors import ConfigError
from psrun.models.model import Model
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import Program
from psrun.program.objective import is_undefined
from psrun.training import evaluators

pytestmark = pytest.mark.inprocess

NUM_EXAMPLES, BATCH = 21, 8  # the last batch is a small one
UNDEFINED = float("nan")  # approx() takes no None
SHARDED = ("cluster=inprocess", "partitioner=fixed_shards")
K = tf_keras.layers


class Drawn(tf_keras.initializers.Initializer):
    """Values that are the same for a variable and for its shards together."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, shape, dtype=None, partition_shape=None, partition_offset=None, **_) -> tf.Tensor:
        whole = np.random.default_rng(self._seed).normal(size=tuple(shape))
        first = partition_offset or [0] * len(shape)
        part = [slice(at, at + size) for at, size in zip(first, partition_shape or shape)]
        return tf.constant(whole[tuple(part)], dtype)


def dense(units: int, name: str, activation: str | None = None) -> tf_keras.layers.Layer:
    return K.Dense(units, activation, name=name, kernel_initializer=Drawn(len(name)))


def of_numbers(outputs: Callable[[Any], Any]) -> tf_keras.Model:
    x = tf_keras.Input((4,), name="x")
    return tf_keras.Model({"x": x}, outputs(x))


def of_words(last: str = "score", *, ragged: bool = False) -> tf_keras.Model:
    """A prediction for each word of a text; the padding is masked."""
    t = tf_keras.Input((None,) if ragged else (5,), dtype=tf.int64, name="t", ragged=ragged)
    vectors = K.Embedding(20, 4, mask_zero=not ragged, embeddings_initializer=Drawn(2))(t)
    return tf_keras.Model({"t": t}, dense(1, last)(vectors))


def masked_and_not() -> tf_keras.Model:
    """Two outputs, of which one is masked."""
    network = of_words("words")
    pooled = K.GlobalAveragePooling1D()(network.output)
    return tf_keras.Model(network.input, [network.output, dense(1, "text")(pooled)])


def of_keras3() -> Any:
    import keras

    constant = keras.initializers.Constant
    t = keras.Input((5,), dtype="int64", name="t")
    h = keras.layers.Embedding(20, 4, mask_zero=True, embeddings_initializer=constant(0.1))(t)
    return keras.Model({"t": t}, keras.layers.Dense(1, kernel_initializer=constant(0.3), name="score")(h))


class Distance(tf_keras.metrics.Mean):
    """Broadcasts, where labels and predictions differ in rank."""

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None) -> None:
        super().update_state(tf.abs(y_true - y_pred))


class Source:
    """Numbers x or texts t, labels as asked for, and weights."""

    num_train_examples = num_eval_examples = NUM_EXAMPLES
    num_classes, facts = 1, {}

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(5)
        self.task = case.task
        length = rng.integers(1, 6, size=NUM_EXAMPLES)
        t = rng.integers(1, 20, size=(NUM_EXAMPLES, 5))
        t[np.arange(5) >= length[:, None]] = 0
        x = rng.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
        binary = (x[:, :1] + rng.normal(size=(NUM_EXAMPLES, 1)) > 0).astype(np.float32)
        by_word = ((t % 3) / 2).astype(np.float32)[..., None]
        labels = {
            "binary": binary,
            "zeros": 0 * binary,
            "flat": x[:, 1],
            "number": x[:, 1:2],
            "words": by_word,
            "text": x[:, 1:2],
        }
        self.features = {"x": Feature((4,), tf.float32)} if case.of_numbers else {"t": Feature((5,), tf.int64)}
        features: dict[str, Any] = {"x": x} if case.of_numbers else {"t": t}
        label = tf.nest.map_structure(lambda name: labels[name], case.label)
        if case.ragged:
            self.features = {"t": Feature((None,), tf.int64, max_values=5)}
            features = {"t": tf.RaggedTensor.from_tensor(t, lengths=length)}
            label = tf.RaggedTensor.from_tensor(by_word, lengths=length)
        weights = rng.integers(0, 4, size=NUM_EXAMPLES).astype(np.float32)
        self._examples = (features, label, weights) if case.weights else (features, label)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._examples).batch(batch_size)

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._examples).repeat().batch(batch_size, drop_remainder=True)


@dataclass(frozen=True)
class Case:
    """A model and its data.

    Attributes:
      undefined: metrics for which Keras returns 0.
      refused: why an evaluation cannot be, by its way.
    """

    network: Callable[[], Any]
    label: Any
    loss: Any = "mse"
    metrics: Any = ("mae",)
    task: str = "regression"
    weights: bool = False
    ragged: bool = False
    of_numbers: bool = True
    more: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


ONE_OUTPUT = {"validation": "'validation' requires a model with one output; choose exact"}
MASKED = {"validation": "'validation' ignores the mask of predictions in metrics; choose exact"}
CASES = {
    "mask": Case(of_words, "words", of_numbers=False, refused=MASKED),
    "mask-and-weights": Case(of_words, "words", weights=True, of_numbers=False, refused=MASKED),
    "mask-of-one-output": Case(
        masked_and_not, ("words", "text"), weights=True, of_numbers=False, task="sequence", refused=ONE_OUTPUT
    ),
    "mask-of-keras3": Case(of_keras3, "words", of_numbers=False, refused=MASKED),
    "ragged": Case(lambda: of_words(ragged=True), "words", ragged=True, of_numbers=False),
    "dict": Case(
        lambda: of_numbers(lambda x: {"click": dense(1, "click", "sigmoid")(x), "price": dense(1, "price")(x)}),
        {"click": "binary", "price": "number"},
        loss={"click": "binary_crossentropy", "price": "mse"},
        metrics=lambda: {"click": [metrics.AUC()], "price": ["mae"]}, task="pairs", weights=True, refused=ONE_OUTPUT,
    ),
    "list": Case(
        lambda: of_numbers(lambda x: [dense(1, "click", "sigmoid")(x), dense(1, "price")(x)]),
        {"click": "binary", "price": "number"},
        loss={"click": "binary_crossentropy", "price": "mse"},
        metrics=lambda: {"click": [metrics.AUC()], "price": ["mae"]}, task="pairs", refused=ONE_OUTPUT,
    ),
    "weights": Case(
        lambda: of_numbers(dense(1, "click", "sigmoid")), "binary", loss="binary_crossentropy",
        metrics=lambda: [metrics.AUC(), "accuracy", "Recall"], task="binary", weights=True,
        more=("model.class_weight={0: 1, 1: 7}",),
    ),
    "logits": Case(
        lambda: of_numbers(dense(1, "click")), "binary", loss=tf_keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=lambda: [tf_keras.metrics.AUC(from_logits=True), tf_keras.metrics.BinaryAccuracy(threshold=0.0)],
        task="binary", more=("model.from_logits=true",),
    ),
    "one-class": Case(
        lambda: of_numbers(dense(1, "click", "sigmoid")), "zeros", loss="binary_crossentropy",
        metrics=lambda: [metrics.AUC(), "accuracy"], task="binary", undefined=("auc",),
    ),
    "label-by-output": Case(
        lambda: of_numbers(dense(1, "price")), {"price": "flat"}, task="sequence",
        refused={"validation": "'validation' adds up the workers' metrics, but mae cannot be cloned"},
    ),
    "loss-of-examples": Case(
        lambda: of_numbers(dense(1, "price")), "number", loss=tf_keras.losses.MeanSquaredError(reduction="none"),
        refused={"exact": "'exact' requires a loss that is one number for a batch"},
    ),
    "labels-of-rank-1": Case(
        lambda: of_numbers(dense(1, "price")), "flat", metrics=lambda: ["mae", Distance()],
    ),
}  # fmt: skip


DEFAULT = ("mask", "labels-of-rank-1")


def metrics_of(case: Case) -> Any:
    made = case.metrics() if callable(case.metrics) else case.metrics
    return made if isinstance(made, Mapping) else [*made]


def network(source: Source, *, case: str) -> Any:
    chosen = CASES[case]
    return Model(chosen.network(), loss=chosen.loss, metrics=lambda: metrics_of(chosen))


def by_keras(case: Case) -> dict[str, float]:
    """The evaluation by Keras alone."""
    start_afresh(1)
    alone = case.network()
    alone.compile(loss=case.loss, **{"weighted_metrics" if case.weights else "metrics": metrics_of(case)})
    results = alone.evaluate(Source(case).evaluation(batch_size=BATCH), return_dict=True, verbose=0)
    return results | dict.fromkeys(case.undefined, UNDEFINED)


def built(name: str, distribution: Distribution, *more: str) -> Program:
    run = run_config(
        "model=dense", "~model.hidden_units", f"model._target_={__name__}.network",
        f"+model.case={name}", f"data.global_batch_size={BATCH}", *CASES[name].more, *more,
    )  # fmt: skip
    program = build_program(run, Source(CASES[name]), distribution)
    build_state(program)
    return program


def evaluations(name: str, spec: tf.train.ClusterSpec) -> Iterator[tuple[str, Callable[[], Mapping[str, float]]]]:
    """Each way to evaluate, by its name."""
    start_afresh(1)
    alone = built(name, Distribution(tf.distribute.get_strategy()), "cluster=none", "evaluation=direct")
    yield "sidecar", lambda: measured(alone)
    start_afresh(1)
    distribution = strategy.parameter_servers(spec, run_config(*SHARDED).partitioner)
    cluster = built(name, distribution, *SHARDED, "trainer=fit", "evaluation=validation")
    for way in ("direct", "distributed", "exact"):
        evaluation = run_config(*SHARDED, f"evaluation={way}").evaluation
        program = replace(cluster, config=replace(cluster.config, evaluation=evaluation))
        yield way, lambda program=program: measured(program)
    yield "validation", lambda: validated(cluster)


def measured(program: Program) -> Mapping[str, float]:
    evaluator = evaluators.make(program)
    evaluation = evaluator.evaluate(0, lambda: None)
    assert evaluation.examples_seen == NUM_EXAMPLES
    return {name: UNDEFINED if value is None else value for name, value in evaluation.metrics.items()}


def validated(program: Program) -> Mapping[str, float]:
    """As `fit` evaluates; its callback `Epochs` takes undefined metrics out."""
    assert evaluators.make(program) is None
    results = program.network.evaluate(evaluators.validation_examples(program), return_dict=True, verbose=0)
    assert results.pop("examples_seen") == NUM_EXAMPLES
    undefined = [metric.name for metric in program.network.compiled_metrics.metrics if is_undefined(metric)]
    return {name: float(value) for name, value in results.items()} | dict.fromkeys(undefined, UNDEFINED)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    marks = []
    if name not in DEFAULT:
        marks.append(pytest.mark.thorough)
    if CASES[name].network is of_keras3:
        marks.append(pytest.mark.part("keras3"))
    return marks


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in CASES])
def test_every_evaluation_is_that_of_keras_or_refused(cluster_spec, name):
    case, results = CASES[name], {}
    expected = by_keras(case)
    for way, evaluate in evaluations(name, cluster_spec[1]):
        if way in case.refused:
            with pytest.raises(ConfigError, match=case.refused[way]):
                evaluate()
        else:
            results[way] = evaluate()
    assert results == {way: pytest.approx(expected, rel=1e-5, nan_ok=True) for way in results}
    assert len(results) + len(case.refused) == 5


@pytest.mark.parametrize(
    ("num_examples", "batch", "num_shards", "data"),
    [
        (101, 7, "null", "AsOthersHaveIt"),  # which knows nothing of shards
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                (1, 4, "null", "Numbered"),  # fewer than workers
                (50, 50, "9", "Numbered"),  # fewer batches than shards
                (97, 10, "1", "AsOthersHaveIt"),
                (97, 10, "3", "Numbered"),
            ]
        ),
    ],
)
def test_exact_counts_every_example_once_on_two_workers(cluster_spec, num_examples, batch, num_shards, data):
    start_afresh(1)
    run = run_config(
        "model=dense", "~model.hidden_units", "model._target_=example_ids.model", f"data.global_batch_size={batch}",
        *SHARDED, "evaluation=exact", f"evaluation.num_shards={num_shards}",
    )  # fmt: skip
    source = getattr(example_ids, data)(num_eval_examples=num_examples)
    program = build_program(run, source, strategy.parameter_servers(cluster_spec[2], run.partitioner))
    build_state(program)
    direct = replace(program, config=replace(program.config, evaluation=run_config("evaluation=direct").evaluation))
    exact, expected = (evaluators.make(each).evaluate(0, lambda: None) for each in (program, direct))
    assert (exact.mode, exact.examples_seen, exact.metrics["not_once"]) == ("exact", num_examples, 0)
    assert exact.metrics == pytest.approx(expected.metrics, rel=1e-5, nan_ok=True)


def test_evaluations_with_other_settings_have_files_of_their_own(tmp_path):
    folder = tmp_path / "evaluations"
    kept = []
    for value, settings in enumerate([{"candidates": 9}, {"candidates": None}, {"candidates": 9}, None]):
        evaluation = evaluators.Evaluation("exact", 40, 10, {"auc": value / 10})
        kept.append(evaluation.keep(folder, "digest", settings).name)
    assert kept == ["40-exact.json", "40-exact-2.json", "40-exact.json", "40-exact.json"]
    values = {path.name: json.loads(path.read_text())["metrics"]["auc"] for path in folder.iterdir()}
    assert values == {"40-exact.json": 0.3, "40-exact-2.json": 0.1}
    assert (
        evaluators.Evaluation("exact", 40, 10, {}).keep(folder, "digest", {"candidates": 3}).name == "40-exact-3.json"
    )
    newest = evaluators.Evaluation("exact", 50, 10, {"auc": 0.5})
    newest.keep(folder, "digest", {"candidates": 3})
    assert [evaluation.step for evaluation, _ in evaluators.kept_evaluations(folder, "exact")] == [40, 50]
