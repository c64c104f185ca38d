"""Builds the program of a run in the strategy's scope, with all variables of its training.

It makes the configured model for its data, and reports the variables and their placement.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

import tensorflow as tf
import tf_keras
from rich.filesize import decimal

from psrun import parts
from psrun.cluster import placement, strategy
from psrun.cluster.strategy import Distribution
from psrun.config import rules, targets
from psrun.config.choices import EvaluationChoice
from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.models.model import ArgumentError, Model, refuse_single_files
from psrun.optimizers.sparse import unused_rule
from psrun.parts import GatheredMetric
from psrun.program import adapters, batch_checks, compiled_model, embeddings, make_optimizer, objective, whole_variables
from psrun.program.adapters import AdaptedModel
from psrun.program.batch_checks import zeros
from psrun.program.batches import ProgramData, num_eval_shards, program_data
from psrun.program.compiled_model import Program, metric_variables, own_train_step
from psrun.program.objective import ExamplesSeen
from psrun.program.whole_variables import naming_cut_weights
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.tf_internals import keras, strategies
from psrun.tf_internals.strategies import variables_of

_MANY_ROWS = 100_000


def make_model(run: RunConfig, source: DataSource) -> Model:
    """The model of the run; the caller's scope decides the placement of its variables.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    # A function without readable source may have such a parameter, too.
    call = functools.partial(targets.called, run.model, source=source, seed=run.seed, **run.model_keys.given)
    function = adapters.ModelFunction(functools.partial(targets.find, run.model), call, run.seed)
    asked = adapters.own()
    with naming_cut_weights(run), _naming_arguments():
        returned = adapters.adapted(asked, function)
        if not adapters.is_model(returned) and (others := adapters.others()):
            asked += others
            returned = adapters.adapted(asked, function)
    if not adapters.is_model(returned):
        raise ConfigError([Problem("model._target_", _no_model(run.model.name, returned))])
    model = returned if isinstance(returned, Model) else Model(returned)
    keys = run.model_keys
    loss = adapters.loss(asked, targets.bound_within(keys.loss, "model.loss", rules.LOSS_PARAMETERS))

    def metrics() -> Any:
        made = targets.bound_within(keys.metrics, "model.metrics", rules.LOSS_PARAMETERS, (GatheredMetric,))
        return adapters.metrics(asked, made)

    if run.export.top_k is not None and model.towers is None:
        message = "needs a model with towers (psrun.models.model.Towers); set it to null"
        raise ConfigError([Problem("export.top_k", message)])
    _require_labels(model, source)
    model = _of_only_feature(model, source.features)
    return objective.resolve(
        model, keys.from_logits, loss, None if keys.metrics is None else metrics, task=task_of(source)
    )


def _require_labels(model: Model, source: DataSource) -> None:
    """Raises ConfigError if the examples have no label, and the model learns from one."""
    if model.has_scores or getattr(source, "has_labels", True):
        return
    raise ConfigError([Problem("data.label", rules.LEARNS_FROM_LABELS)])


def _no_model(name: str, returned: Any) -> str:
    """The message for what a model function returned, which is neither a model of tf-keras nor adapted by a part."""
    network = returned.network if isinstance(returned, Model) else returned
    kind = type(network)
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    found = f"{where}{kind.__qualname__}"
    return parts.with_missing(f"{name} returned {found}, not a tf_keras.Model, and no part adapts it")


@contextlib.contextmanager
def _naming_arguments() -> Iterator[None]:
    """Names the keys of the arguments that a model function refuses."""
    try:
        yield
    except ConfigError as error:
        if not isinstance(error.__cause__, ArgumentError):
            raise
        raise ConfigError(Problem(_key(name), text) for name, text in error.__cause__.problems) from error.__cause__


def _key(argument: str) -> str:
    if argument.startswith("features."):
        return f"data.{argument}"
    return f"model.{argument}" if argument else "model"


# -- models with one unnamed input, on data with one feature


def _of_only_feature(model: Model, features: Collection[str]) -> Model:
    """`model` with preprocessing that selects the only feature, if its network takes one tensor.

    A model with its own preprocessing is unchanged: the preprocessing defines the inputs of the network.

    Raises:
      ConfigError: the network takes one tensor, but there are several features.
    """
    if model.preprocessing is not None or not _takes_one_tensor(model.network, features):
        return model
    if len(features) != 1:
        message = f"takes one input, but the data has the features {', '.join(features)}; add an input for each"
        raise ConfigError([Problem("model", f"{message}: tf_keras.Model({{name: tf_keras.Input(...), ...}}, outputs)")])
    return replace(model, preprocessing=_only)


