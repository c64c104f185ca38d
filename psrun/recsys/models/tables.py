"""Assigns features with ids to tables: one per feature, or one that several features share."""

from __future__ import annotations

import difflib
import filecmp
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource, Feature
from psrun.layers import EmbeddingCollection, Table
from psrun.models.model import ArgumentError, SideBySide

_KEY = "shared_tables"
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")  # valid names of variables in TensorFlow


def make_tables(
    source: DataSource,
    num_ids: Mapping[str, int],
    *,
    embedding_dim: int | Mapping[str, int],
    shared_tables: Mapping[str, Sequence[str]] | None = None,
) -> list[Table]:
    """The tables of all features with ids, in the order of the features.

    Features share a table if the data names the same one for them (`Feature.table`). The name of a feature without
    such a name is its own table.

    Args:
      num_ids: as from `prepared`.
      embedding_dim: of all features; or by name of the feature, and 'default' for the others.
      shared_tables: two or more features by the name of their table; None for none.

    Raises:
      ArgumentError: an argument names a feature without ids; a width is missing or below 1; features that share a table
        differ in their values or widths, or are in two tables; the name of a table is invalid.
    """
    dims = _dims(embedding_dim, num_ids)
    shared = _listed(shared_tables)
    declared = _declared(source.features, num_ids)
    problems = [*_of_names(shared, num_ids, source.features), *_of_both(shared, declared, source.features, num_ids)]
    shared |= declared
    if not problems:
        problems += _of_pairs(shared, source.features, dims)
    if problems:
        raise ArgumentError(*problems)
    name_of = {feature: name for name, features in shared.items() for feature in features}
    by_name: dict[str, list[str]] = {}
    for feature in num_ids:
        by_name.setdefault(name_of.get(feature, feature), []).append(feature)
    return [Table(name, tuple(each), num_ids[each[0]], dims[each[0]]) for name, each in by_name.items()]


def rows(
    tables: Iterable[Table],
    tensors: Mapping[str, tf.Tensor],
    features: Mapping[str, Feature],
    *,
    suffix: str,
    sequences: Iterable[str] = (),
    **options: Any,
) -> dict[str, tf.Tensor]:
    """The rows of each feature's ids: of the shape of these and, as the last axis, the table's `dim`.

    Lists are pooled by the combiners and weights of the features: (batch, dim).

    Args:
      tensors: ids, (batch, *shape), and weights of ids, by feature.
      suffix: appended to the names of the tables.
      sequences: lists that are not pooled: (batch, longest, dim), with a mask.
      options: of `EmbeddingCollection`.
    """
    ids = {name: tensors[name] for table in tables for name in table.features}
    pooled = [name for name in ids if name not in sequences]
    layer = _collection(tables, suffix, {**options, "combiner": _combiners(features, pooled)})
    weights = _weights(features, pooled, tensors)
    return layer(ids, weights=weights) if weights else layer(ids)


def side_by_side(
    tables: Sequence[Table],
    tensors: Mapping[str, tf.Tensor],
    features: Mapping[str, Feature],
    order: Iterable[str],
    **options: Any,
) -> tf.Tensor:
    """As `rows`, of all features as one vector an example: (batch, sum of sizes), features in `order`."""
    if _in_one_tensor(tables, order):
        return tf_keras.layers.Flatten()(rows(tables, tensors, features, concatenate=True, **options))
    by_feature = rows(tables, tensors, features, **options)
    return SideBySide()([by_feature[name] for name in order])


def vectors(
    tables: Sequence[Table],
    tensors: Mapping[str, tf.Tensor],
    features: Mapping[str, Feature],
    order: Sequence[str],
    **options: Any,
) -> tf.Tensor:
    """One vector a feature, the sum of the rows of its ids: (batch, features, dim), features in `order`.

    Lists are pooled by their combiners.
    """
    single = all(features[name].is_list or tensors[name].shape[1:].num_elements() == 1 for name in order)
    if single and _in_one_tensor(tables, order):
        return rows(tables, tensors, features, concatenate=True, **options)
    by_feature = rows(tables, tensors, features, **options)
    add = {"axis": 1, "keepdims": True}
    summed = [
        tf_keras.layers.Reshape((1, by_feature[name].shape[-1]))(by_feature[name])
        if features[name].is_list
        else tf_keras.layers.Lambda(tf.reduce_sum, arguments=add)(by_feature[name])
        for name in order
    ]
    return summed[0] if len(summed) == 1 else tf_keras.layers.Concatenate(axis=1)(summed)


