"""Builds the program of a run in the strategy's scope, with all variables that training creates."""

from __future__ import annotations

import tensorflow as tf
import tf_keras

from psrun.cluster import variable_creation
from psrun.cluster.strategy import Distribution
from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.layers.adapter import AdaptedModel
from psrun.models.model import refuse_single_files
from psrun.program import list_inputs, make_optimizer, objective, output_widths, stacks
from psrun.program.compiled_model import Program, metric_variables
from psrun.program.evaluation_sizes import num_eval_shards
from psrun.program.example_counter import ExamplesSeen
from psrun.program.make_model import make_model
from psrun.program.train_step import OwnTrainStep, is_in
from psrun.program.zeros import zeros
from psrun.tf_internals import keras, optimizers, variables


def start_afresh(seed: int) -> None:
    """Resets names and random numbers to those of a new process. Call before `build`."""
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(seed)


def build(run: RunConfig, source: DataSource, distribution: Distribution) -> Program:
    """Creates the model and everything that trains it, in the scope of the run's strategy.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    with variable_creation.in_place(), distribution.strategy.scope():
        model = make_model(run, source)
        for optimizer in keras.optimizers_within(model.network):
            make_optimizer.prepare(optimizer, run, "model")
        by_fit = run.evaluation.runs_on == "fit"
        task_metrics = objective.metrics_of(model, task_of(source))
        metrics = objective.together(task_metrics, [ExamplesSeen()] if by_fit else [])
        loss = objective.loss_of(model, task_of(source))
        own = OwnTrainStep(model.network, distribution.strategy.num_replicas_in_sync) if is_in(model.network) else None
        program = Program(run, source, model, distribution, own)
        if model.has_scores and (program.weighted or program.class_weight is not None):
            key = "data" if program.class_weight is None else "model.class_weight"
            message = (
                "has weights, which the softmax over a batch does not use; remove them, or set model.objective=labels"
            )
            raise ConfigError([Problem(key, message)])
        exact = by_fit and run.cluster.has_parameter_servers
        model.network.compile(
            optimizer=make_optimizer.make_optimizer(run),
            loss=loss,
            **{"weighted_metrics" if program.weighted else "metrics": metrics},
            steps_per_execution=run.trainer.num_steps_packed,
            run_eagerly=run.trainer.run_eagerly,
            pss_evaluation_shards=num_eval_shards(run, source, distribution.num_workers) if exact else 0,
        )
        if run.cluster.has_parameter_servers and (run.partitioner.splits or stacks.of(model.network)):
            refuse_single_files(model.network)
        stacks.check_storable(model.network, model.network.optimizer)
    if distribution.strategy.num_replicas_in_sync > 1 and exact:
        # Keras splits each batch, and would sum the labels and predictions of the parts for the metrics.
        model.network.distribute_reduction_method = "concat"
    _ = program.sharding, program.to_class_numbers  # cannot be computed in a function, in which a plan is traced
    return program


def build_state(program: Program) -> None:
    """Creates the variables that Keras would create at the first step: slots, metrics, layers not built yet.

    Workers cannot create them, and a checkpoint that is restored before they exist silently loses the slots.
    """
    network = program.network
    with variable_creation.in_place(), program.distribution.strategy.scope():
        label = tf.nest.map_structure(zeros, program.batch_spec[1])
        with list_inputs.checked(network, program.batch_spec[0]):
            prediction = tf.nest.map_structure(zeros, program.prediction_spec)
        _check_states(program)
        output_widths.check(program.prediction_spec, program.batch_spec[1], program.model, program.source)
        network.optimizer.build(network.trainable_variables)
        with objective.named("loss"):
            network.compiled_loss.build(prediction)
        with objective.named("metrics"):
            keras.build_metrics(network.compiled_metrics, prediction, label)
        objective.check_metrics(network.compiled_metrics.metrics, weighted=program.weighted)
    if program.distribution.coordinator is not None and program.distribution.strategy.num_replicas_in_sync > 1:
        variables.add_what_is_assigned(metric_variables(program))
        variables.aggregate_alike(optimizers.learning_rates(program.optimizer))


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