def _only(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    (value,) = features.values()
    return value


def _takes_one_tensor(network: tf_keras.Model, features: Collection[str]) -> bool:
    """Whether the network takes one tensor instead of features by name; subclasses of Model take features by name."""
    if isinstance(network, AdaptedModel):
        return network.takes_one_tensor(features)
    if isinstance(network, tf_keras.Sequential) and not network.inputs:
        return bool(network.layers) and _of_keras(network.layers[0], features)
    names = getattr(network, "input_names", None) or []
    if not names or isinstance(network.input, dict) or len(names) > 1:
        return False
    return names[0] not in features


def _of_keras(layer: tf_keras.layers.Layer, features: Collection[str]) -> bool:
    """Whether the first layer takes one tensor, as most of Keras' layers do, or is a model that does."""
    if isinstance(layer, tf_keras.Model):
        return _takes_one_tensor(layer, features)
    by_name = isinstance(layer, tf_keras.layers.DenseFeatures | tf_keras.layers.Lambda)
    return type(layer).__module__.startswith("tf_keras.") and not by_name


def start_afresh(seed: int) -> None:
    """Resets names and random numbers to the state of a new process. Call before `build`."""
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(seed)


def build_program(run: RunConfig, source: DataSource, distribution: Distribution) -> Program:
    """Creates the model and everything that trains it, in the scope of the run's strategy.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    with strategy.creating_in_place(), distribution.strategy.scope():
        model = make_model(run, source)
        for optimizer in keras.optimizers_within(model.network):
            make_optimizer.prepare(optimizer, run, "model")
        by_fit = run.evaluation.runs_on == "fit"
        metrics = objective.metrics_of(model, task_of(source))
        metrics = objective.together(metrics, [ExamplesSeen()] if by_fit else [])
        loss = objective.loss_of(model, task_of(source))
        own_step = own_train_step(model.network, distribution.strategy.num_replicas_in_sync)
        data = program_data(run, source, model, distribution)
        if model.has_scores:
            _refuse_weights(data)
        exact = by_fit and run.cluster.has_parameter_servers
        num_shards = num_eval_shards(run, source, distribution.num_workers) if exact else 0
        optimizer = make_optimizer.make_optimizer(run, model.network)
        metrics_key = "weighted_metrics" if data.weighted else "metrics"
        model.network.compile(
            optimizer=optimizer,
            loss=loss,
            **{metrics_key: metrics},
            steps_per_execution=run.trainer.num_steps_packed,
            run_eagerly=run.trainer.run_eagerly,
            pss_evaluation_shards=num_shards,
        )
        if run.cluster.has_parameter_servers and (run.partitioner.splits or embeddings.stacks_of(model.network)):
            refuse_single_files(model.network)
        embeddings.check_storable(model.network, model.network.optimizer)
    if distribution.strategy.num_replicas_in_sync > 1 and exact:
        # Keras splits each batch, and would sum the labels and predictions of the parts for the metrics.
        model.network.distribute_reduction_method = "concat"
    return Program(run, source, model, distribution, data, own_step)


def _refuse_weights(data: ProgramData) -> None:
    """Raises ConfigError if examples or classes have weights."""
    if not data.weighted and data.class_weight is None:
        return
    key = "data" if data.class_weight is None else "model.class_weight"
    message = "has weights, which the softmax over a batch does not use; remove them, or set model.objective=labels"
    raise ConfigError([Problem(key, message)])


def build_state(program: Program) -> None:
    """Creates the variables that Keras would create at the first step: slots, metrics, layers not built yet.

    Workers cannot create them, and a checkpoint that is restored before they exist silently loses the slots.
    """
    network = program.network
    with strategy.creating_in_place(), program.distribution.strategy.scope():
        label = tf.nest.map_structure(zeros, program.data.batch_spec[1])
        with batch_checks.checking_inputs(network, program.data.batch_spec[0]):
            prediction = tf.nest.map_structure(zeros, program.prediction_spec)
        _check_states(program)
        objective.check_widths(program.prediction_spec, program.data.batch_spec[1], program.model, program.source)
        network.optimizer.build(network.trainable_variables)
        with objective.named("loss"):
            network.compiled_loss.build(prediction)
        with objective.named("metrics"):
            keras.build_metrics(network.compiled_metrics, prediction, label)
        objective.check_metrics(network.compiled_metrics.metrics, weighted=program.data.weighted)
    if program.distribution.coordinator is not None and program.distribution.strategy.num_replicas_in_sync > 1:
        strategies.add_what_is_assigned(metric_variables(program))
        strategies.aggregate_alike(keras.learning_rates(program.optimizer))


def _check_states(program: Program) -> None:
    """Raises ConfigError if several workers, replicas or an export would share the states that a layer keeps."""
    distribution = program.distribution
    together = distribution.num_workers * distribution.strategy.num_replicas_in_sync
    layer = program.network.layer_with_state if isinstance(program.network, AdaptedModel) else None
    if layer is not None and together > 1:
        message = (
            f"{layer} keeps its state from batch to batch (stateful=True), but {together} workers or replicas would "
            "mix the states of their batches; set cluster.num_workers=1 and one replica, or stateful=False"
        )
        raise ConfigError([Problem("model", message)])
    if layer is not None and program.config.export.at_end and program.config.mode == "train":
        message = (
            f"is true, but {layer} keeps its state from batch to batch (stateful=True), for batches of one size, and "
            "exports take any: set it to false, or stateful=False"
        )
        raise ConfigError([Problem("export.at_end", message)])


def unused_features(model: Model, evaluation: EvaluationChoice) -> list[str]:
    """The features that neither the model nor the evaluation uses."""
    of_evaluation = (evaluation.user, evaluation.item, *evaluation.by, *evaluation.item_features)
    return [name for name in model.unused if name not in of_evaluation]


def report_program(program: Program, reporter: Reporter, folder: RunFolder) -> None:
    """Records the program and reports what deserves attention.

    Raises:
      ConfigError: variables cannot be cut into shards as configured.
    """
    if program.config.cluster.has_parameter_servers:
        devices = [device.removeprefix("/device:") for device in program.distribution.strategy.extended.worker_devices]
        folder.emit("replicas", per_worker=len(devices), devices=devices)
    if isinstance(program.network, AdaptedModel):
        reporter.emit("network", library=program.network.library)
    else:
        folder.emit("library", library=f"tf-keras {version('tf-keras')}")
    unused = unused_features(program.model, program.config.evaluation)
    if unused:
        message = f"the model does not use these features: {', '.join(unused)}"
        if not program.model.has_scores:
            message += "; model=wide_deep uses numbers and categories"
        reporter.warn(message)
    for text in [*program.model.notes, *make_optimizer.note_of_two(program.config, program.network)]:
        reporter.emit("note", text=text)
    for text in program.model.warnings:
        reporter.warn(text)
    if program.data.sharding is not None:
        folder.emit("sharding", sharding=program.data.sharding)
    lookups = [asdict(lookup) for lookup in compiled_model.decide_lookups(program)]
    if lookups:
        reporter.emit("lookups", lookups=lookups)
    _report_placement(program, reporter)


def _report_placement(program: Program, reporter: Reporter) -> None:
    placed = placement_of(program)
    num_ps = program.config.cluster.num_ps or 0
    reporter.emit(
        "placement", placement=[asdict(shard) for shard in placed], num_ps=num_ps, **asdict(placement.balance(placed))
    )
    for text in placement.uneven(placed, num_ps):
        reporter.warn(text)
    if unused := unused_rule(program.optimizer):
        reporter.warn(unused)
    for text in costs_of_dense_tables(program.optimizer, placed):
        reporter.warn(text)
    whole_variables.check_separable(program.config, program.network, placed)
    for text in make_optimizer.check_steps(program.config, program.network, placed):
        reporter.warn(text)
    num_shards = program.config.partitioner.num_shards
    if program.config.cluster.has_parameter_servers and num_shards is not None:
        stacked = embeddings.tables_in(program.network)
        placement.check_rows(placed, num_shards, stacked=stacked)
        if short := placement.with_fewer_rows(placed, num_shards, stacked=stacked):
            reporter.warn(f"fewer than {num_shards} shards, one per row: {', '.join(short)}")


def placement_of(program: Program) -> list[placement.Placed]:
    """The placement of every variable of the program; tables in place of the stacks that hold them."""
    placed = [
        *placement.observed("model", variables_of(program.network)),
        *placement.observed("optimizer", program.optimizer.variables()),
    ]
    metrics = placement.observed("metric", compiled_model.metric_variables(program))
    return [*embeddings.by_table(placed, program.network), *metrics]


def costs_of_dense_tables(optimizer: Any, placed: Iterable[placement.Placed]) -> list[str]:
    """Warnings with the cost of each large table that the optimizer updates as a whole."""
    optimizer = keras.of_tables(optimizer)
    sparse = isinstance(optimizer, tf_keras.optimizers.Adagrad) or keras.has_momentum_of_0(optimizer)
    if getattr(optimizer, "touches_rows_only", sparse):
        return []
    placed = list(placed)
    tables = {
        shard.variable: tuple(shard.variable_shape)
        for shard in placed
        if shard.kind == "model" and "embeddings" in shard.variable and shard.variable_shape[0] > _MANY_ROWS
    }
    warnings = []
    kind = type(optimizer).__name__
    for name, shape in tables.items():
        # The names of slots end with the name of the table.
        own = [shard.bytes for shard in placed if f"/{shard.variable}".endswith(f"/{name}")]
        warnings.append(
            f"{kind} updates all {shape[0]:,} rows of {name} in every step, and with its slots reads and writes "
            f"{decimal(sum(own))}; sparse_adagrad, rowwise_adagrad, lazy_adam and sparse_sgd update only the rows of "
            "the batch"
        )
    return warnings
