"""A metric has one name, whatever else the process, the model and the other outputs have made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from psrun.config import rules
from psrun.models.model import Model
from psrun.program import objective
from psrun.tf_internals import keras as internals

pytestmark = pytest.mark.tensorflow

OUTPUTS = ("click", "price")


class Reported:
    """Tells the names of the metrics that a network reports, for one output or for two."""

    def __init__(self) -> None:
        x = tf_keras.Input((4,))
        click, price = (tf_keras.layers.Dense(4, name=name)(x) for name in OUTPUTS)
        self._networks = {1: tf_keras.Model(x, click), 2: tf_keras.Model(x, [click, price])}

    def __call__(self, metrics: Callable[[], Any], num_outputs: int) -> list[str]:
        from psrun.keras3 import compile_settings

        network = self._networks[num_outputs]
        model = compile_settings.with_converted(Model(network, metrics=metrics))
        network.compile(metrics=objective.metrics_of(model, None))
        values = tf.zeros([1, 4]) if num_outputs == 1 else [tf.zeros([1, 4])] * 2
        internals.build_metrics(network.compiled_metrics, values, values)
        return [metric.name for metric in network.compiled_metrics.metrics]


def by_keras() -> Iterator[tuple[str, str]]:
    """Each name of a metric that Keras can make without arguments, with the name that it reports when it is alone."""
    for name in sorted(rules.metric_names()):
        tf_keras.backend.reset_uids()
        with contextlib.suppress(TypeError):
            made = name if name.lower() in rules.NAMES_BY_SHAPE else tf_keras.metrics.get(name)
            yield name, made.name if isinstance(made, tf_keras.metrics.Metric) else name


def test_every_metric_is_reported_by_its_own_name():
    """Beside others of its class in the process, by name and as an object of either library."""
    import keras

    reported, expected = Reported(), dict(by_keras())
    assert len(expected) > 50
    differing = {}
    for name, own in expected.items():
        given: dict[str, Callable[[], Any]] = {"name": lambda name=name: name}
        for library in (tf_keras, keras):
            kind = getattr(library.metrics, name, None)
            if isinstance(kind, type) and name.lower() not in rules.NAMES_BY_SHAPE:
                kind()  # as a loop of the user might have made it
                given[library.__name__] = kind
        for how, make in given.items():
            names = reported(lambda make=make: {output: [make()] for output in OUTPUTS}, 2)
            if names != [f"{output}_{own}" for output in OUTPUTS]:
                differing[name, how] = names
    assert differing == {}


def test_metrics_of_one_class_are_numbered_and_names_of_users_are_kept():
    import keras

    reported = Reported()
    for kinds in (tf_keras.metrics, keras.metrics):
        for _ in range(2):
            kinds.AUC()

        def several(kinds=kinds):
            return [kinds.AUC(), kinds.Recall(), kinds.AUC(curve="PR"), kinds.AUC(name="auc_99")]

        assert reported(several, 1) == ["auc", "recall", "auc_1", "auc_99"]
        both = reported(several, 2)
        assert both == [f"{output}_{name}" for output in OUTPUTS for name in ("auc", "recall", "auc_1", "auc_99")]
