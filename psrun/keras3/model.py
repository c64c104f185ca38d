"""Models of Keras 3 as models of tf-keras, which parameter servers can train. Imports Keras 3.

A Keras 3 model's own `fit`, optimizers and metrics lose updates on parameter servers: they read a variable and assign
it. Its layers do not: their variables are TensorFlow's, and their calls are TensorFlow's operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.keras3 import compile_settings, internals
from psrun.keras3.assignments import Assignments
from psrun.keras3.layers import TableLayer
from psrun.layers.collection import EmbeddingCollection
from psrun.program.adapters import AdaptedModel
from psrun.tf_internals.names import name_of
from psrun.tf_internals.strategies import shards_of

# Larger tables of keras.layers.Embedding are refused: each of its ids is checked by nobody, and neighbouring ids, which
# are often alike in how frequent they are, share a parameter server.
MAX_ROWS = 100_000
_STEP_METHODS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics", "fit", "evaluate")
# Attributes of a model that was compiled, whose metrics are not used, and of its layers, which are checked one by one.
_OF_COMPILE = ("_compile_metrics", "_loss_tracker", "_metrics", "_layers", "_tracker")


@dataclass
class _Inner:
    """The Keras 3 model, in an object that tf-keras does not look into for weights.

    Attributes:
      complete: whether all variables exist.
      weights: the model's, and the states of recurrent layers that keep them from batch to batch.
      read: those that each call reads as a whole.
      has_losses: whether layers added to the loss in the last call.
    """

    model: keras.Model
    creation: internals.VariableCreation
    complete: bool = False
    weights: list[Any] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)
    has_losses: bool = False


class Keras3Model(AdaptedModel):
    """A Keras 3 model as a tf-keras model.

    Args:
      model: made in the context of `creation`, in the scope of the strategy.

    Raises:
      ConfigError: the model has what cannot be trained here.
    """

    def __init__(self, model: keras.Model, creation: internals.VariableCreation) -> None:
        super().__init__(name=model.name, autocast=False)
        _check_methods(model)
        self._adapted = _Inner(model, creation)
        self._unseeded = _Seeds()
        if internals.inputs_of(model) is not None:  # else its variables are made by the first call
            self.output_names = getattr(model, "output_names", None)  # a Sequential has none
            self._variables_exist()
            self.built = True

    @property
    def keras3(self) -> keras.Model:
        """The Keras 3 model."""
        return self._adapted.model

    def _variables_exist(self) -> None:
        """Prepares the calls. Call when all variables of the model were made."""
        _check_layers(self.keras3)
        for generator in internals.seed_generators(self.keras3):
            generator.next = _Seeds().next
        layers = internals.layers_within(self.keras3)
        for layer in layers:
            if type(layer) is keras.layers.Embedding:
                _look_up_rows(layer)
        tables = [layer for layer in layers if isinstance(layer, TableLayer)]
        self.tables = [layer.table for layer in tables]  # as psrun's layers, they are found in the network
        rows_only = {id(variable) for layer in layers if _looks_up(layer) for variable in layer.weights}
        self._adapted.weights = [*self.keras3.weights, *_states(self.keras3)]
        self._adapted.read = [
            variable
            for variable in self._adapted.weights
            if id(variable) not in rows_only or variable.regularizer is not None
        ]
        self._adapted.complete = True

    @tf.autograph.experimental.do_not_convert  # as the trainer of Keras 3: its layers are not converted either
    def call(self, inputs: Any, training: Any = None) -> Any:
        model = self.keras3
        adapted = self._adapted
        inputs = self._declared(inputs)
        if not adapted.complete:
            with adapted.creation.active():
                outputs = model(inputs, training=training)
            for layer in internals.stateful_layers(model):
                layer.reset_state()  # this call may have had a batch of zeros
            self._variables_exist()
            adapted.has_losses = bool(model.losses)
            return outputs
        internals.use_for_unseeded(self._unseeded)
        internals.clear_losses(model)
        # Read once: each iteration of a loop, such as an LSTM's, would read the variable from its parameter server.
        values = [(variable, tf.convert_to_tensor(internals.value_of(variable))) for variable in adapted.read]
        with Assignments(adapted.weights, values) as assigned:
            outputs = model(inputs, training=training)
            losses = model.losses
        adapted.has_losses = bool(losses)
        assigned.write()
        for loss in losses:
            self.add_loss(loss)
        return outputs

    def _declared(self, features: Any) -> Any:
        """The features that the model declares: Keras 3 would take others by mistake."""
        by_name = internals.input_structure(self.keras3)
        if isinstance(by_name, Mapping) and isinstance(features, Mapping) and by_name.keys() <= features.keys():
            return {name: features[name] for name in by_name}
        return features

    def compile(self, *arguments: Any, loss: Any = None, **options: Any) -> None:
        """As in tf-keras; the labels of a loss function are cast as in Keras 3."""
        super().compile(*arguments, loss=compile_settings.with_cast_labels(loss), **options)

    # -- weights, as tf-keras has them

    @property
    def trainable_weights(self) -> list[Any]:
        return self._values(self.keras3.trainable_weights) if self.trainable and self._adapted.complete else []

    @property
    def non_trainable_weights(self) -> list[Any]:
        if not self._adapted.complete:
            return []
        trained = {id(variable) for variable in self.keras3.trainable_weights if self.trainable}
        return self._values([each for each in self._adapted.weights if id(each) not in trained])

    @property
    def weights(self) -> list[Any]:
        return [*self.trainable_weights, *self.non_trainable_weights]

    def _values(self, variables: list[Any]) -> list[Any]:
        return shards_of(map(internals.value_of, variables))

    def saved_children(self, save_type: str) -> dict[str, Any] | None:
        """The variables by their paths in the Keras 3 model; tables in a checkpoint as its tables."""
        if not self._adapted.complete:
            return None
        values = {name_of(value := internals.value_of(variable)): value for variable in self._adapted.weights}
        if save_type != "checkpoint":
            return {**values, **dict(_resources(self.keras3))}
        tables = [table for table in self.tables if isinstance(table, EmbeddingCollection)]
        views = [pair for table in tables for pair in table.tables_by_variable()]
        by_table = {name: child for _, each in views for name, child in each.children.items()}
        whole = {id(variable) for variable, _ in views}
        return {**{name: value for name, value in values.items() if id(value) not in whole}, **by_table}

    # -- what psrun asks about a network

    @property
    def library(self) -> str:
        return f"keras {keras.__version__}"

    @property
    def layer_with_state(self) -> str | None:
        layers = internals.stateful_layers(self.keras3)
        return layers[0].name if layers else None

    def takes_one_tensor(self, features: Collection[str]) -> bool:
        model = self.keras3
        inputs = internals.inputs_of(model)
        if inputs is None:
            return isinstance(model, keras.Sequential) and bool(model.layers) and _is_of_keras(model.layers[0])
        by_name = isinstance(internals.input_structure(model), Mapping)
        return len(inputs) == 1 and not by_name and inputs[0].name not in features

    @property
    def has_losses(self) -> bool:
        return self._adapted.has_losses

    @property
    def last_activation(self) -> str | None:
        return _activation(self.keras3)

    def lists_by_input(self) -> Mapping[str, bool]:
        inputs = internals.inputs_of(self.keras3) or []
        by_name = internals.input_structure(self.keras3)
        if not isinstance(by_name, Mapping) or len(by_name) != len(inputs):  # with dicts within
            by_name = {tensor.name: tensor for tensor in inputs}
        return {name: bool(tensor.ragged) for name, tensor in by_name.items()}

    def own_layers(self) -> list[Any]:
        return internals.layers_within(self.keras3)

    def looked_up(self) -> list[Any]:
        layers = [layer for layer in self.own_layers() if isinstance(layer, TableLayer | keras.layers.Embedding)]
        return self._values([variable for layer in layers for variable in layer.trainable_weights])

    def ids_of(self, layer: Any) -> Callable[[Any], Any] | None:
        inputs = internals.input_structure(self.keras3)
        (own,) = [each for each in internals.layers_within(self.keras3) if getattr(each, "table", None) is layer]
        ids = internals.argument_of_only_call(own)
        if inputs is None or ids is None or not any(each is own for each in self.keras3.layers):
            return None
        model = keras.Model(inputs, ids)
        return lambda features: model(self._declared(features))


class _Seeds:
    """Takes the place of a random generator of Keras 3, whose state all workers would read and assign at each step.

    As with tf-keras, each worker has different random numbers.
    """

    def __init__(self) -> None:
        self._next = random.randint(1, 2**31 - 2**20)

    def next(self, ordered: bool = True) -> tf.Tensor:
        """A new seed, each time this operation is run."""
        self._next += 1  # operations with equal seeds would give equal numbers
        return tf.random.uniform([2], 0, 2**31 - 1, tf.int32, seed=self._next)


def _states(model: keras.Model) -> list[Any]:
    """The states that recurrent layers keep from batch to batch, which Keras 3 does not list as weights."""
    states = [state for layer in internals.stateful_layers(model) for state in tf.nest.flatten(layer.states)]
    return list({id(state): state for state in states}.values())


def _look_up_rows(layer: keras.layers.Embedding) -> None:
    """Makes an Embedding fetch the rows of its ids. Keras 3 reads the whole table in each step."""
    if layer.lora_enabled or layer.quantization_mode:
        return

    def call(inputs: Any) -> tf.Tensor:
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        scope = internals.stateless_scope()
        table = scope.assigned_value(layer.embeddings) if isinstance(scope, Assignments) else None
        if table is None:
            table = internals.value_of(layer.embeddings)
        return tf.cast(tf.nn.embedding_lookup(table, ids), layer.compute_dtype)

    layer.call = call


def _looks_up(layer: keras.Layer) -> bool:
    return isinstance(layer, TableLayer) or (type(layer) is keras.layers.Embedding and "call" in vars(layer))


def _is_of_keras(layer: keras.Layer) -> bool:
    """Whether a layer is one of Keras 3's own, which take one tensor."""
    return type(layer).__module__.partition(".")[0] == "keras" and not isinstance(layer, keras.layers.Lambda)