def _collection(tables: Iterable[Table], suffix: str, options: Mapping[str, Any]) -> EmbeddingCollection:
    suffixed = [replace(table, name=f"{table.name}_{suffix}") for table in tables]
    return EmbeddingCollection(suffixed, name=f"tables_{suffix}", **options)


def _in_one_tensor(tables: Sequence[Table], order: Iterable[str]) -> bool:
    """Whether a collection can return the rows of all features as one tensor, in this order."""
    features = [name for table in tables for name in table.features]
    return features == list(order) and len({table.dim for table in tables}) == 1


def _dims(embedding_dim: int | Mapping[str, int], num_ids: Mapping[str, int]) -> dict[str, int]:
    dims = {"default": embedding_dim} if isinstance(embedding_dim, int) else dict(embedding_dim)
    widths = {name: dims.get(name, dims.get("default")) for name in num_ids}
    unknown = [f"names {name!r}, which has no ids" for name in dims if name not in num_ids and name != "default"]
    bad = [f"gives {name} the width {each}" for name, each in widths.items() if not isinstance(each, int) or each < 1]
    for problem in [*unknown, *bad]:
        raise ArgumentError(("embedding_dim", f"{problem}; features with ids are {', '.join(num_ids)}"))
    return {name: int(width) for name, width in widths.items() if width is not None}


def _listed(shared_tables: Any) -> dict[str, list[str]]:
    requirement = "must map table names to features, as in {item: [clicked, bought]}"
    if not isinstance(shared_tables, Mapping | None):
        raise ArgumentError((_KEY, f"is {shared_tables!r}, {requirement}"))
    shared = dict(shared_tables or {})
    for name, features in shared.items():
        if not isinstance(features, list | tuple) or not all(isinstance(each, str) for each in features):
            raise ArgumentError((f"{_KEY}.{name}", f"is {features!r}; {_KEY} {requirement}"))
    return {str(name): list(features) for name, features in shared.items()}


def _declared(features: Mapping[str, Feature], num_ids: Mapping[str, int]) -> dict[str, list[str]]:
    """The tables that the data names, with their features."""
    table_names = {feature.table for feature in features.values()}
    tables: dict[str, list[str]] = {}
    for name in num_ids:
        if table := features[name].table or (name if name in table_names else None):
            tables.setdefault(table, []).append(name)
    return tables


def _of_both(
    shared: Mapping[str, Sequence[str]],
    declared: Mapping[str, Sequence[str]],
    known: Mapping[str, Feature],
    num_ids: Mapping[str, int],
) -> Iterable[tuple[str, str]]:
    """Tables that the data and the model name, and those of features without ids."""
    listed = {name: table for table, names in shared.items() for name in names}
    for name, feature in known.items():
        if feature.table is not None and name not in num_ids:
            message = f"is {feature.table!r}, but {name} has no ids; set num_buckets or vocabulary"
            yield f"features.{name}.table", message
    for table, names in declared.items():
        if table in num_ids and table not in names:
            message = f"is {table!r}, but the feature {table} has the table {known[table].table!r}; use one name"
            yield f"features.{names[0]}.table", message
        for name in names:
            if table in shared or name in listed:
                which = table if table in shared else listed[name]
                yield f"features.{name}.table", f"contradicts {_KEY}.{which}; remove one of them"


def _of_names(
    shared: Mapping[str, Sequence[str]], num_ids: Mapping[str, int], known: Mapping[str, Feature]
) -> Iterable[tuple[str, str]]:
    held_by: dict[str, str] = {}
    for table, features in shared.items():
        key = f"{_KEY}.{table}"
        if not _NAME.fullmatch(table):
            yield key, "is not a valid variable name; use letters, digits and _ . -"
        if table in num_ids and table not in features:
            yield key, f"is also the name of a feature outside the table; rename the table, or add {table}"
        if len(features) < 2:
            yield key, f"is {list(features)}, must list at least two features; add one, or remove the table"
        for name in features:
            if name in held_by:
                twice = "twice" if held_by[name] == table else f"which is in {held_by[name]} already"
                yield key, f"lists {name}, {twice}; a feature has one table"
            elif name in known and name not in num_ids:
                yield key, f"{name} has no ids to look up; features with ids are {', '.join(num_ids)}"
            elif name not in known:
                near = difflib.get_close_matches(name, num_ids, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Features with ids: {', '.join(num_ids)}."
                yield key, f"the data has no feature {name!r}. {hint}"
            held_by.setdefault(name, table)


def _of_pairs(
    shared: Mapping[str, Sequence[str]], known: Mapping[str, Feature], dims: Mapping[str, int]
) -> Iterable[tuple[str, str]]:
    """Features that cannot share a table, because an id must stand for the same value in all of them."""
    for table, (first, *others) in shared.items():
        for other in others:
            difference = _difference(known[first], known[other])
            if not difference and dims[first] != dims[other]:
                difference = f"the rows of {dims[first]} and of {dims[other]} numbers that embedding_dim gives them"
            if difference:
                declared = [name for name in (other, first) if known[name].table is not None]
                key = f"features.{declared[0]}.table" if declared else f"{_KEY}.{table}"
                yield key, f"{first} and {other} cannot share a table: they have {difference}"


def _difference(one: Feature, other: Feature) -> str | None:
    """The reason why ids of two features stand for different values; None if they agree."""
    if one.dtype != other.dtype:
        return f"values of type {one.dtype.name} and {other.dtype.name}"
    ours = one.vocabulary
    theirs = other.vocabulary
    if isinstance(ours, Path) and isinstance(theirs, Path):
        if ours == theirs or filecmp.cmp(ours, theirs, shallow=False):
            return None
        return f"{_ids(one)} and {_ids(other)}, with different values or another order"
    if _ids(one) != _ids(other):
        return f"{_ids(one)} and {_ids(other)}"
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and ours != theirs:
        place = next(place for place, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1])
        return f"vocabularies in which value {place + 1} is {ours[place]!r} and {theirs[place]!r}"
    return None


