"""Batches: their specs, the lists among their features, and the checks of their values.

Models get lists as RaggedTensors. The data source declares what is right: labels by the task,
features by type, shape and NaN.

Arrays in memory are checked as a whole before the training (`check_arrays`), and a source may check
its examples itself (`DataSource.is_checked`). Other batches, and batches of evaluations, are
checked in the input pipeline, where no step waits for it. A wrong value raises InvalidArgumentError with a
text that `wrong_data_in` finds.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.lists import COMBINERS, length_name
from psrun.data.source import ArraySource, DataSource, Feature, task_of, trains_by_number
from psrun.errors import ConfigError, DataError, Problem
from psrun.layers import lookup
from psrun.layers.lookup import assertion
from psrun.models.model import Model, is_ragged
from psrun.program.adapters import AdaptedModel
from psrun.tf_internals import keras

_LIST_SPECS = (tf.RaggedTensorSpec, tf.SparseTensorSpec)
_MARK = "unexpected data: "
_FOUND = re.compile(rf"assertion failed: \[{_MARK}(.*?)\]((?: \[[^\]]*\])*)")
_SCANNED_ROWS = 8192  # that are looked at together
_FRACTIONS = "; for labels between 0 and 1, set model.loss and model.metrics"
# Takes values, returns whether each is right.
_Check = Callable[[tf.Tensor], tf.Tensor]


def any_number(examples: Any) -> tf.TypeSpec:
    """The spec of a batch for any number of examples."""
    shape = [None, *examples.shape[1:]]
    if isinstance(examples, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, examples.dtype, examples.ragged_rank, examples.row_splits_dtype)
    return tf.TensorSpec(shape, examples.dtype)


def zeros(
    spec: tf.TensorSpec | tf.RaggedTensorSpec, batch_size: int = 1, num_values: int = 1
) -> tf.Tensor | tf.RaggedTensor:
    """Zeros, or empty strings, for a spec with the batch as first axis; lists, and other axes of unknown length, have
    `num_values` values.
    """
    if isinstance(spec, tf.RaggedTensorSpec):
        values = zeros(tf.TensorSpec([None, *spec.shape[2:]], spec.dtype), batch_size * num_values)
        splits = num_values * tf.range(batch_size + 1, dtype=spec.row_splits_dtype)
        return tf.RaggedTensor.from_row_splits(values, splits)
    shape = [batch_size, *(num_values if size is None else size for size in spec.shape[1:])]
    return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)


def spec_of(value: Any) -> tf.TypeSpec:
    """The spec of a value, or the spec that it is: a traced function has specs of its tensors, but no others."""
    return value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)


@contextlib.contextmanager
def checking_inputs(network: tf_keras.Model, features: Any) -> Iterator[None]:
    """Checks the inputs of a network; raises errors of a model that is called within with the names of its inputs.

    Args:
      features: the specs of a batch, as the network gets it.

    Raises:
      ConfigError: an input takes lists and the data has none, or the other way round; or a call failed on lists, or
        because the features lack an input.
    """
    _check_list_inputs(network, features)
    try:
        yield
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        if isinstance(features, Mapping) and (problems := _missing_inputs(network, features)):
            raise ConfigError(problems) from error
        specs = features.items() if isinstance(features, Mapping) else [("its input", features)]
        lists = [name for name, spec in specs if isinstance(spec, tf.RaggedTensorSpec)]
        if not lists:
            raise
        message = f"cannot be called on the features, of which {', '.join(lists)} are lists (RaggedTensor)"
        raise ConfigError([Problem("model", f"{message}: {type(error).__name__}: {error}")]) from error


def _missing_inputs(network: tf_keras.Model, features: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for name in _takes_lists(network):
        if name not in features:
            message = f"has the input {name}, but the features are {', '.join(features)}; give both the same name"
            problems.append(Problem("model", message))
    return problems


def _check_list_inputs(network: tf_keras.Model, features: Any) -> None:
    problems = []
    inputs = _takes_lists(network)
    if not isinstance(features, Mapping):
        flat = tf.nest.flatten(features)
        features = dict(zip(inputs, flat)) if len(flat) == len(inputs) else {}
    for name, takes_lists in inputs.items():
        if name not in features:
            continue
        is_list = isinstance(features[name], tf.RaggedTensorSpec)
        if is_list and not takes_lists:
            message = f"its input {name} takes one value per example, but the data has lists (RaggedTensor)"
            problems.append(Problem("model", f"{message}; use tf_keras.Input((None,), ragged=True), or remove {name}"))
        elif takes_lists and not is_list:
            message = f"its input {name} takes lists (RaggedTensor), but the data has {features[name].shape}"
            problems.append(Problem("model", f"{message}; declare the feature with max_values"))
    if problems:
        raise ConfigError(problems)


def _takes_lists(network: tf_keras.Model) -> Mapping[str, bool]:
    """Whether they take lists, by the names of inputs."""
    if isinstance(network, AdaptedModel):
        return network.lists_by_input()
    return {name: is_ragged(tensor) for name, tensor in keras.declared_inputs(network).items()}


def mean_list_lengths(batch: Any, dataset: Callable[[], tf.data.Dataset]) -> Any:
    """The mean number of values of the lists in a batch, at least 1; 1 for other tensors.

    Args:
      batch: its spec.
      dataset: called if there are lists, for the first batch.
    """
    if not any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(batch)):
        return tf.nest.map_structure(lambda spec: 1, batch)

    def length(value: Any) -> int:
        if not isinstance(value, tf.RaggedTensor):
            return 1
        return max(1, round(float(tf.reduce_mean(tf.cast(value.row_lengths(), tf.float32)))))

    return tf.nest.map_structure(length, next(iter(dataset())))


def ragged_features(features: Any) -> Any:
    """Features with SparseTensors as RaggedTensors; the indices must be in their canonical order."""
    return tf.nest.map_structure(
        lambda value: lookup.ragged(value) if isinstance(value, tf.SparseTensor) else value, features
    )


def check_list_features(features: Mapping[str, Feature], batch: Any) -> None:
    """Checks the lists that a data source declares.

    Args:
      batch: its spec, as the source yields it.

    Raises:
      ConfigError: a list is not a RaggedTensor or SparseTensor, or its options contradict each other.
    """
    specs = batch[0] if isinstance(batch, tuple) and isinstance(batch[0], Mapping) else {}
    problems = [
        Problem("data", f"feature {name} of the data source {message}")
        for name, feature in features.items()
        for message in _wrong_list(name, feature, features, specs.get(name))
    ]
    if problems:
        raise ConfigError(problems)


def note_spec(specs: list[Any], batch: Any) -> None:
    """Appends the spec of a batch, in a function that is being traced."""
    specs.append(tf.nest.map_structure(tf.type_spec_from_value, batch))


@contextlib.contextmanager
def checking_noted_spec(specs: Sequence[Any], check: Callable[[Any], None]) -> Iterator[None]:
    """Checks the first spec that was noted in this context, and so before an error within it."""
    try:
        yield
    finally:
        for spec in specs[:1]:
            check(spec)


def _wrong_list(name: str, feature: Feature, features: Mapping[str, Feature], spec: Any) -> Iterator[str]:
    if not feature.is_list:
        if isinstance(spec, _LIST_SPECS):
            kind = type(spec).__name__.removesuffix("Spec")
            yield f"is a {kind}; declare it as Feature((None,), dtype, max_values=...)"
    else:
        yield from _wrong_list_kind(feature, spec)
        yield from _wrong_list_options(name, feature, features)


def _wrong_list_kind(feature: Feature, spec: Any) -> Iterator[str]:
    if isinstance(spec, _LIST_SPECS):
        nested = isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank != 1
        if nested or spec.shape.rank != 2 or spec.dtype != feature.dtype:
            kind = f"a {type(spec).__name__.removesuffix('Spec')} of {spec.dtype.name} and shape {spec.shape}"
            yield f"is {kind}; a list of {tf.as_dtype(feature.dtype).name} has the shape (batch, None)"
    elif spec is not None:
        yield f"has max_values={feature.max_values}, but is a {type(spec).__name__}; yield a tf.RaggedTensor"


def _wrong_list_options(name: str, feature: Feature, features: Mapping[str, Feature]) -> Iterator[str]:
    if length_name(name) in features:
        yield f"is a list, and {length_name(name)} is the name of its lengths in exports; rename that feature"
    if feature.shape != (None,):
        yield f"has max_values={feature.max_values} and the shape {feature.shape}; the shape of lists is (None,)"
    if feature.combiner is not None and feature.combiner not in COMBINERS:
        yield f"has the combiner {feature.combiner!r}; choose one of {', '.join(COMBINERS)}, or None"
    if feature.weights is not None:
        weights = features.get(feature.weights)
        if weights is None or not weights.is_list or weights.dtype != tf.float32:
            yield f"has the weights {feature.weights!r}; these must be a feature of float32 with max_values"
        if feature.combiner == "max":
            yield "has weights and the combiner 'max', which has no weights; remove one of them"


def wrong_data_in(error: str) -> str | None:
    """What is wrong with the data, in the text of TensorFlow's error; None for other errors."""
    found = _FOUND.search(error)
    if found is None:
        return None
    values = re.findall(r"\[([^\]]*)\]", found[2])
    return found[1].format(*values)