def _activation(layer: keras.Layer) -> str | None:
    """The name of the activation of the last layer; None if it is unknown."""
    if isinstance(layer, keras.Sequential):
        return _activation(layer.layers[-1]) if layer.layers else None
    if internals.inputs_of(layer) is not None:
        names = {_activation(internals.producer(tensor)) for tensor in layer.outputs}
        return names.pop() if len(names) == 1 else None
    if type(layer) in (keras.layers.Dense, keras.layers.Activation):
        return getattr(layer.activation, "__name__", None)
    return None


def _resources(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """The look-up tables of a model, which a SavedModel needs."""
    for layer in internals.layers_within(model):
        for name, value in vars(layer).items():
            if isinstance(value, tf.lookup.StaticHashTable):
                yield f"{layer.path or layer.name}/{name}", value


# -- what parameter servers cannot train


def _check_methods(model: keras.Model) -> None:
    """Raises ConfigError if a model has a training step that psrun would not call."""
    own = [
        name
        for name in _STEP_METHODS
        if getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)
    ]
    if own:
        message = (
            f"{type(model).__name__} overrides {', '.join(own)}, which parameter servers cannot use: such methods are "
            "written for Keras 3's optimizers and metrics. Remove them, and write the step with trainer=own_loop; or "
            "derive the model from tf_keras.Model"
        )
        raise ConfigError([Problem("model", message)])


