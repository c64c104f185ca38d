"""The embedding layers of a network: their look-ups, the stacks that hold their tables, and ids without a row."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import files
from psrun.cluster.placement import Placed
from psrun.data.source import Feature
from psrun.errors import ConfigError, DataError, Problem
from psrun.layers.collection import EMBEDDINGS, EmbeddingCollection, Stack
from psrun.layers.embedding import Embedding
from psrun.layers.lookup import DISTINCT_TO_PAY, EmbeddingLayer
from psrun.models.model import IntegerHashing
from psrun.program.adapters import AdaptedModel
from psrun.tf_internals import keras
from psrun.tf_internals.messages import outside_lookup
from psrun.tf_internals.names import name_of
from psrun.tf_internals.strategies import shards_of


@dataclass(frozen=True)
class Deduplication:
    """Whether a layer deduplicates, and the share of distinct ids in the batch that decided it."""

    layer: str
    deduplicate: bool
    distinct: float


def embedding_layers(network: tf_keras.Model) -> list[EmbeddingLayer]:
    """The embedding layers in a network."""
    return [layer for layer in keras.layers_within(network) if isinstance(layer, EmbeddingLayer)]


def held_tables(network: tf_keras.Model) -> Iterator[tuple[tf_keras.layers.Layer, Any]]:
    """The variables of the tables of embedding layers, known by their type, each with its layer.

    A layer has other variables too, if its class is a user's own; it has none before it is built.
    """
    for layer in keras.layers_within(network):
        if isinstance(layer, EmbeddingCollection):
            held = [stack.variable for stack in layer.stacks]
        elif isinstance(layer, EmbeddingLayer | tf_keras.layers.Embedding):
            held = [getattr(layer, EMBEDDINGS, None)]
        else:
            continue
        yield from ((layer, variable) for variable in held if variable is not None)


def tables_of(network: tf_keras.Model) -> list[Any]:
    """The trained ones of `held_tables`: variables, and shards of them. Call when the network is built."""
    tables = []
    for layer, variable in held_tables(network):
        shards = {id(shard) for shard in shards_of([variable])}
        tables += [each for each in layer.trainable_weights if id(each) in shards]
    return tables + network.looked_up() if isinstance(network, AdaptedModel) else tables


def table_names(network: tf_keras.Model) -> list[str]:
    """The names of `tables_of`, of each stack the names of its tables."""
    names = dict.fromkeys(name_of(table) for table in tables_of(network))
    for stack in stacks_of(network):
        names.pop(stack.variable_name, None)
    return [*names, *sorted(tables_in(network))]


@dataclass(frozen=True)
class Lookup:
    """The ids of a layer, as a function of a network's features."""

    layer: EmbeddingLayer
    ids: Callable[[Any], Any]

    @classmethod
    def of(cls, network: tf_keras.Model, layer: EmbeddingLayer) -> Lookup | None:
        """None if there is no such function: the network is not a functional model, or calls the layer twice."""
        if isinstance(network, AdaptedModel):
            ids = network.ids_of(layer)
            return None if ids is None else cls(layer, ids)
        own = any(each is layer for each in network.layers)  # not in a nested model
        if not own or not keras.is_functional(network) or len(layer.inbound_nodes) != 1:
            return None
        names = [tensor.name for tensor in network.inputs]
        model = tf_keras.Model(network.inputs, layer.input)

        def of_features(features: Any) -> Any:
            by_name = isinstance(features, dict)
            return model([features[name] for name in names] if by_name else tf.nest.flatten(features))

        return cls(layer, of_features)

    def check(self, num_batches: int) -> None:
        """Drops prefetched rows after a failed trace.

        Raises:
          ConfigError: the layer was not called exactly once for each prefetched batch.
        """
        if num_batches == 0:
            self.layer.drop_ahead()
        elif self.layer.num_ahead != num_batches:
            message = f"requires that each step calls {self.layer.name} exactly once; set it to false"
            raise ConfigError([Problem("trainer.prefetch_rows", message)])

    def fetch_ahead(self, features: Any) -> None:
        """Prefetches the rows of a batch for a later call of the network."""
        self.layer.fetch_ahead(self.ids(features))


def decide_deduplication(network: tf_keras.Model, features: Any) -> list[Deduplication]:
    """Decides `deduplicate='auto'` by a batch of features, for layers with ids that are a function of the features."""
    decisions = []
    for layer in embedding_layers(network):
        lookup = Lookup.of(network, layer) if layer.has_undecided else None
        for undecided in layer.undecided(lookup.ids(features)) if lookup is not None else ():
            num_ids = int(tf.size(undecided.positions))
            distinct = int(tf.size(tf.unique(undecided.positions)[0])) / max(num_ids, 1)
            undecided.decide(distinct < DISTINCT_TO_PAY)
            decisions.append(Deduplication(undecided.name, distinct < DISTINCT_TO_PAY, round(distinct, 3)))
    return decisions