def is_scanned(source: DataSource) -> bool:
    """Whether `check_arrays` sees each training example as it will be trained on."""
    return isinstance(source, ArraySource) and trains_by_number(source) and type(source).read is ArraySource.read


def check_arrays(source: DataSource, checks: BatchChecks) -> None:
    """Checks all training examples of arrays in memory; sources of other kinds are not looked at.

    Raises:
      DataError: a label or a feature is wrong.
    """
    if not is_scanned(source):
        return
    assert isinstance(source, ArraySource)
    numbers = tf.data.Dataset.range(source.num_train_examples).batch(_SCANNED_ROWS)

    def looked_at(number: tf.Tensor, examples: tf.Tensor, batch: Any) -> tf.Tensor:
        checks.checked(batch, Place("training", examples))
        return number

    with data_errors():
        for _ in source.read(numbers.map(lambda examples: (examples[0], examples)), looked_at):
            pass


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Raises what the checks of batches have found as DataError."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        message = wrong_data_in(str(error))
        if message is None:
            raise
        raise DataError(message) from error


def evaluated(
    batches: tf.data.Dataset, batch_size: int, ready: Callable[[tuple[Any, ...], Place], Any], first: Any = 0
) -> tf.data.Dataset:
    """`ready` of evaluation batches, each with the place of its examples.

    Args:
      first: the number of the first batch.
    """

    def numbered(number: tf.Tensor, batch: tuple[Any, ...]) -> Any:
        num_rows = tf.shape(tf.nest.flatten(batch[1])[0], tf.int64)[0]
        return ready(batch, Place("evaluation", number * batch_size + tf.range(num_rows)))

    return batches.enumerate(first).map(numbered).prefetch(2)


