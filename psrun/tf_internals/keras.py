"""Access to internals of tf-keras' optimizers, models, layers, metrics and callbacks."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src import backend
from tf_keras.src.engine import compile_utils
from tf_keras.src.utils import generic_utils

from psrun.tf_internals.checkpoints import Views
from psrun.tf_internals.names import CLIPS, replace, require

# The attributes in which tf-keras' optimizers keep their slots, a list in the order of the variables each. Their dense
# updates read them, so the code that makes the slots must put them there (tf-keras 2.21).
ADAGRAD_ACCUMULATORS = FTRL_ACCUMULATORS = "_accumulators"
ADAM_MOMENTUMS, ADAM_VELOCITIES = "_momentums", "_velocities"
FTRL_LINEARS = "_linears"

# The method that updates the variables, once gradients are added up and clipped: the public `apply_gradients` does both
# (tf-keras 2.21).
UPDATE_METHOD = "_internal_apply_gradients"
DENSE_OPTIMIZER = "dense_optimizer"  # attributes of a composite optimizer
TABLE_OPTIMIZER = "table_optimizer"
_PARTS = (DENSE_OPTIMIZER, TABLE_OPTIMIZER)

_Choice = Callable[[Sequence[Any]], Iterable[Any]]


class SlotOptimizer(tf_keras.optimizers.Optimizer):
    """For optimizers that make the slots of tf-keras' optimizers themselves, and take sparse gradients as they are.

    Stands before a tf-keras optimizer among the base classes (tf-keras 2.21).
    """

    @property
    def has_slots(self) -> bool:
        """Whether slots were made. tf-keras sets the attribute only then."""
        return getattr(self, "_built", False)

    def slots_made(self) -> None:
        """Call when the slots are made: tf-keras' `build` then makes none."""
        self._built = True

    def slot_index(self, variable: tf.Variable) -> int:
        """The place of a variable's slot in each list of slots.

        Raises:
          KeyError: the optimizer was not built for the variable.
        """
        return self._index_dict[self._var_key(variable)]

    def variable_key(self, variable: tf.Variable) -> str:
        """Of a variable and of its copies on several devices."""
        return self._var_key(variable)

    def untracked(self, value: Any) -> Any:
        """A value that can be an attribute without becoming part of checkpoints."""
        return self._no_dependency(value)

    def _deduplicate_sparse_grad(self, grads: list[Any]) -> list[Any]:
        """As they are: tf-keras would sum the rows of a sparse gradient on the worker."""
        return grads


