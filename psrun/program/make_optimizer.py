"""Creates the configured optimizer, and refuses what would give other numbers than Keras alone.

The same holds for the optimizers that a model brings for its own `train_step`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.cluster.placement import Placed
from psrun.config import rules, targets
from psrun.config.rules import WITHOUT_AVERAGES
from psrun.config.run_config import RunConfig
from psrun.config.targets import Target
from psrun.errors import ConfigError, Problem
from psrun.program import embeddings, whole_variables
from psrun.tf_internals import keras
from psrun.tf_internals.keras import TABLE_OPTIMIZER
from psrun.tf_internals.names import CLIPS

# Without a function the same optimizer takes another second step: a test compares them.
_COUNTS_TRACES = (
    "of tf-keras counts steps in Python when a step is traced, so that its numbers depend on how often that is and on "
    "the number of variables; use Adam"
)
_RATE_TO_TRY = 0.1  # the configured one may be so small that rounding hides a difference

# Of tf-keras 2.21, found by the comparison of all of its optimizers in the tests.
_BY_ALL_ROWS = (tf_keras.optimizers.Adafactor,)
_KNOWN = ("tf_keras", "psrun")

_ROWS = 4
_DIM = 3
_IDS = ((0, 3, 3, 1), (2, 3, 2, 2))  # of the rows of a sparse gradient, by step
_TOLERANCE = 1e-3  # relative to the largest change


def make_optimizer(run: RunConfig, network: tf_keras.Model) -> Any:
    """The configured optimizer of a network; with one for tables, both in one.

    Raises:
      ConfigError: one is none of tf-keras, or a legacy one, or cannot be one of two; or its schedule is one of Keras 3;
        or the network has no tables for it, which may be known only when the optimizer is built; or as `prepare`.
    """
    made = [_make_one(target, run) for target in run.optimizers]
    if run.table_optimizer is None:
        return made[0]
    problems = [problem for target, part in zip(run.optimizers, made) for problem in _not_of_two(target, part)]
    if problems:
        raise ConfigError(problems)
    dense, tables = made
    if network.built:
        _trained_tables(network)
    optimizer = keras.CompositeOptimizer(dense, tables, lambda variables: _trained_tables(network))
    prepare(optimizer, run, "optimizer")
    return optimizer


def _trained_tables(network: tf_keras.Model) -> list[Any]:
    """The tables of a network with variables; raises ConfigError if it has none."""
    tables = embeddings.tables_of(network)
    if not tables:
        message = "has nothing to update: the model has no layer such as Embedding; set table_optimizer=none"
        raise ConfigError([Problem(TABLE_OPTIMIZER, message)])
    return tables


def _make_one(wanted: Target, run: RunConfig) -> Any:
    """The optimizer of one key; raises ConfigError as `make_optimizer`."""
    target = targets.with_called(wanted, "learning_rate")
    _check_schedule(target)
    optimizer = targets.called(target)
    if not keras.is_optimizer(optimizer):
        message = f"{target.name} returned {optimizer!r}, not an optimizer of tf_keras.optimizers"
        if _is_of_keras3(optimizer):
            kind = type(optimizer).__name__
            message = (
                f"{target.name} returned {kind} of Keras 3, which loses updates on parameter servers; return an "
                "optimizer of tf_keras.optimizers"
            )
        raise ConfigError([Problem(f"{target.key}._target_", message)])
    _refuse_legacy(optimizer, f"{target.key}._target_", f"{target.name} returned")
    prepare(optimizer, run, target.key)
    return optimizer


def _not_of_two(target: Target, optimizer: Any) -> Iterator[Problem]:
    """Why the optimizer of a key cannot update some of the variables, beside another one."""
    kind = type(optimizer).__name__
    if optimizer is not keras.unscaled(optimizer):
        message = f"returned {kind}, which scales the loss for all variables; return the optimizer within it"
        yield Problem(f"{target.key}._target_", message)
        return
    if methods := keras.own_methods_of_all(optimizer):
        message = f"{kind} overrides {', '.join(methods)}, for the gradients of all variables"
        yield Problem(f"{target.key}._target_", f"{message}; set table_optimizer=none, or override update_step")
    if target.key == TABLE_OPTIMIZER:
        yield from rules.clips_of_tables({name: getattr(optimizer, name) for name in CLIPS})


def _is_of_keras3(value: Any) -> bool:
    """Whether the class of a value is one of Keras 3 or derived from one, without an import of Keras 3."""
    return any(each.__module__.startswith("keras.") for each in type(value).__mro__)


def _check_schedule(target: Target) -> None:
    """Raises ConfigError for a learning rate that tf-keras does not take for a schedule."""
    rate = target.options.get("learning_rate")
    if _is_of_keras3(rate):
        message = (
            f"{type(rate).__name__} is a schedule of Keras 3; use a subclass of "
            "tf_keras.optimizers.schedules.LearningRateSchedule"
        )
        raise ConfigError([Problem(f"{target.key}.learning_rate", message)])


def _refuse_legacy(optimizer: Any, key: str, owner: str) -> None:
    """Raises ConfigError at `key` for a legacy optimizer; its message begins with `owner`."""
    kind = keras.legacy_kind(optimizer)
    if kind is None:
        return
    name = type(keras.unscaled(optimizer)).__name__
    raise ConfigError([Problem(key, f"{owner} {name}, {rules.unsupported_legacy(kind)}")])


def prepare(optimizer: Any, run: RunConfig, key: str) -> None:
    """Makes an optimizer treat shards and tables as the variables that they are parts of.

    Args:
      key: of the optimizer, or of the model that has it.

    Raises:
      ConfigError: it is a legacy one, has options that psrun does not support, or has steps that depend on how often
        they are traced.
    """
    _refuse_legacy(optimizer, key, "has")
    inner = keras.unscaled(optimizer)
    kind = type(inner).__name__
    if getattr(inner, "use_ema", False):
        raise ConfigError([Problem(key, f"{kind} has use_ema={inner.use_ema}, {WITHOUT_AVERAGES}")])
    if isinstance(inner, tf_keras.optimizers.Nadam):
        raise ConfigError([Problem(key, f"{kind} {_COUNTS_TRACES}")])
    keras.update_without_momentum(optimizer)
    keras.replace_clipnorm(optimizer, whole_variables.clipped)
    keras.replace_names_without_weight_decay(optimizer, whole_variables.name_of_whole)


def others_of(network: tf_keras.Model) -> list[Any]:
    """The optimizers that a model has, without the one that psrun compiles it with."""
    return [each for each in keras.optimizers_within(network) if each is not getattr(network, "optimizer", None)]


def check_steps(run: RunConfig, network: tf_keras.Model, placed: Iterable[Placed]) -> list[str]:
    """Checks that optimizers step by row where variables are cut into shards, and where tables are stored together.

    Returns:
      Warnings of what could not be checked.

    Raises:
      ConfigError: an optimizer computes the step of a row from other rows, too.
    """
    stacked = embeddings.tables_in(network)
    all_cut = [name for name in whole_variables.shapes_of_shards(placed) if name not in stacked]
    if not all_cut and not stacked:
        return []
    tables = embeddings.table_names(network)
    problems: list[Problem] = []
    warnings: list[str] = []
    for trial in _to_try(run, network):
        name = type(keras.unscaled(trial.optimizer)).__name__
        cut = [each for each in all_cut if trial.of_tables in (None, each in tables)]
        together = [] if trial.of_tables is False else sorted(stacked)
        if not cut and not together:
            continue
        try:
            if _steps_by_row(trial.optimizer, trial.make):
                continue
        except Exception as error:  # of any kind: the optimizer may know only the variables of its model
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            text = f"{name} could not be tried on other variables ({reason}): make sure that it computes the step of a "
            warnings.append(f"{text}row from this row alone, since variables are cut or stored together")
            continue
        other = f"{name} computes the step of a row from all rows of its variable"
        if cut:
            kind = run.partitioner.kind
            advice = "set partitioner=none, or choose another optimizer"
            problems.append(Problem("partitioner", f"is {kind}, which cuts {cut[0]}, but {other}; {advice}"))
        if together:
            held = f"which holds several tables ({', '.join(together)})"
            problems.append(Problem(trial.key, f"{other}, {held}; use stack=false, or choose another optimizer"))
    if problems:
        raise ConfigError(problems)
    return warnings


@dataclass(frozen=True)
class _Trial:
    """An optimizer to try.

    Attributes:
      make: makes one like it.
      key: of the optimizer in the configuration.
      of_tables: whether it updates tables only, or only other variables; None: all of them.
    """

    optimizer: Any
    make: Callable[[], Any]
    key: str = "optimizer"
    of_tables: bool | None = None


def _to_try(run: RunConfig, network: tf_keras.Model) -> Iterator[_Trial]:
    for target, part in zip(run.optimizers, keras.parts_of(network.optimizer)):
        if "learning_rate" in target.options:
            target = replace(target, options={**target.options, "learning_rate": _RATE_TO_TRY})
        of_tables = None if run.table_optimizer is None else target.key == TABLE_OPTIMIZER
        yield _Trial(part, functools.partial(_make_one, target, run), target.key, of_tables)
    for optimizer in others_of(network):
        yield _Trial(optimizer, functools.partial(like, optimizer, run))


def note_of_two(run: RunConfig, network: tf_keras.Model) -> list[str]:
    """What each of two optimizers updates; empty with one."""
    if run.table_optimizer is None:
        return []
    tables = embeddings.table_names(network)
    dense, other = (type(part).__name__ for part in keras.parts_of(network.optimizer))
    return [f"{other} updates {', '.join(tables)}; {dense} updates all other variables"]


def like(optimizer: Any, run: RunConfig) -> Any:
    """A new optimizer with the options of another; raises what its `get_config` and `from_config` do."""
    other = type(optimizer).from_config(optimizer.get_config())
    prepare(other, run, "model")
    return other


# -- whether the step of a row depends on this row and its gradient alone


def _steps_by_row(optimizer: Any, make: Callable[[], Any]) -> bool:
    """Known for the optimizers of tf-keras and of psrun; tried for others."""
    inner = keras.unscaled(optimizer)
    if type(inner).__module__.partition(".")[0] in _KNOWN:
        return not isinstance(inner, _BY_ALL_ROWS)
    return equal_in_shards(make)


def equal_in_shards(make: Callable[[], Any]) -> bool:
    """Whether steps on two small variables, by dense and by sparse gradients, are those on both cut in two shards.

    Random steps are taken for steps by row: there is nothing to compare.

    Args:
      make: returns a new optimizer, the same each time. Its learning rate should not be very small.
    """
    whole = _changes(make(), 1)
    shards = _changes(make(), 2)
    least = _TOLERANCE * np.abs(whole).max()
    if np.abs(whole - shards).max() <= least:
        return True
    return bool(np.abs(whole - _changes(make(), 1)).max() > least)


def _changes(optimizer: Any, num_shards: int) -> np.ndarray:
    """What two steps add to the variables: (2, rows, dim)."""
    start = np.linspace(-1, 1, _ROWS * _DIM, dtype=np.float32).reshape(_ROWS, _DIM)
    cut = [_cut(name, start, num_shards) for name in ("layer/kernel", "table/embeddings")]
    variables = [shard for shards in cut for shard in shards]
    optimizer.build(variables)
    random = np.random.default_rng(0)
    for ids in _IDS:
        kernel = random.normal(size=start.shape).astype(np.float32)
        rows = random.normal(size=(len(ids), _DIM)).astype(np.float32)
        gradients = [*np.split(kernel, num_shards), *_sparse(np.array(ids), rows, num_shards)]
        converted = [each if isinstance(each, tf.IndexedSlices) else tf.constant(each) for each in gradients]
        optimizer.apply_gradients(list(zip(converted, variables)))
    return np.stack([np.concatenate([shard.numpy() for shard in shards]) - start for shards in cut])


def _cut(name: str, value: np.ndarray, num_shards: int) -> Sequence[tf.Variable]:
    """A variable with the names of its shards, if there are several."""
    if num_shards == 1:
        return [tf.Variable(value, name=name)]
    return [tf.Variable(part, name=f"{name}/part_{index}") for index, part in enumerate(np.split(value, num_shards))]


def _sparse(ids: np.ndarray, rows: np.ndarray, num_shards: int) -> list[tf.IndexedSlices]:
    size = _ROWS // num_shards
    shards = []
    for index in range(num_shards):
        own = ids // size == index
        shape = tf.constant([size, _DIM], tf.int64)
        shards.append(tf.IndexedSlices(tf.constant(rows[own]), tf.constant(ids[own] - index * size), shape))
    return shards