def check_spec(source: DataSource, batch: Any) -> None:
    """Checks types and shapes of the features in a batch; `check_list_features` checks the lists.

    A type of the same kind, such as float64 for float32, is right, and integers for floats.

    Args:
      batch: its spec, as the source yields it.

    Raises:
      ConfigError: a feature has another type or shape, or is not in the batch.
    """
    if not isinstance(batch, tuple) or not isinstance(batch[0], Mapping):
        return
    problems = []
    for name, feature in source.features.items():
        spec = batch[0].get(name)
        if feature.is_list or not isinstance(spec, tf.TensorSpec | None):
            continue
        wrong = "is declared, but not in the batches" if spec is None else _wrong_spec(feature, spec)
        if wrong is not None:
            problems.append(Problem("data", f"{type(source).__name__}: the feature {name} {wrong}"))
    if problems:
        raise ConfigError(problems)


def _wrong_spec(feature: Feature, spec: tf.TensorSpec) -> str | None:
    declared = tf.as_dtype(feature.dtype)
    if spec.shape.rank is None:
        example = f"tf.TensorSpec({(None, *feature.shape)}, tf.{spec.dtype.name})"
        return f"has no known shape in the batches: give the dataset one, such as output_signature={example}"
    if not _holds(declared, spec.dtype):
        given = spec.dtype.name
        return f"is {given} in the batches, but declared as {declared.name}: convert it, or declare tf.{given}"
    shape = tf.TensorShape([None, *feature.shape])
    if not spec.shape.is_compatible_with(shape):
        return f"has the shape {shown_shape(spec.shape)} in the batches, but is declared as {shown_shape(shape)}"
    return None


def _holds(declared: tf.DType, given: tf.DType) -> bool:
    """Whether values of a type may be given for the declared one: not fractions for integers, nor text for numbers."""
    if declared == given:
        return True
    if tf.string in (declared, given):
        return False
    return bool(np.can_cast(given.as_numpy_dtype, declared.as_numpy_dtype, "same_kind"))