def described(network: tf_keras.Model, features: Mapping[str, Feature]) -> dict[str, dict[str, Any]]:
    """By embedding table, which ids its rows belong to.

    Args:
      features: whose values psrun replaces by ids.

    Returns:
      For each table, as JSON has it:
      - `num_ids`, None if it is unknown which ids rows belong to: the call of a class of the user may change ids;
        and `oov_row`: whether all other ids share a row behind these.
      - `column_bits`, b: the row of id i among n rows is (i mod 2^b) n / 2^b + i / 2^b, each term rounded down. Rows
        that belong to no id have the greatest numbers i.
      - `features`: those that are looked up in it, as far as known. If psrun replaces their values by ids, with
        `num_buckets` and `hash`, or with the file `vocabulary`: the value in line i, from 1 on, has the id i, and all
        others have the id 0.
    """
    found: dict[str, dict[str, Any]] = {}
    for layer in keras.layers_within(network):
        if isinstance(layer, EmbeddingCollection):
            for stack in layer.stacks:
                for table, order in zip(stack.tables, stack.orders):
                    rules = {name: _rule(name, features.get(name)) for name in table.features}
                    num_ids = table.num_ids if type(layer) is EmbeddingCollection else None
                    found[table.name] = _ids(num_ids, layer.oov == "row", order.column_bits, rules)
        elif isinstance(layer, Embedding | tf_keras.layers.Embedding):
            name = name_of(layer.embeddings).removesuffix(f"/{EMBEDDINGS}")
            rules = {name: _rule(name, features.get(name)) for name in _looked_up(network, layer)}
            has_order = isinstance(layer, Embedding)
            column_bits = layer.order.column_bits if has_order else 0
            is_known = type(layer) in (Embedding, tf_keras.layers.Embedding)
            num_ids = layer.input_dim if is_known else None
            found[name] = _ids(num_ids, has_order and layer.oov == "row", column_bits, rules)
    for name in table_names(network):  # those of another library
        if name.endswith(f"/{EMBEDDINGS}"):
            found.setdefault(name.removesuffix(f"/{EMBEDDINGS}"), _ids(None, False, 0, {}))
    return found


def _ids(num_ids: int | None, oov_row: bool, column_bits: int, features: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_ids": num_ids, "oov_row": oov_row, "column_bits": column_bits, "features": features}


def _looked_up(network: tf_keras.Model, layer: tf_keras.layers.Layer) -> list[str]:
    """The inputs of a functional model on which it calls a layer."""
    inputs = network.input_names if keras.is_functional(network) else []
    names = [tensor.name for node in layer.inbound_nodes for tensor in tf.nest.flatten(node.input_tensors)]
    return [each for each in inputs if each in names]


def _rule(name: str, feature: Feature | None) -> dict[str, Any]:
    if feature is None:
        return {}
    rule = {"dtype": feature.dtype.name}
    if feature.vocabulary is not None:
        return {**rule, "vocabulary": _vocabulary_file(name)}
    hashing = IntegerHashing.FUNCTION if feature.dtype.is_integer else "farmhash64"
    return {**rule, "num_buckets": feature.num_buckets, "hash": hashing}


def _vocabulary_file(feature: str) -> str:
    return f"{files.file_name(feature)}.jsonl"


def vocabularies(features: Mapping[str, Feature]) -> dict[str, Iterable[Any]]:
    """The values of each vocabulary by the name of its file, as `described` has it."""
    return {_vocabulary_file(name): each.listed() for name, each in features.items() if each.vocabulary is not None}


def stacks_of(network: tf_keras.Model) -> list[Stack]:
    """The stacks of several tables in a network."""
    return [stack for layer in collections(network) for stack in layer.stacks if stack.layout is not None]


def tables_in(network: tf_keras.Model) -> set[str]:
    """The names of the variables that the tables in stacks would be alone."""
    return {f"{table.name}/{EMBEDDINGS}" for stack in stacks_of(network) for table in stack.tables}


def collections(network: tf_keras.Model) -> list[EmbeddingCollection]:
    """The embedding collections in a network."""
    return [layer for layer in embedding_layers(network) if isinstance(layer, EmbeddingCollection)]


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
    stacks = stacks_of(network)
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
    patterns = keras.names_without_weight_decay(keras.of_tables(optimizer))
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


def outside_id_in(error: str, network: tf_keras.Model, features: Mapping[str, Feature]) -> str | None:
    """The layer, its features and the id, in the text of TensorFlow's error; None for other errors.

    Embedding layers of psrun report the id themselves.
    """
    found = outside_lookup(error)
    if found is None:
        return None
    node, number = found
    layer = _layer_in_path(node, network)
    if layer is None:
        return None
    names = _features_of(layer, features)
    of_features = f" (feature {', '.join(names)})" if names else ""
    num_rows = getattr(layer, "input_dim", None)
    size = "" if num_rows is None else f" of {num_rows:,} rows (ids from 0 to {num_rows - 1:,})"
    shown = "an id" if number is None else f"the id {number}"
    return f"the layer {layer.name}{of_features} got {shown} outside of its table{size}"


@contextlib.contextmanager
def naming_outside_ids(network: tf_keras.Model, features: Mapping[str, Feature]) -> Iterator[None]:
    """Raises DataError for an id outside of a table of the network, in this process."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        message = outside_id_in(str(error), network, features)
        if message is None:
            raise
        raise DataError(message) from error


def _layer_in_path(node: str, network: tf_keras.Model) -> Any:
    """The innermost layer in the path of a node; None if the path has none."""
    known = network.own_layers() if isinstance(network, AdaptedModel) else keras.layers_within(network)
    layers = {layer.name: layer for layer in known}
    for scope in reversed(node.split("/")):
        for name in (scope, re.sub(r"_\d+$", "", scope)):  # a layer that is traced again has a number in its scope
            if name in layers:
                return layers[name]
    return None


def _features_of(layer: Any, features: Mapping[str, Feature]) -> list[str]:
    """The features that a layer of a functional model is called on; else the only feature of integers."""
    nodes = getattr(layer, "inbound_nodes", ())
    called_on = [tensor for node in nodes for tensor in getattr(node, "keras_inputs", ())]
    sources = {source.name for tensor in called_on for source in tf_keras.utils.get_source_inputs(tensor)}
    named = sorted(sources & {*features})
    if named:
        return named
    integers = [name for name, feature in features.items() if feature.dtype.is_integer]
    return integers if len(integers) == 1 else []