def _ids(feature: Feature) -> str:
    if feature.vocabulary is None:
        return f"num_buckets {feature.num_buckets}"
    if isinstance(feature.vocabulary, Path):
        return f"the vocabulary in {feature.vocabulary}"
    return f"a vocabulary of {len(feature.vocabulary)} values"


# -- lists of ids: how their rows are pooled, and by which weights


def of_weights(features: Mapping[str, Feature]) -> set[str]:
    """The features that are only the weights of others."""
    return {feature.weights for feature in features.values() if feature.weights is not None}


def _combiners(features: Mapping[str, Feature], num_ids: Iterable[str]) -> dict[str, str | None]:
    return {name: features[name].combiner for name in num_ids if features[name].is_list}


def _weights(
    features: Mapping[str, Feature], num_ids: Iterable[str], tensors: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    return {name: tensors[weight_name] for name in num_ids if (weight_name := features[name].weights) is not None}


def check_lists(source: DataSource, num_ids: Iterable[str], model: str, *, sequences: Iterable[str] = ()) -> None:
    """Checks that a model can pool the lists of the data, but for `sequences`.

    Raises:
      ArgumentError: a list has no combiner or no ids, or its rows are pooled by 'max' and have weights.
    """
    problems = []
    only_weights = of_weights(source.features)
    with_ids = set(num_ids)
    for name, feature in source.features.items():
        if not feature.is_list or name in only_weights or name in sequences:
            continue
        if name not in with_ids:
            message = f"{model} requires ids in lists, but {name} has none; set its vocabulary or num_buckets"
            problems.append(("", f"{message}, or remove it from the features"))
        elif feature.combiner is None:
            message = f"{model} pools lists, but {name} has no combiner; choose sum, mean, sqrtn or max"
            problems.append(("", message))
        elif feature.combiner == "max" and feature.weights is not None:
            message = f"{name} has the combiner max, which takes no weights; choose sum, mean or sqrtn"
            problems.append(("", f"{message}, or remove its weights"))
    if problems:
        raise ArgumentError(*problems)


def check_sequence(source: DataSource, num_ids: Mapping[str, int], *, history: str, **single: str) -> None:
    """Raises ArgumentError if `history` is no list of ids, or the other feature, by its argument, is no single id."""
    problems = []
    for argument, name in (("history", history), *single.items()):
        if name not in num_ids:
            message = f"{name!r} is not a feature with ids; these are {', '.join(num_ids) or 'missing in the data'}"
            problems.append((argument, message))
    if not problems and not source.features[history].is_list:
        message = f"{history} has one value per example; set data.features.{history}.max_values to make it a list"
        problems.append(("history", message))
    for argument, name in single.items():
        if not problems and source.features[name].shape not in ((), (1,)):
            kind = "is a list" if source.features[name].is_list else f"has the shape {source.features[name].shape}"
            problems.append((argument, f"{name} {kind}; the {argument} is one value per example"))
    if problems:
        raise ArgumentError(*problems)


def shared_by(
    source: DataSource, shared_tables: Mapping[str, Sequence[str]] | None, history: str, target: str
) -> Mapping[str, Sequence[str]] | None:
    """`shared_tables`, and a table of history and target unless somebody named one."""
    listed = {name for names in dict(shared_tables or {}).values() for name in names}
    if {history, target} & listed or source.features[history].table or source.features[target].table:
        return shared_tables
    return {**(shared_tables or {}), target: [history, target]}
