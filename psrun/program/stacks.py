"""The stacks of a network, for code that shows or stores its tables."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tf_keras

from psrun.cluster.placement import Placed
from psrun.errors import ConfigError, Problem
from psrun.layers.collection import EmbeddingCollection
from psrun.layers.stack import EMBEDDINGS, Stack, arranged_for, stored_alone
from psrun.program import lookups
from psrun.tf_internals import optimizers

__all__ = [
    "arranged_for",
    "by_table",
    "check_storable",
    "collections",
    "ids_per_example",
    "of",
    "stored_alone",
    "tables_in",
]


def of(network: tf_keras.Model) -> list[Stack]:
    """The stacks of several tables in a network."""
    return [stack for layer in collections(network) for stack in layer.stacks if stack.layout is not None]


def tables_in(network: tf_keras.Model) -> set[str]:
    """The names of the variables that the tables in stacks would be alone."""
    return {f"{table.name}/{EMBEDDINGS}" for stack in of(network) for table in stack.tables}


def collections(network: tf_keras.Model) -> list[EmbeddingCollection]:
    """The embedding collections in a network."""
    return [layer for layer in lookups.of(network) if isinstance(layer, EmbeddingCollection)]


def ids_per_example(network: tf_keras.Model, lengths: Mapping[str, int]) -> Counter[str]:
    """By table of a collection, how many ids of an example are looked up in it.

    Only functional models know what their layers are called on; else, each feature counts as one id.

    Args:
      lengths: of lists, by the name of the input, as an estimate; others count as one id.
    """
    number: Counter[str] = Counter()
    for layer in collections(network):
        calls = [layer.get_input_at(index) for index in range(len(layer.inbound_nodes))]
        for table in layer.tables:
            for name in table.features:
                number[table.name] += sum(_num_ids(ids[name], lengths) for ids in calls) if calls else 1
    return number


def _num_ids(ids: Any, lengths: Mapping[str, int]) -> int:
    return ids.shape[1:].num_elements() or lengths.get(ids.name, 1)


def by_table(placed: Iterable[Placed], network: tf_keras.Model) -> list[Placed]:
    """Where variables are, with the tables of each stack in place of the stack and of its slots.

    Rows of a stack that belong to no table are left out.
    """
    stacks = of(network)
    placements: list[Placed] = []
    for (name, _), shards in itertools.groupby(placed, key=lambda each: (each.variable, each.kind)):
        whole = list(shards)
        stack = next((each for each in stacks if each.holds(name, whole[0].variable_shape)), None)
        placements += whole if stack is None else _tables(stack, whole)
    return placements


def _tables(stack: Stack, shards: list[Placed]) -> Iterator[Placed]:
    layout = stack.layout
    assert layout is not None
    for index, table in enumerate(stack.tables):
        for number, block in enumerate(layout.blocks(index)):
            shard = shards[block.shard]
            yield replace(
                shard,
                variable=shard.variable.replace(stack.name, table.name),
                shard=number,
                bytes=shard.bytes // layout.shard_rows * block.num_rows,
                variable_shape=(layout.table_rows[index], *shard.variable_shape[1:]),
            )


def check_storable(network: tf_keras.Model, optimizer: Any) -> None:
    """Checks that checkpoints can hold the tables of a network and their slots by table.

    Raises:
      ConfigError: two tables have the same name, or the weights of only some tables of a stack decay.
    """
    layers = collections(network)
    names = Counter(table.name for layer in layers for table in layer.tables)
    if twice := [name for name, number in names.items() if number > 1]:
        message = f"two embedding collections have a table called {twice[0]!r}; rename one: checkpoints go by its name"
        raise ConfigError([Problem("model", message)])
    stacked = [stack for layer in layers for stack in layer.stacks if len(stack.tables) > 1]
    inner = optimizers.unscaled(optimizer)
    patterns = optimizers.names_without_weight_decay(inner)
    problems = [Problem("optimizer", text) for stack in stacked for text in _decays_apart(stack, patterns)]
    if problems:
        raise ConfigError(problems)


def _decays_apart(stack: Stack, patterns: Sequence[str]) -> Iterator[str]:
    """The problem if only some tables of a stack are excluded from weight decay, which applies to all of it."""

    def excluded(name: str) -> bool:
        return any(re.search(pattern, name) for pattern in patterns)

    # Variables end with ":0" in the names that Keras compares.
    whole = excluded(f"{stack.variable_name}:0")
    if others := [table.name for table in stack.tables if excluded(f"{table.name}/{EMBEDDINGS}:0") != whole]:
        together = ", ".join(table.name for table in stack.tables)
        yield (
            f"exclude_from_weight_decay would treat the tables {', '.join(others)} otherwise than the stack that they "
            f"are stored in ({together}), which decays as one variable; use stack=false"
        )
