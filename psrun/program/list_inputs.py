"""Lists among the features of a batch, which models get as RaggedTensors: their checks, and their lengths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.lists import COMBINERS, length_name
from psrun.data.source import Feature
from psrun.errors import ConfigError, Problem
from psrun.layers import pooling
from psrun.layers.adapter import AdaptedModel
from psrun.models.model import is_ragged
from psrun.tf_internals import keras

_LIST_SPECS = (tf.RaggedTensorSpec, tf.SparseTensorSpec)


@contextlib.contextmanager
def checked(network: tf_keras.Model, features: Any) -> Iterator[None]:
    """Checks the inputs of a network; raises errors of a model that is called within on lists, with their names.

    Args:
      features: the specs of a batch, as the network gets it.

    Raises:
      ConfigError: an input takes lists and the data has none, or the other way round; or a call failed.
    """
    _check_inputs(network, features)
    try:
        yield
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        specs = features.items() if isinstance(features, Mapping) else [("its input", features)]
        lists = [name for name, spec in specs if isinstance(spec, tf.RaggedTensorSpec)]
        if not lists:
            raise
        message = f"cannot be called on the features, of which {', '.join(lists)} are lists (RaggedTensor)"
        raise ConfigError([Problem("model", f"{message}: {type(error).__name__}: {error}")]) from error


def _check_inputs(network: tf_keras.Model, features: Any) -> None:
    problems = []
    inputs = _takes_lists(network)
    if not isinstance(features, Mapping):
        flat = tf.nest.flatten(features)
        features = dict(zip(inputs, flat)) if len(flat) == len(inputs) else {}
    for name in (each for each in inputs if each in features):
        takes_lists = inputs[name]
        if isinstance(features[name], tf.RaggedTensorSpec) and not takes_lists:
            message = f"its input {name} takes one value per example, but the data has lists (RaggedTensor)"
            problems.append(Problem("model", f"{message}; use tf_keras.Input((None,), ragged=True), or remove {name}"))
        elif takes_lists and not isinstance(features[name], tf.RaggedTensorSpec):
            message = f"its input {name} takes lists (RaggedTensor), but the data has {features[name].shape}"
            problems.append(Problem("model", f"{message}; declare the feature with max_values"))
    if problems:
        raise ConfigError(problems)


def _takes_lists(network: tf_keras.Model) -> Mapping[str, bool]:
    """Whether they take lists, by the names of inputs."""
    if isinstance(network, AdaptedModel):
        return network.lists_by_input()
    return {name: is_ragged(tensor) for name, tensor in keras.declared_inputs(network).items()}


def mean_lengths(batch: Any, dataset: Callable[[], tf.data.Dataset]) -> Any:
    """The mean number of values of the lists in a batch, at least 1; 1 for other tensors.

    Args:
      batch: its spec.
      dataset: called if there are lists, for the first batch.
    """
    if not any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(batch)):
        return tf.nest.map_structure(lambda spec: 1, batch)

    def length(value: Any) -> int:
        if not isinstance(value, tf.RaggedTensor):
            return 1
        return max(1, round(float(tf.reduce_mean(tf.cast(value.row_lengths(), tf.float32)))))

    return tf.nest.map_structure(length, next(iter(dataset())))


def ragged(features: Any) -> Any:
    """Features with SparseTensors as RaggedTensors; the indices must be in their canonical order."""
    return tf.nest.map_structure(
        lambda value: pooling.ragged(value) if isinstance(value, tf.SparseTensor) else value, features
    )


def check_features(features: Mapping[str, Feature], batch: Any) -> None:
    """Checks the lists that a data source declares.

    Args:
      batch: its spec, as the source yields it.

    Raises:
      ConfigError: a list is not a RaggedTensor or SparseTensor, or its options contradict each other.
    """
    specs = batch[0] if isinstance(batch, tuple) and isinstance(batch[0], Mapping) else {}
    problems = [
        Problem("data", f"feature {name} of the data source {message}")
        for name, feature in features.items()
        for message in _wrong(name, feature, features, specs.get(name))
    ]
    if problems:
        raise ConfigError(problems)


def note_spec(specs: list[Any], batch: Any) -> None:
    """Appends the spec of a batch, in a function that is being traced."""
    specs.append(tf.nest.map_structure(tf.type_spec_from_value, batch))


@contextlib.contextmanager
def noted(specs: Sequence[Any], check: Callable[[Any], None]) -> Iterator[None]:
    """Checks the first spec that was noted in this context, and so before an error within it."""
    try:
        yield
    finally:
        for spec in specs[:1]:
            check(spec)


def _wrong(name: str, feature: Feature, features: Mapping[str, Feature], spec: Any) -> Iterator[str]:
    if not feature.is_list:
        if isinstance(spec, _LIST_SPECS):
            kind = type(spec).__name__.removesuffix("Spec")
            yield f"is a {kind}; declare it as Feature((None,), dtype, max_values=...)"
    else:
        yield from _wrong_kind(feature, spec)
        yield from _wrong_options(name, feature, features)


def _wrong_kind(feature: Feature, spec: Any) -> Iterator[str]:
    if isinstance(spec, _LIST_SPECS):
        nested = isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank != 1
        if nested or spec.shape.rank != 2 or spec.dtype != feature.dtype:
            kind = f"a {type(spec).__name__.removesuffix('Spec')} of {spec.dtype.name} and shape {spec.shape}"
            yield f"is {kind}; a list of {tf.as_dtype(feature.dtype).name} has the shape (batch, None)"
    elif spec is not None:
        yield f"has max_values={feature.max_values}, but is a {type(spec).__name__}; yield a tf.RaggedTensor"


def _wrong_options(name: str, feature: Feature, features: Mapping[str, Feature]) -> Iterator[str]:
    if length_name(name) in features:
        yield f"is a list, and {length_name(name)} is the name of its lengths in exports; rename that feature"
    if feature.shape != (None,):
        yield f"has max_values={feature.max_values} and the shape {feature.shape}; the shape of lists is (None,)"
    if feature.combiner is not None and feature.combiner not in COMBINERS:
        yield f"has the combiner {feature.combiner!r}; choose one of {', '.join(COMBINERS)}, or None"
    if feature.weights is not None:
        weights = features.get(feature.weights)
        if weights is None or not weights.is_list or weights.dtype != tf.float32:
            yield f"has the weights {feature.weights!r}; these must be a feature of float32 with max_values"
        if feature.combiner == "max":
            yield "has weights and the combiner 'max', which has no weights; remove one of them"