class CompositeOptimizer(SlotOptimizer):
    """Updates tables by one optimizer, and dense weights by another; both have one counter of steps.

    Gradients are added up and clipped together, as the optimizer of dense weights is configured. The learning rate is
    the one of dense weights (tf-keras 2.21).

    Args:
      tables_among: of the variables and shards that the optimizer is built for, those that are tables; it may return
        others besides.

    Attributes:
      parts: the optimizer of dense weights, and the one of tables.
    """

    def __init__(self, dense_optimizer: Any, table_optimizer: Any, tables_among: _Choice) -> None:
        clips = {name: getattr(dense_optimizer, name) for name in CLIPS}
        jit_compile = dense_optimizer.jit_compile and table_optimizer.jit_compile
        super().__init__("composite", **clips, weight_decay=None, jit_compile=jit_compile)
        self.dense_optimizer = dense_optimizer
        self.table_optimizer = table_optimizer
        self.parts = self.untracked([dense_optimizer, table_optimizer])
        self._tables_among = tables_among
        self._by_key = self.untracked({})
        for part in self.parts:
            require(part, "_variables", "_iterations")
            part._variables = []
            part.iterations = self.iterations

    @property
    def learning_rate(self) -> Any:
        return self.dense_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        self.dense_optimizer.learning_rate = rate

    def build(self, var_list: Sequence[Any]) -> None:
        if self.has_slots:
            return
        super().build(var_list)
        chosen = {id(table) for table in self._tables_among(var_list)}
        dense, tables = list[Any](), list[Any]()
        for variable in var_list:
            (tables if id(variable) in chosen else dense).append(variable)
        for part, variables in zip(self.parts, (dense, tables)):
            part.build(variables)
            self._by_key.update((self.variable_key(variable), part) for variable in variables)
        self._table_names = self.untracked([variable.name for variable in tables])
        self._variables = [self.iterations, *self.dense_optimizer._variables, *self.table_optimizer._variables]
        self.slots_made()

    def update_step(self, gradient: Any, variable: Any) -> None:
        self._part_of(variable).update_step(gradient, variable)

    def _part_of(self, variable: Any) -> Any:
        return self._by_key[self.variable_key(variable)]

    def _compute_current_learning_rate(self) -> None:
        for part in self.parts:
            part._compute_current_learning_rate()

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        for part in self.parts:
            part._apply_weight_decay([each for each in variables if self._part_of(each) is part])

    def _internal_apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        summed = []
        for gradient, variable in grads_and_vars:
            summed.append((*self._part_of(variable)._deduplicate_sparse_grad([gradient]), variable))
        return super()._internal_apply_gradients(summed)

    def get_config(self) -> dict[str, Any]:
        parts = {name: tf_keras.optimizers.serialize(getattr(self, name)) for name in _PARTS}
        return {**parts, "tables": self._table_names}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> CompositeOptimizer:
        dense, tables = (tf_keras.optimizers.deserialize(config[name], custom_objects) for name in _PARTS)
        names = {*config["tables"]}
        return cls(dense, tables, lambda variables: [each for each in variables if each.name in names])


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizer of dense weights and the one of tables; where it is one for both, this one alone."""
    inner = unscaled(optimizer)
    return inner.parts if isinstance(inner, CompositeOptimizer) else [inner]


def of_tables(optimizer: Any) -> Any:
    """The optimizer that updates tables."""
    return parts_of(optimizer)[-1]


def own_methods_of_all(optimizer: Any) -> list[str]:
    """The methods for all gradients together that the class of an optimizer overrides (tf-keras 2.21)."""
    base = tf_keras.optimizers.Optimizer
    names = ("apply_gradients", "aggregate_gradients", "_clip_gradients", UPDATE_METHOD)
    return [name for name in names if getattr(type(optimizer), name, None) is not getattr(base, name)]


def is_optimizer(value: Any) -> bool:
    """Whether the value is an optimizer of tf-keras, also a legacy one."""
    return isinstance(value, tf_keras.optimizers.Optimizer | tf_keras.optimizers.legacy.Optimizer)


def legacy_kind(optimizer: Any) -> str | None:
    """The name of the legacy optimizer of tf-keras that this one is or extends; None for another optimizer."""
    inner = unscaled(optimizer)
    if not isinstance(inner, tf_keras.optimizers.legacy.Optimizer):
        return None
    return next(kind.__name__ for kind in type(inner).__mro__ if kind.__module__.startswith("tf_keras."))


def unscaled(optimizer: Any) -> Any:
    """The optimizer itself, of one that scales the loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def names_without_weight_decay(optimizer: Any) -> list[str]:
    """The regular expressions of names of variables whose weights do not decay.

    Only a private attribute keeps what `exclude_from_weight_decay` was called with (tf-keras 2.21).
    """
    if not optimizer.weight_decay:
        return []
    return list(getattr(optimizer, "_exclude_from_weight_decay_names", ()))  # set by the first call