def shown_shape(shape: tf.TensorShape) -> str:
    """The shape of a batch as in messages: '(batch, 3, ?)'."""
    if shape.rank == 0:
        return "()"
    sizes = ["batch"]
    for size in shape[1:]:
        sizes.append("?" if size is None else str(size))
    return f"({', '.join(sizes)})"


@dataclass(frozen=True)
class Place:
    """Where the rows of a batch are in the data.

    Attributes:
      kind: training or evaluation.
      numbers: int64 (n,), of its examples from 0 on; None if they are unknown.
    """

    kind: str
    numbers: tf.Tensor | None = None

    def of(self, row: tf.Tensor) -> tf.Tensor:
        return row if self.numbers is None else tf.gather(self.numbers, row)

    def __str__(self) -> str:
        """With the number in place of {1}."""
        if self.numbers is None:
            return f"in row {{1}} of a batch ({self.kind})"
        return f"in {self.kind} example {{1}}"


@dataclass(frozen=True)
class _Requirement:
    """What must be true of a batch.

    Attributes:
      is_met: a bool scalar.
      text: the error without it, with {0}, {1}, ... for what is found.
      found: computed only where it is not met.
    """

    is_met: tf.Tensor
    text: str
    found: Callable[[], tuple[tf.Tensor, ...]]

    def refused(self) -> tf.Tensor:
        with tf.control_dependencies(assertion(tf.constant(False), self.text, *self.found())):
            return tf.constant(False)


