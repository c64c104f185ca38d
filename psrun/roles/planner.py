"""mode=plan: the placement and traffic of a run, without servers and without values of variables."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import tensorflow as tf
import tf_keras
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from psrun import parts
from psrun.cluster import placement, strategy
from psrun.cluster.placement import Placed, Planned
from psrun.config import choices, topology
from psrun.config.run_config import RunConfig
from psrun.data import loading
from psrun.data.source import Remarks
from psrun.layers import collection
from psrun.optimizers.sparse import unused_rule
from psrun.program import batch_checks, build, embeddings, make_optimizer, whole_variables
from psrun.program.batch_checks import zeros
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import Program, metric_variables
from psrun.results.console import GUESSED, feature_table, folded_rows, placement_table, print_folded, warner
from psrun.results.run_folder import RunFolder
from psrun.tf_internals.names import name_of
from psrun.tf_internals.strategies import UninitializedVariable
from psrun.tf_internals.tracing import converted

_INDEX_BYTES = 8
_MAX_VALUES = 100_000  # of a variable that is not trained and gets its values in a plan


@dataclass(frozen=True)
class Traffic:
    """Bytes that one worker moves in one step, at most: rows of tables are counted once for each id of the batch.

    Attributes:
      read_bytes: from the parameter servers.
      pushed_bytes: gradients to them.
    """

    read_bytes: int = 0
    pushed_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.read_bytes + other.read_bytes, self.pushed_bytes + other.pushed_bytes)


@dataclass(frozen=True)
class Plan:
    """Placement and traffic of a run, with notes and warnings.

    Attributes:
      traffic_by_task: bytes moved while every worker runs one step: for a worker its own traffic, for a parameter
        server the traffic of all workers with it. Empty without parameter servers.
    """

    placed: list[Placed]
    traffic: Traffic
    traffic_by_variable: dict[str, Traffic]
    traffic_by_task: dict[str, Traffic]
    warnings: list[str]
    notes: list[str]


def run(run_config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Prints the plan and records it."""
    source = loading.load_source(run_config, folder.data_facts())
    remarks = Remarks.of(source)
    if remarks.guessed:
        console.print(feature_table(remarks.guessed, GUESSED))
    for note in remarks.notes:
        print_folded(console, Text(note))
    for text in remarks.warnings:
        warner(console)(text)
    run_config = loading.planned(run_config, source, warner(console))
    if warning := run_config.consistency.never_waits(run_config.trainer):
        warner(console)(warning)
    plan = make(run_config, source)
    if run_config.resume is None:
        folder.emit(
            "plan",
            num_steps=run_config.trainer.num_epochs * run_config.trainer.num_steps,
            placement=[asdict(shard) for shard in plan.placed],
            bytes_per_step=asdict(plan.traffic),
            bytes_per_step_by_task={task: asdict(traffic) for task, traffic in plan.traffic_by_task.items()},
        )
    _show(plan, run_config, source.num_train_examples, console)
    if run_config.cluster.predicted_by:
        _predict(plan, run_config, folder, console)


