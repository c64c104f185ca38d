"""Variables and placement of a built program, for run.json and the console."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import tf_keras
from rich.filesize import decimal

from psrun.cluster import placement
from psrun.layers.adapter import AdaptedModel
from psrun.program import compiled_model, make_optimizer, stacks, whole_variables
from psrun.program.compiled_model import Program
from psrun.results.events import Reporter
from psrun.results.run_folder import RunFolder
from psrun.tf_internals import optimizers
from psrun.tf_internals.variables import variables_of

_MANY_ROWS = 100_000


def report(program: Program, reporter: Reporter, folder: RunFolder) -> None:
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
    if program.model.unused:
        names = ", ".join(program.model.unused)
        reporter.warn(f"the model does not use these features: {names}; model=wide_deep uses numbers and categories")
    if program.sharding is not None:
        folder.emit("sharding", sharding=program.sharding)
    lookups = [asdict(lookup) for lookup in compiled_model.decide_lookups(program)]
    if lookups:
        reporter.emit("lookups", lookups=lookups)
    _report_placement(program, reporter)


def _report_placement(program: Program, reporter: Reporter) -> None:
    placed = observe(program)
    reporter.emit("placement", placement=[asdict(shard) for shard in placed], **asdict(placement.balance(placed)))
    for text in costs_of_dense_tables(program.optimizer, placed):
        reporter.warn(text)
    whole_variables.check_separable(program, placed)
    for text in make_optimizer.check_steps(program, placed):
        reporter.warn(text)
    num_shards = program.config.partitioner.num_shards
    if program.config.cluster.has_parameter_servers and num_shards is not None:
        stacked = stacks.tables_in(program.network)
        placement.check_rows(placed, num_shards, stacked=stacked)
        if short := placement.with_fewer_rows(placed, num_shards, stacked=stacked):
            reporter.warn(f"fewer than {num_shards} shards, one per row: {', '.join(short)}")


def observe(program: Program) -> list[placement.Placed]:
    """The placement of every variable of the program; tables in place of the stacks that hold them."""
    placed = [
        *placement.observed("model", variables_of(program.network)),
        *placement.observed("optimizer", program.optimizer.variables()),
    ]
    metrics = placement.observed("metric", compiled_model.metric_variables(program))
    return [*stacks.by_table(placed, program.network), *metrics]


def costs_of_dense_tables(optimizer: Any, placed: Iterable[placement.Placed]) -> list[str]:
    """Warnings with the cost of each large table that the optimizer updates as a whole."""
    sparse = isinstance(optimizer, tf_keras.optimizers.Adagrad) or optimizers.has_momentum_of_0(optimizer)
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