def _check_layers(model: keras.Model) -> None:
    """Raises ConfigError if layers of a model cannot be trained, or cannot be trained well."""
    problems = [Problem("model", text) for layer in internals.layers_within(model) for text in _problems(layer)]
    for variable in model.weights:
        if variable.constraint is not None:
            kind = type(variable.constraint).__name__
            message = f"{variable.path} has the constraint {kind}, which only Keras 3's optimizers apply; remove it"
            problems.append(Problem("model", message))
    overwritten = [variable.path for variable in model.weights if variable.overwrite_with_gradient]
    if overwritten:
        message = f"{overwritten[0]} is replaced by its gradient (float8), which only Keras 3's optimizers do"
        problems.append(Problem("model", f"{message}; choose another dtype policy"))
    if problems:
        raise ConfigError(problems)


def _problems(layer: keras.Layer) -> Iterator[str]:
    if layer.compute_dtype == "float16":
        yield f"{layer.name} computes in float16, whose losses only Keras 3's optimizers scale; use mixed_bfloat16"
    if isinstance(layer, keras.layers.Embedding) and layer.input_dim > MAX_ROWS:
        yield (
            f"{layer.name} is a keras.layers.Embedding of {layer.input_dim:,} rows, more than {MAX_ROWS:,}; use "
            f"psrun.keras3.layers.Embedding({layer.input_dim}, {layer.output_dim})"
        )
    for name, value in vars(layer).items():
        if name in _OF_COMPILE or name.startswith("_self_"):
            continue
        for each in _held(value):
            if isinstance(each, keras.Metric):
                yield (
                    f"{layer.name}.{name} is a metric of Keras 3, which loses updates on parameter servers; name a "
                    "metric in model.metrics"
                )
            elif isinstance(each, tf_keras.layers.Layer) and not isinstance(layer, TableLayer):
                yield mixed(f"{layer.name}.{name} is tf_keras.layers.{type(each).__name__} in a model of Keras 3")


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _held(each)
    else:
        yield value


def mixed(what: str) -> str:
    """The message about a model with layers of both libraries."""
    return f"{what}: one model cannot have layers of both. Use either keras.layers or tf_keras.layers"