def replace_names_without_weight_decay(optimizer: Any, name_of: Callable[[Any], str]) -> None:
    """Replaces the names that `exclude_from_weight_decay` compares, if it was called (tf-keras 2.21).

    Args:
      name_of: the name to compare, of a variable or a shard.
    """
    optimizer = unscaled(optimizer)
    patterns = names_without_weight_decay(optimizer)
    if not patterns:
        return

    def by_name(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def use_weight_decay(variable: Any) -> bool:
            name = name_of(variable)
            if name == variable.name:
                return original(variable)
            return not any(re.search(pattern, name) for pattern in patterns)

        return use_weight_decay

    replace(optimizer, "_use_weight_decay", by_name)


def has_momentum_of_0(optimizer: Any) -> bool:
    """Whether the optimizer is tf-keras' SGD without momentum."""
    inner = unscaled(optimizer)
    return type(inner) is tf_keras.optimizers.SGD and not inner.momentum


def update_without_momentum(optimizer: Any) -> None:
    """Makes SGD add a gradient to a variable at once, where its momentum is 0.

    tf-keras keeps a momentum of 0 in a slot, adds the gradient to the slot, and the slot to the whole variable: of two
    workers, one then adds what the other has written to the slot (tf-keras 2.21). One worker gets the same numbers.
    """
    inner = unscaled(optimizer)
    if not has_momentum_of_0(inner):
        return
    require(inner, "_var_key")

    def update_step(gradient: Any, variable: tf.Variable) -> None:
        rate = tf.cast(inner.learning_rate, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_add(tf.IndexedSlices(-gradient.values * rate, gradient.indices))
            return
        change = -gradient * rate
        inner.momentums[inner._index_dict[inner._var_key(variable)]].assign(change)  # as tf-keras leaves its slot
        variable.assign_add(change)

    replace(inner, "update_step", lambda _: update_step)


def clips_gradients(optimizer: Any) -> bool:
    """Whether the optimizer clips gradients in any way."""
    inner = unscaled(optimizer)
    return any(getattr(inner, name, None) for name in CLIPS)


def clips_by_global_norm(optimizer: Any) -> bool:
    """Whether the optimizer clips by the norm of all gradients together."""
    return bool(getattr(unscaled(optimizer), "global_clipnorm", None))


def learning_rates(optimizer: Any) -> list[tf.Variable]:
    """The variables of learning rates: with a schedule, the one of its present value."""
    rates = [part.learning_rate for part in parts_of(optimizer)]
    return [rate for rate in rates if hasattr(rate, "assign")]


def present_learning_rate(part: Any) -> float | None:
    """The learning rate of the last update; None if the optimizer has none, or does not say that of its schedule.

    Args:
      part: one of `parts_of`.
    """
    try:
        (rate,) = learning_rates(part)
    except (AttributeError, ValueError):
        return None
    return float(tf.convert_to_tensor(rate).numpy())


def counters_of_optimizer(optimizer: Any) -> list[tf.Variable]:
    """The counter of steps and the learning rates."""
    return [optimizer.iterations, *learning_rates(optimizer)]


def aggregates_as_keras(optimizer: Any) -> bool:
    """Whether the optimizer adds up the gradients of replicas, as tf-keras' optimizers do."""
    own = getattr(type(optimizer), "aggregate_gradients", None)
    return own is tf_keras.optimizers.Optimizer.aggregate_gradients


def without_aggregation(optimizer: Any) -> dict[str, bool]:
    """The options of `apply_gradients` with which it does not add up the gradients of replicas; none if a user's
    optimizer takes no such option, and passes none on.
    """
    option = "skip_gradients_aggregation"
    parameters = inspect.signature(type(optimizer).apply_gradients).parameters
    passes_on = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {option: True} if passes_on or option in parameters else {}


def replace_clipnorm(optimizer: Any, clip: Callable[[Sequence[Any], Sequence[Any], float], Sequence[Any]]) -> None:
    """Replaces what `clipnorm` does, if it is set.

    Keras clips gradients one by one, without their variables, between adding them up and applying them (tf-keras 2.21).

    Args:
      clip: of gradients, their variables and `clipnorm`.
    """
    optimizer = unscaled(optimizer)
    clipnorm = optimizer.clipnorm
    if not isinstance(clipnorm, int | float) or clipnorm <= 0:  # with which Keras clips nothing, or fails
        return
    applied = list[Any]()

    def with_variables(apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def apply_gradients(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            pairs = list(grads_and_vars)
            applied[:] = [variable for gradient, variable in pairs if gradient is not None]
            return apply(pairs, *arguments, **options)

        return apply_gradients

    replace(optimizer, "apply_gradients", with_variables)
    replace(optimizer, "_clip_gradients", lambda _: lambda gradients: clip(gradients, applied, clipnorm))


def built_metrics(weighted: Any, network: Any, prediction: Any, label: Any, names: Sequence[str]) -> Any:
    """The container in which `compile` keeps weighted metrics, with its own variables.

    It knows which output a metric is for, and what 'accuracy' means by the specs of label and prediction. Keras has no
    public way to it but a second compiled model, with an optimizer that nobody needs (tf-keras 2.21).

    Args:
      names: for the metrics in order: Keras numbers those that have none, anew each time.
    """
    container = compile_utils.MetricsContainer(weighted_metrics=weighted, output_names=network.output_names)
    build_metrics(container, prediction, label)
    for metric, name in zip(container.metrics, names, strict=True):
        require(metric, "_name")
        metric._name = name
    return container


def build_metrics(container: Any, prediction: Any, label: Any) -> None:
    """Makes the variables of metrics, as the first `container.update_state` would (tf-keras 2.21).

    Labels may be by the names of outputs that come as a list, which only `update_state` allows for.
    """
    container.build(prediction, container._conform_to_outputs(prediction, label))


def reserve_layer_names(names: Iterable[str]) -> None:
    """Keeps Keras from giving one of `names` to a layer that has no name.

    It numbers them by class: dense, dense_1, ... A model must not have two layers, such as an input and a layer, of one
    name. The counters start behind the numbers of `names` (tf-keras 2.21).
    """
    for name in names:
        match = re.fullmatch(r"(.*?)(?:_(\d{1,4}))?", name, re.DOTALL)
        assert match is not None
        for _ in range(int(match[2] or 0) + 1):
            backend.unique_object_name(match[1], zero_based=True)


def named_alone(make: Callable[[], Any]) -> Any:
    """Metrics with the names that each output's would have in a process without others.

    Keras numbers the metrics of a class that were made without a name (auc, auc_1, ...) over the whole process and over
    all outputs. Here the numbers are those within a list. A user's own name is kept (tf-keras 2.21).

    Args:
      make: makes metrics as `compile` takes them: a list, or lists by output.
    """
    counts = backend.get_default_graph_uid_map()
    before = dict(counts)
    counts.clear()
    try:
        whole = make()
        numbered = {name: count for (_, name), count in counts.items()}
    finally:
        counts.clear()
        counts.update(before)
    for metrics in whole.values() if isinstance(whole, Mapping) else [whole]:
        _number(tf.nest.flatten(metrics), numbered)
    return whole


def _number(metrics: Sequence[Any], numbered: Mapping[str, int]) -> None:
    """Numbers the metrics of each class anew; `numbered` has how many objects Keras has named after each."""
    found: Counter[str] = Counter()
    for metric in metrics:
        if not isinstance(metric, tf_keras.metrics.Metric):
            continue
        base = generic_utils.to_snake_case(type(metric).__name__)
        numbers = range(1, numbered.get(base, 0))
        if metric.name == base or metric.name in [f"{base}_{number}" for number in numbers]:
            metric._name = f"{base}_{found[base]}" if found[base] else base
            found[base] += 1


def losses_by_output(container: Any, label: Any, prediction: Any, weight: Any) -> dict[str, Any]:
    """The loss of a batch for each output that has one, without an update of metrics.

    `container(...)`, which is public, adds to metrics on parameter servers; an evaluation must leave these alone. So
    its losses are called here in the same way: by output, with labels and weights of the same type and rank (tf-keras
    2.21).
    """
    labels = container._conform_to_outputs(prediction, label)
    weights = container._conform_to_outputs(prediction, weight)
    losses = {}
    batch = map(tf.nest.flatten, (labels, prediction, weights))
    flat = zip(*batch, container._losses, container._output_names, strict=True)
    for one_label, one_prediction, one_weight, loss, name in flat:
        if loss is not None and one_label is not None:
            expected, predicted, sample_weight = aligned(one_label, one_prediction, one_weight)
            losses[name] = loss(expected, predicted, sample_weight=sample_weight)
    return losses


def aligned(label: Any, prediction: Any, weight: Any) -> tuple[Any, Any, Any]:
    """One output's label, prediction and weight with the types and ranks in which losses and metrics get them.

    Keras' exact evaluation omits this for metrics (tf-keras 2.21).
    """
    return compile_utils.match_dtype_and_rank(label, prediction, weight)


def masks_of(prediction: Any) -> tuple[Any, ...]:
    """The masks that layers attached to the outputs, one for each; () for an output without a mask.

    Losses and metrics leave out what is masked. The mask is an attribute of the tensor object: it is lost with any copy
    of the values (tf-keras 2.21).
    """
    masks = (getattr(output, "_keras_mask", None) for output in tf.nest.flatten(prediction))
    return tuple(() if mask is None else mask for mask in masks)


def attach_masks(prediction: Any, masks: Sequence[Any]) -> None:
    """Attaches the result of `masks_of` to copies of the outputs."""
    for output, mask in zip(tf.nest.flatten(prediction), masks, strict=True):
        if isinstance(mask, tf.Tensor):
            output._keras_mask = mask


def position_in_backup(network: Any, steps_per_epoch: int) -> tuple[int, int]:
    """Where `fit` resumes once BackupAndRestore has restored the network: whole epochs, and steps of the next one.

    `fit` asks this after the callbacks' `on_train_begin`; psrun must know it before, to report epochs and steps and to
    find the place in the data (tf-keras 2.21).
    """
    epochs, steps = network._maybe_load_initial_counters_from_ckpt(steps_per_epoch, 0)
    return int(epochs), int(steps)


def lock_of_saves(network: Any) -> threading.Lock:
    """A lock that is held while `network.save` in some thread looks for what to save.

    Keras sets `train_function` to None meanwhile, and `fit` in another thread would call that None (tf-keras 2.21).
    """
    lock = threading.Lock()
    children = network._trackable_children

    def guarded(save_type: str = "checkpoint", **options: Any) -> Any:
        if save_type != "savedmodel":
            return children(save_type, **options)
        with lock:
            return children(save_type, **options)

    network._trackable_children = guarded
    return lock


def layers_within(network: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    """All layers of a network, those within other layers and models too.

    `layers` has the outer ones only; `submodules` goes through all attributes, layers or not (tf-keras 2.21).
    """
    return list(network._flatten_layers())


def optimizers_within(network: tf_keras.Model) -> list[Any]:
    """The optimizers that are attributes of a network or of its layers, also in lists and mappings."""
    found: dict[int, Any] = {}
    for layer in (network, *layers_within(network)):
        for value in vars(layer).values():
            members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            found |= {id(each): each for each in members if is_optimizer(each)}
    return list(found.values())


def is_functional(network: tf_keras.Model) -> bool:
    """Whether a network is a graph of layers: a functional model, or a Sequential with a known input.

    The type does not say which kind a Sequential is (tf-keras 2.21).
    """
    return network._is_graph_network


def declared_inputs(network: tf_keras.Model) -> dict[str, Any]:
    """The inputs of a functional network by name; none of others, which do not declare them.

    In a dict of inputs the key is the name, whatever the input is called itself.
    """
    if not is_functional(network):
        return {}
    if isinstance(network.input, dict) and len(network.input) == len(network.inputs):  # no dict within
        return dict(network.input)
    return dict(zip(network.input_names, network.inputs))


def replace_train_function(network: tf_keras.Model, execution: Callable[[Any], Any]) -> None:
    """Makes `fit` call `execution` with its iterator for each execution.

    `make_train_function` is public to be overridden in a class; here the class is a person's (tf-keras 2.21).
    """
    require(network, "make_train_function")
    network.make_train_function = lambda force=False: execution


def as_raised(error: Exception) -> Exception:
    """An error that a model's `call` raises, marked so that tf-keras leaves it as it is.

    It would raise another one, with the arguments of the call in its text (tf-keras 2.21).
    """
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    return error


def takes_unread_logs(callback: tf_keras.callbacks.Callback) -> bool:
    """Whether a callback can be given logs that are not read yet, as tf-keras itself asks.

    One that does not call `super().__init__()` lacks the attribute, and cannot (tf-keras 2.21).
    """
    require(tf_keras.callbacks.Callback(), "_supports_tf_logs")
    return getattr(callback, "_supports_tf_logs", False)


def give_unread_logs(callback: tf_keras.callbacks.Callback) -> None:
    """Makes `fit` pass logs to a callback as they are: reading them would wait for the step (tf-keras 2.21)."""
    require(callback, "_supports_tf_logs")
    callback._supports_tf_logs = True


class ModelWithOwnChildren(tf_keras.Model):
    """A model whose checkpoints and SavedModels hold objects of its choice in place of its layers (tf-keras 2.21)."""

    def saved_children(self, save_type: str) -> dict[str, Any] | None:
        """The objects by name in a 'checkpoint' or 'savedmodel'; None for those that tf-keras finds itself."""
        raise NotImplementedError

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        own = self.saved_children(save_type)
        if own is None:
            return super()._trackable_children(save_type, **options)
        if save_type != "checkpoint":
            return own
        # Backups of Keras' callbacks have the optimizer, too.
        optimizer = getattr(self, "optimizer", None)
        return own if optimizer is None else {**own, "optimizer": optimizer}


class LayerWithTables(tf_keras.layers.Layer):
    """A layer whose checkpoints, Keras' own among them, hold the tables within its variables rather than these.

    tf-keras asks a layer for its part of checkpoints and of SavedModels by the same method; a SavedModel takes the
    variables as they are (tf-keras 2.21).
    """

    def tables_by_variable(self) -> Sequence[tuple[tf.Variable, Views]]:
        """The layer's variables, each with the tables in it; the same objects in each call."""
        raise NotImplementedError

    def untracked(self, value: Any) -> Any:
        """A value that can be an attribute without becoming part of checkpoints."""
        return self._no_dependency(value)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **options)
        if save_type != "checkpoint":
            return children
        views_by_variable = self.tables_by_variable()
        own = {id(variable) for variable, _ in views_by_variable}
        others = {name: child for name, child in children.items() if id(child) not in own}
        return {**others, **{name: child for _, views in views_by_variable for name, child in views.children.items()}}