class BatchChecks:
    """The checks of the batches of one source.

    Args:
      model: decides which labels are right besides the task: its loss may ignore a class, and loss and metrics of its
        own may take fractions as labels.
      has_labels: whether labels are checked: not for rows that are only predicted, and not if they are words.
    """

    def __init__(self, source: DataSource, model: Model, *, has_labels: bool) -> None:
        self._source = source
        self._model = model
        self._has_labels = has_labels
        self._title = type(source).__name__

    def checked(self, batch: tuple[Any, ...], place: Place) -> tuple[Any, ...]:
        """A batch as the source yields it, which is there once its values are checked."""
        features, label, *weight = batch
        checks = [*self._of_features(features, place)]
        if self._has_labels:
            checks += self._of_labels(features, label, weight[0] if weight else None, place)
        with tf.control_dependencies(_all(checks)):
            label = tf.nest.map_structure(tf.identity, label)
        return features, label, *weight

    def _of_features(self, features: Any, place: Place) -> Iterator[_Requirement]:
        """Floats are finite, except where they are nullable; sizes that the spec leaves open are as declared."""
        if not isinstance(features, Mapping):
            return
        columns: dict[str, tf.Tensor] = {}
        for name, feature in self._source.features.items():
            value = features.get(name)
            if isinstance(value, tf.Tensor) and not value.shape[1:].is_fully_defined():
                yield from self._of_shape(name, feature, value)
            if value is None or not value.dtype.is_floating or feature.nullable:
                continue
            if isinstance(value, tf.Tensor):
                columns[name] = lookup.as_matrix(value)
            else:
                values, rows = _values_of_lists(value)
                yield self._required(values, tf.math.is_finite, f"the feature {name} is {{0}} {place}", place, rows)
        for dtype in {each.dtype for each in columns.values()}:
            alike = {name: each for name, each in columns.items() if each.dtype == dtype}
            yield self._of_columns(alike, place)

    def _of_columns(self, columns: Mapping[str, tf.Tensor], place: Place) -> _Requirement:
        """Features of one type together: each operation takes longer to start than to look at the values."""
        matrix = tf.concat(list(columns.values()), 1) if len(columns) > 1 else next(iter(columns.values()))
        is_finite = tf.math.is_finite(matrix)
        text = f"the feature {{2}} is {{0}} {place}; declare Feature(..., nullable=True) if values may be missing"

        def found() -> tuple[tf.Tensor, ...]:
            wrong = tf.where(~is_finite)[0]
            ends = tf.cumsum(tf.cast(tf.stack(_widths(columns.values())), tf.int64))
            name = tf.gather(list(columns), tf.searchsorted(ends, wrong[1:], side="right"))
            return tf.gather_nd(matrix, wrong), place.of(wrong[0]), name

        return _Requirement(tf.reduce_all(is_finite), self._text(text), found)

    def _of_shape(self, name: str, feature: Feature, value: tf.Tensor) -> Iterator[_Requirement]:
        declared = [-1 if size is None else size for size in feature.shape]
        shape = tf.shape(value)[1:]
        is_right = tf.reduce_all((shape == declared) | tf.equal(declared, -1))
        shown = shown_shape(tf.TensorShape([None, *feature.shape]))
        text = f"a batch has the feature {name} with the shape (batch, {{0}}), but it is declared as {shown}"

        def found() -> tuple[tf.Tensor, ...]:
            return (tf.strings.reduce_join(tf.strings.as_string(shape), separator=", "),)

        yield _Requirement(is_right, self._text(text), found)

    def _of_labels(self, features: Any, label: Any, weight: Any, place: Place) -> Iterator[_Requirement]:
        weights = _by_output(weight)
        for output, values in weights.items():
            if isinstance(values, tf.Tensor):
                yield from self._of_weight(output, values, place)
                yield from self._of_size(features, _titled("weights", output), values, place)
        for output, values in _by_output(label).items():
            if not isinstance(values, tf.Tensor | tf.RaggedTensor) or values.dtype == tf.string:
                continue
            yield from self._of_label(output, values, weights.get(output, weights.get("")), place)
            yield from self._of_size(features, _titled("labels", output), values, place)

    def _of_weight(self, output: str, weight: tf.Tensor, place: Place) -> Iterator[_Requirement]:
        name = _titled("the weight", output)
        if weight.dtype == tf.string:
            raise ConfigError([Problem("data", f"{self._title}: {name} is a string; weights are numbers, 0 or more")])
        if not weight.shape.rank:
            return
        # With a loss of their own people use negative ones, such as advantages.
        if weight.dtype.is_floating:
            yield self._required(weight, tf.math.is_finite, f"{name} is {{0}} {place}", place)
        if self._model.loss is None and weight.dtype != tf.bool:
            text = f"{name} is {{0}} {place}, but must be 0 or more"
            yield self._required(weight, lambda values: values >= _as(0, values), text, place)

    def _of_label(self, output: str, values: Any, weight: Any, place: Place) -> Iterator[_Requirement]:
        if values.dtype == tf.bool:
            return
        rule = self._rule(output, values)
        if rule is None:
            return
        is_right, expected = rule
        rows = None
        if isinstance(values, tf.RaggedTensor):
            values, rows = _values_of_lists(values)
        elif isinstance(weight, tf.Tensor) and values.shape.rank:
            is_right = _or_without_weight(is_right, weight, values.shape.rank)
        name = _titled("the label", output)
        yield self._required(values, is_right, f"{name} is {{0}} {place}, but must be {expected}", place, rows)

    def _of_size(self, features: Any, what: str, values: Any, place: Place) -> Iterator[_Requirement]:
        """As many labels or weights as rows: Keras' losses and metrics would repeat a single one."""
        rows = [each for each in tf.nest.flatten(features) if isinstance(each, tf.Tensor)]
        if not rows or isinstance(values, tf.RaggedTensor) or not values.shape.rank or not rows[0].shape.rank:
            return
        if None not in (values.shape[0], rows[0].shape[0]) and values.shape[0] == rows[0].shape[0]:
            return
        count = tf.shape(values)[0]
        expected = tf.shape(rows[0])[0]
        text = f"a batch ({place.kind}) has {{0}} {what} for {{1}} rows of features"
        yield _Requirement(tf.equal(count, expected), self._text(text), lambda: (count, expected))

    def _rule(self, output: str, values: Any) -> tuple[_Check, str] | None:
        """Whether labels are right, and what they must be; None where all are."""
        task = self._task(output)
        if task == "binary":
            takes_fractions = self._model.loss is not None and self._model.metrics is not None
            if takes_fractions:
                return lambda label: (label >= _as(0, label)) & (label <= _as(1, label)), "from 0 to 1 (task=binary)"
            rule = "0 or 1 (task=binary)"
            if values.dtype.is_floating:
                rule += _FRACTIONS
            return lambda label: (label == _as(0, label)) | (label == _as(1, label)), rule
        if task == "multiclass":
            return self._classes(values)
        if not values.dtype.is_floating:
            return None
        return tf.math.is_finite, f"a finite number{f' (task={task})' if task else ''}"

    def _classes(self, values: Any) -> tuple[_Check, str]:
        count = self._source.num_classes
        if values.shape.rank == 2 and values.shape[-1] == count and count > 1:
            return lambda label: (label >= _as(0, label)) & (label <= _as(1, label)), "from 0 to 1 for each class"
        ignored = _ignored_class(self._model.loss)

        def is_class(label: tf.Tensor) -> tf.Tensor:
            wide = label if label.dtype.is_floating else tf.cast(label, tf.int64)
            is_right = (wide >= _as(0, wide)) & (wide <= _as(count - 1, wide))
            if wide.dtype.is_floating:
                is_right &= tf.equal(tf.floor(wide), wide)
            return is_right if ignored is None else is_right | tf.equal(wide, _as(ignored, wide))

        return is_class, f"an integer from 0 to {count - 1} (task=multiclass, num_classes={count})"

    def _task(self, output: str) -> str | None:
        """The task of a label. The source's task holds for several labels only with the usual loss of the task."""
        if not output:
            return task_of(self._source)
        own = getattr(self._source, "label_tasks", {}).get(output)
        return own or (task_of(self._source) if self._model.loss is None else None)

    def _required(
        self, values: tf.Tensor, is_right: _Check, text: str, place: Place, rows: tf.Tensor | None = None
    ) -> _Requirement:
        """The check that all values are right.

        Args:
          text: with {0} for the first wrong value and {1} for its place.
          rows: the row of each value; None: the first axis has the rows.
        """
        are_right = is_right(values)

        def found() -> tuple[tf.Tensor, ...]:
            wrong = tf.where(~are_right)[0]
            row = wrong[0] if rows is None else tf.gather(rows, wrong[0])
            return tf.gather_nd(values, wrong), place.of(row)

        return _Requirement(tf.reduce_all(are_right), self._text(text), found)

    def _text(self, text: str) -> str:
        return f"{_MARK}{self._title}: {text}"