def _predict(plan: Plan, run_config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Prints and records what the cluster predicts of its training."""
    prediction = parts.load(run_config.cluster.predicted_by)(run_config, worker_traffic(plan, run_config))
    for line in prediction.lines:
        print_folded(console, Text(line))
    if prediction.facts and run_config.resume is None:
        folder.emit("prediction", **prediction.facts)


def make(
    run_config: RunConfig, source: Any, *, rule: placement.Rule | None = None, memory_bytes: int | None = None
) -> Plan:
    """Builds the model with variables that have a shape but no memory, and predicts their placement.

    Args:
      rule: as in `strategy.connect`.
      memory_bytes: of the machine that all tasks share; None for the memory of this machine.

    Raises:
      ConfigError: the variables do not fit into the memory, or cannot be cut into shards as configured.
    """
    run_config = loading.planned(run_config, source)
    cluster = run_config.cluster
    recorder = _Recorder()
    start_afresh(run_config.seed)
    _, num_ps = _size(run_config)
    with tf.variable_creator_scope(recorder.create), collection.arranged_for(max(1, num_ps)):
        program = build_program(run_config, source, strategy.Distribution(tf.distribute.get_strategy()))
        recorder.gives_values = False
        traffic: dict[str, Traffic] = {}
        lengths = batch_checks.mean_list_lengths(program.data.batch_spec, program.data.train_dataset)

        def state() -> tf.Tensor:
            # Within a function everything is symbolic: zeros of slots and the step take no memory either.
            build_state(program)
            traffic.update(_traffic(program, lengths))
            return tf.constant(0)

        tf.function(state).get_concrete_function()
    placed = _place(recorder.variables, program, num_ps, rule or placement.RULES[cluster.placement])
    whole_variables.check_separable(run_config, program.network, placed)
    warnings = make_optimizer.check_steps(run_config, program.network, placed)
    if cluster.has_workers and run_config.partitioner.num_shards is not None:
        placement.check_rows(placed, run_config.partitioner.num_shards, stacked=embeddings.tables_in(program.network))
    if cluster.has_parameter_servers and not cluster.spans_machines:
        if memory_bytes is None:
            memory_bytes = psutil.virtual_memory().total
        placement.check_memory(placed, memory_bytes)
    total = sum(traffic.values(), Traffic())
    by_task = _by_task(traffic, placed, run_config) if cluster.has_workers else {}
    warnings += placement.uneven(placed, num_ps)
    warnings += build.costs_of_dense_tables(program.optimizer, placed)
    if unused := unused_rule(program.optimizer):
        warnings.append(unused)
    warnings += program.model.warnings
    notes = [*program.model.notes, *make_optimizer.note_of_two(run_config, program.network)]
    return Plan(placed, total, traffic, by_task, warnings, notes)


def worker_traffic(plan: Plan, run_config: RunConfig) -> list[tuple[int, int]]:
    """Bytes that one worker reads from each parameter server in a step, and that it pushes there."""
    num_workers, num_ps = _size(run_config)
    by_server = []
    for index in range(num_ps):
        moved = plan.traffic_by_task[f"ps-{index}"]  # while every worker does a step
        by_server.append((moved.read_bytes // num_workers, moved.pushed_bytes // num_workers))
    return by_server


def _spread(by_variable: dict[str, Traffic], placed: list[Placed]) -> dict[str, Traffic]:
    """The traffic of one worker by the task that has the variables."""
    by_task: dict[str, Traffic] = {}
    for name, traffic in by_variable.items():
        shards = [shard for shard in placed if shard.variable == name and shard.kind == "model"]
        read_bytes = placement.spread(traffic.read_bytes, shards)
        pushed_bytes = placement.spread(traffic.pushed_bytes, shards)
        for task in read_bytes:
            by_task[task] = by_task.get(task, Traffic()) + Traffic(read_bytes[task], pushed_bytes[task])
    return by_task


class _Recorder:
    """A variable creator that creates handles without values, and lists them in order.

    Attributes:
      gives_values: whether small variables that are not trained get values. Functions that return a model read them, as
        `adapt` does.
    """

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []
        self.gives_values = True

    def create(self, next_creator: Any, **kwargs: Any) -> tf.Variable:
        shape, dtype = strategy.spec_of_arguments(kwargs)
        is_small = not shape.is_fully_defined() or shape.num_elements() <= _MAX_VALUES
        is_trained = dtype.is_floating and kwargs.get("trainable") is not False
        with tf.init_scope():
            if self.gives_values and is_small and not is_trained:
                variable = next_creator(**kwargs)
            else:
                options = {option: kwargs.get(option) for option in ("name", "trainable", "constraint")}
                variable = UninitializedVariable(shape=shape, dtype=dtype, **options)
        self.variables.append(variable)
        return variable


def _place(variables: list[tf.Variable], program: Program, num_ps: int, rule: placement.Rule) -> list[Placed]:
    kinds = {id(variable): "model" for variable in program.network.variables}
    kinds |= {id(variable): "optimizer" for variable in program.optimizer.variables()}
    kinds |= {id(variable): "metric" for variable in metric_variables(program)}
    trained = [name_of(variable) for variable in program.network.trainable_variables]
    planned = []
    for variable in variables:
        kind = kinds.get(id(variable), "other")
        name = name_of(variable)
        shape = placement.shape_of(variable)
        whole = strategy.stays_whole(variable.shape, tf.TensorShape(shape), variable.dtype)
        beside = None
        if kind == "optimizer":
            beside = max((other for other in trained if other in name), key=len, default=None)
        planned.append(Planned(name, shape, variable.dtype.name, variable.dtype.size, kind, beside, whole))
    stacked = {stack.variable_name for stack in embeddings.stacks_of(program.network)}
    partition = strategy.make_partitioner(program.config.partitioner) if num_ps else None

    def num_shards(variable: Planned) -> int:
        if variable.name in stacked:
            return num_ps
        if partition is None:
            return 1
        return partition(shape=tf.TensorShape(variable.shape), dtype=tf.as_dtype(variable.dtype))[0]

    placed = placement.predicted(planned, num_ps=num_ps, num_shards=num_shards, rule=rule)
    return embeddings.by_table([shard for shard in placed if shard.kind != "other"], program.network)


def _traffic(program: Program, lengths: Any) -> dict[str, Traffic]:
    """Bytes a step by variable, from the shapes of one step's gradients.

    Args:
      lengths: of lists in a batch.
    """
    batch_size = program.config.data.batch_size
    batch = tf.nest.map_structure(
        lambda spec, length: zeros(spec, batch_size, length), program.data.batch_spec, lengths
    )
    features, label, weight = tf_keras.utils.unpack_x_y_sample_weight(batch)
    with tf.GradientTape() as tape:
        prediction = program.network(features, training=True)
        loss = converted(program.network.compute_loss)(features, label, prediction, weight)
    variables = program.network.trainable_variables
    replicas = program.config.cluster.replicas_per_worker or 1
    by_variable = {}
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        if gradient is None:
            traffic = Traffic(0, 0)
        elif isinstance(gradient, tf.IndexedSlices):
            rows = math.prod(gradient.values.shape) * gradient.values.dtype.size
            ids = math.prod(gradient.indices.shape) * _INDEX_BYTES
            traffic = Traffic(rows + ids, rows + ids)
        else:
            whole = math.prod(variable.shape) * variable.dtype.size
            traffic = Traffic(replicas * whole, whole)  # each replica reads it; the worker sums the gradients
        by_variable[name_of(variable)] = traffic
    return dict(_by_table(by_variable, program, lengths[0]))


def _by_table(by_variable: dict[str, Traffic], program: Program, lengths: Any) -> Iterator[tuple[str, Traffic]]:
    """The traffic of a stack by table, in proportion to the ids that are looked up in each."""
    stack_of = {stack.variable_name: stack for stack in embeddings.stacks_of(program.network)}
    num_ids = embeddings.ids_per_example(program.network, lengths if isinstance(lengths, Mapping) else {})
    for name, traffic in by_variable.items():
        if name not in stack_of:
            yield name, traffic
            continue
        tables = stack_of[name].tables
        total = sum(num_ids[table.name] for table in tables)
        for table in tables:
            ids = num_ids[table.name]
            share = Traffic(traffic.read_bytes * ids // total, traffic.pushed_bytes * ids // total)
            yield name.replace(stack_of[name].name, table.name), share


def _by_task(by_variable: dict[str, Traffic], placed: list[Placed], run_config: RunConfig) -> dict[str, Traffic]:
    """As in `Plan.traffic_by_task`."""
    num_workers, _ = _size(run_config)
    by_task = dict.fromkeys(_tasks(run_config), Traffic())
    for task, traffic in _spread(by_variable, placed).items():
        by_task[task] += Traffic(num_workers * traffic.read_bytes, num_workers * traffic.pushed_bytes)
    own = sum(by_variable.values(), Traffic())
    for task in by_task:
        if task.startswith("worker"):
            by_task[task] = own
    return by_task


def _show(plan: Plan, run_config: RunConfig, num_train_examples: int | None, console: Console) -> None:
    cluster = run_config.cluster
    trainer = run_config.trainer
    mode = f", consistency={run_config.consistency.title}" if cluster.has_workers else ""
    title = f" of {run_config.model.name} on cluster={cluster.kind}, trainer={trainer.kind}{mode}"

    def lines(text: str) -> None:
        print_folded(console, Text(text))

    print_folded(console, Text.assemble(("Plan", "bold"), title))
    console.print(placement_table(plan.placed, "Placement"))
    console.print()
    console.print(_tasks_table(plan, run_config))
    if cluster.has_synchronous_workers:
        lines(f"Each of the {cluster.num_workers} workers, the chief among them, holds a copy of all of this.")
    lines("Variables only, without TensorFlow itself, the input pipeline and activations.\n")
    if cluster.has_workers:
        lines(
            f"Each step of a worker reads at most {decimal(plan.traffic.read_bytes)} from the parameter servers and "
            f"pushes at most {decimal(plan.traffic.pushed_bytes)} of gradients"
        )
    for text in plan.notes:
        lines(text)
    for text in plan.warnings:
        warner(console)(text)
    num_workers, _ = _size(run_config)
    if cluster.has_workers:
        lines(run_config.consistency.waits_in_words(num_workers))
    batch = run_config.consistency.gradients_per_update(num_workers) * run_config.data.batch_size
    num_examples = batch * trainer.num_epochs * trainer.num_steps
    text = f"{trainer.num_epochs} epochs x {trainer.num_steps} steps of {batch} examples"
    if num_train_examples is not None:
        text += f", {num_examples / num_train_examples:.2f} times the training data"
    lines(text)
    if run_config.counts_default_executions:
        lines(f"A round of the consistency mode has trainer.steps_per_execution={trainer.num_steps_packed} steps")


def _tasks_table(plan: Plan, run_config: RunConfig) -> Table:
    """Bytes that each task holds and, with parameter servers, moves."""
    title = "Tasks"
    headings = ["model", "optimizer", "metrics", "total"]
    if plan.traffic_by_task:
        title = "Tasks (read, pushed: while every worker does one step)"
        headings += ["read", "pushed"]
    table = Table("task", title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right")
    rows: list[tuple[str, ...]] = []
    for task in _tasks(run_config):
        held = dict.fromkeys(("model", "optimizer", "metric"), 0)
        for shard in plan.placed:
            if shard.task == task and shard.kind in held:
                held[shard.kind] += shard.bytes
        sizes = [*held.values(), sum(held.values())]
        if plan.traffic_by_task:
            traffic = plan.traffic_by_task[task]
            sizes += [traffic.read_bytes, traffic.pushed_bytes]
        rows.append((task, *map(decimal, sizes)))
    for row in folded_rows(rows):
        table.add_row(*row)
    return table


def _tasks(run_config: RunConfig) -> list[str]:
    num_workers, num_ps = _size(run_config)
    ps = [f"ps-{index}" for index in range(num_ps)]
    return [placement.CHIEF, *ps, *(f"worker-{index}" for index in range(num_workers))]


def _size(run_config: RunConfig) -> tuple[int, int]:
    """Numbers of workers and parameter servers that train; (0, 0) without workers."""
    cluster = run_config.cluster
    if not cluster.has_workers:
        return 0, 0
    aside = run_config.evaluation.sets_worker_aside
    match cluster:
        case choices.Static(addresses=addresses):
            return len(addresses.get("worker", ())) - aside, len(addresses.get("ps", ()))
        case choices.TfConfig():
            parsed = topology.from_tf_config(os.environ.get("TF_CONFIG"))
            return len(parsed.of("worker")) - aside, len(parsed.of("ps"))
    assert cluster.num_workers is not None
    assert cluster.num_ps is not None
    if not cluster.has_server_processes:
        return cluster.num_workers, cluster.num_ps
    return cluster.num_workers - aside, cluster.num_ps