def _all(requirements: Sequence[_Requirement]) -> list[tf.Operation]:
    """The check of all requirements, for `tf.control_dependencies`: one branch, in which each has its own."""
    if not requirements:
        return []
    are_met = functools.reduce(tf.logical_and, [each.is_met for each in requirements])

    def refused() -> tf.Tensor:
        for each in requirements:
            tf.cond(each.is_met, lambda: True, each.refused)
        return tf.constant(False)

    return [tf.cond(are_met, lambda: tf.constant(True), refused).op]


def _widths(columns: Iterable[tf.Tensor]) -> list[Any]:
    """The sizes of the second axes, int64. A known one costs no operation; there can be a thousand columns."""
    widths = []
    for column in columns:
        width = column.shape[1]
        widths.append(tf.shape(column, tf.int64)[1] if width is None else np.int64(width))
    return widths


def _by_output(values: Any) -> Mapping[str, Any]:
    """Labels or weights by the name of their output, or its number; '' where there is one output."""
    if isinstance(values, Mapping):
        return values
    if isinstance(values, list | tuple):
        return {str(number): each for number, each in enumerate(values)}
    return {"": values}


def _titled(what: str, output: str) -> str:
    return f"{what} {output}" if output else what


def _values_of_lists(lists: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
    """The values of a RaggedTensor or a SparseTensor, and the row of each; None if lists are in lists."""
    if isinstance(lists, tf.SparseTensor):
        return lists.values, lists.indices[:, 0]
    return lists.flat_values, lists.value_rowids() if lists.ragged_rank == 1 else None


def _as(number: int, label: tf.Tensor) -> tf.Tensor:
    return tf.cast(number, label.dtype)


def _or_without_weight(is_right: _Check, weight: tf.Tensor, rank: int) -> _Check:
    """As `is_right`; a finite label of an example with the weight 0 is right, too: people mark missing ones so."""

    def checks(label: tf.Tensor) -> tf.Tensor:
        unused = tf.reshape(tf.equal(weight, _as(0, weight)), [-1, *[1] * (rank - 1)])
        if label.dtype.is_floating:
            return is_right(label) | (unused & tf.math.is_finite(label))
        return is_right(label) | unused

    return checks if weight.shape[1:].num_elements() in (None, 1) else is_right


def _ignored_class(loss: Any) -> int | None:
    """The class that a loss of Keras ignores, which may be no class of the data."""
    if not isinstance(loss, tf_keras.losses.Loss):
        return None
    return loss.get_config().get("ignore_class")
