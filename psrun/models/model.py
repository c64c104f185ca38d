"""The return value of model functions, layers that several models share, and the models dense, embedding and cnn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource, Feature
from psrun.errors import ExportError
from psrun.layers.lookup import as_matrix, is_list
from psrun.tf_internals.keras import reserve_layer_names
from psrun.tf_internals.tracing import converted

Preprocessing = Callable[[dict[str, tf.Tensor]], Any]
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, 2**64 divided by the golden ratio


class ArgumentError(ValueError):
    """An argument of a model function is invalid, or does not fit the data.

    Args:
      problems: messages by the argument, or by what is within it, such as 'embedding_dim' or 'shared_tables.item';
        'features.NAME.table' for a feature of the data, '' for the data and the model.
    """

    def __init__(self, *problems: tuple[str, str]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{argument}: {message}" if argument else message for argument, message in problems))


@dataclass(frozen=True)
class Towers:
    """The halves of a network whose score is a product of two vectors.

    Attributes:
      vectors: a network with the inputs of the whole and the outputs `query` and `item`, (batch, dim).
      item_features: those that `item` depends on; `query` depends on the others.
    """

    vectors: tf_keras.Model
    item_features: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A network with its preprocessing, loss and metrics. A model function may also return a plain `tf_keras.Model`.

    Attributes:
      network: from (preprocessed) features by name, or from the only one, to the prediction: probabilities of shape
        (batch, 1) for binary tasks and (batch, num_classes) for multiclass tasks; numbers (batch, 1) for a
        regression.
      preprocessing: from a batch of raw features to the inputs of `network`; runs in the workers' input pipeline.
      loss: as Keras' `compile` takes it, by output if there are several; None for the default of the data's task.
        `model.loss` replaces it.
      metrics: creates new metric objects, a list or lists by output; None for the defaults of the data's task.
        `model.metrics` replaces it.
      from_logits: whether `network` returns logits instead of probabilities; None: as `model.from_logits` or the
        from_logits of the loss.
      unused: features of the data that `network` ignores; a run warns about them.
      has_scores: whether predictions are scores that only rank, trained by the loss of a layer.
      towers: from the inputs of `network` to vectors, (batch, dim), whose products rank items as `network` does; None
        for a model without them.
      notes: what a run and its plan say about the model, a line each.
      warnings: of the data that the model is to learn from, a line each; a run and its plan show them.
    """

    network: tf_keras.Model
    preprocessing: Preprocessing | None = None
    loss: Any = None
    metrics: Callable[[], Any] | None = None
    from_logits: bool | None = None
    unused: Sequence[str] = ()
    has_scores: bool = False
    towers: Towers | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def hashed_integers(self) -> dict[str, str]:
        """The features whose integers psrun's preprocessing hashes to ids, with the hash function."""
        names: Sequence[str] = getattr(self.preprocessing, "hashed_integers", ())
        return dict.fromkeys(names, IntegerHashing.FUNCTION)

    @property
    def ids(self) -> dict[str, Feature]:
        """The features whose values psrun's preprocessing replaces by ids."""
        return getattr(self.preprocessing, "with_ids", {})

    def preprocessed(self, features: dict[str, tf.Tensor]) -> Any:
        """The inputs of `network` for a batch of raw features."""
        return features if self.preprocessing is None else converted(self.preprocessing)(features)


def inputs(features: dict[str, Feature]) -> dict[str, tf_keras.Input]:
    """A Keras input for each feature, (batch, *shape); ragged for lists."""
    reserve_layer_names(features)
    return {
        name: tf_keras.Input(feature.shape, dtype=feature.dtype, name=name, ragged=feature.is_list)
        for name, feature in features.items()
    }


def refuse_lists(source: DataSource, model: str) -> None:
    """Raises ArgumentError if the data has lists, which the model does not accept."""
    names = [name for name, feature in source.features.items() if feature.is_list]
    if names:
        message = f"{model} requires one value per example; the data has lists: {', '.join(names)}"
        raise ArgumentError(("", f"{message}; remove them from the features, or choose another model"))


def prepared(source: DataSource, *, keep_missing: bool = False) -> tuple[Preparation | None, dict[str, int]]:
    """Preprocessing that replaces strings and features with a vocabulary by ids, and scales numbers.

    Args:
      keep_missing: whether missing numbers stay NaN; otherwise they become the mean, which is 0 after scaling.

    Returns:
      The preprocessing (None if it is not needed), and the number of ids of each feature with ids. With a vocabulary,
      id 0 is for values outside of it.
    """
    # A second time in `network_inputs`: the numbers in names of variables depend on it, and so do checkpoints.
    reserve_layer_names(source.features)
    preparation = Preparation(source.features, keep_missing=keep_missing)
    if not preparation.changes_values:
        return None, {}
    return preparation, preparation.num_ids


class Preparation(tf_keras.layers.Layer):
    """Ids in place of words and of integers with a vocabulary or buckets, and scaled numbers.

    Features of one kind are columns of one matrix: the number of operations grows with the kinds, not the features.

    Args:
      features: the raw features by name.
      keep_missing: as in `prepared`.

    Call arguments:
      inputs: a batch of raw features by name.

    Returns:
      The features by name, of the same shapes; int64 ids where `num_ids` has the feature.

    Raises:
      ValueError: a vocabulary is empty or has a value twice.
    """

    def __init__(self, features: Mapping[str, Feature], *, keep_missing: bool = False, **kwargs: Any) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        with_ids = _alike(features, _kind_of_ids)
        # A list, in which Keras finds the tables: an export must hold them.
        self._ids = [_ids_of(list(group.values())) for group in with_ids]
        numbers = _alike(features, lambda feature: _kind_of_number(feature, keep_missing=keep_missing))
        scalings = [_Scaling(list(group.values()), keep_missing, self.compute_dtype) for group in numbers]
        # Not as attributes of their own: Keras would wrap them.
        self._plan = _Plan(
            features=dict(features),
            ids=tuple(map(_Columns, with_ids, self._ids)),
            numbers=tuple(map(_Columns, numbers, scalings)),
        )

    @property
    def changes_values(self) -> bool:
        """Whether any feature is not passed on as it is."""
        return bool(self._plan.ids or self._plan.numbers)

    @property
    def num_ids(self) -> dict[str, int]:
        """The number of ids of each feature with ids, in the order of the features."""
        sizes: dict[str, int] = {}
        for columns in self._plan.ids:
            sizes.update(zip(columns.features, columns.transform.num_ids))
        return {name: sizes[name] for name in self._plan.features if name in sizes}

    @property
    def with_ids(self) -> dict[str, Feature]:
        """The features whose values are replaced by ids."""
        return {name: self._plan.features[name] for name in self.num_ids}

    @property
    def hashed_integers(self) -> tuple[str, ...]:
        """The features whose integers are hashed to ids."""
        names = []
        for name, feature in self._plan.features.items():
            if feature.vocabulary is None and feature.num_buckets is not None and feature.dtype.is_integer:
                names.append(name)
        return tuple(names)

    def call(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        outputs = {}
        for name, feature in self._plan.features.items():
            outputs[name] = tf.cast(inputs[name], feature.dtype)
        for columns in (*self._plan.ids, *self._plan.numbers):
            outputs.update(columns.transformed(outputs))
        return outputs


class _Transform(Protocol):
    """Makes other values of the values of several features, called columns here."""

    def __call__(self, values: tf.Tensor, columns: Any) -> tf.Tensor:
        """The other values, of the same shape.

        Args:
          values: as columns side by side, (n, number of columns), or of one column, of any shape.
          columns: the numbers of the columns: an array, or the number of the only one.
        """
        ...


@dataclass(frozen=True)
class _Columns:
    """Features that are transformed alike, as the columns of one matrix.

    Attributes:
      features: by name; their order gives the numbers of the columns.
    """

    features: Mapping[str, Feature]
    transform: Any

    def transformed(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The features after the transformation, each of the same shape as before."""
        outputs = {}
        in_matrix: dict[str, tf.Tensor] = {}
        numbers = []
        for number, name in enumerate(self.features):
            tensor = tensors[name]
            if is_list(tensor):
                outputs[name] = tensor.with_flat_values(self.transform(tensor.flat_values, number))
            elif len(self.features) == 1 or _width(tensor) is None:
                outputs[name] = self.transform(tensor, number)
            else:
                in_matrix[name] = tensor
                numbers.append(number)
        if in_matrix:
            outputs.update(self._side_by_side(in_matrix, numbers))
        return outputs

    def _side_by_side(self, tensors: Mapping[str, tf.Tensor], numbers: Sequence[int]) -> Iterator[tuple[str, Any]]:
        widths = [_width(tensor) for tensor in tensors.values()]
        flat = [as_matrix(tensor) for tensor in tensors.values()]
        whole = self.transform(tf.concat(flat, 1), np.repeat(numbers, widths))
        for (name, tensor), part in zip(tensors.items(), tf.split(whole, widths, axis=1)):
            if tensor.shape.rank != 2:
                part = tf.ensure_shape(tf.reshape(part, tf.shape(tensor)), tensor.shape)
            yield name, part


@dataclass(frozen=True)
class _Plan:
    """What a `Preparation` does: first the ids, then the numbers."""

    features: Mapping[str, Feature]
    ids: tuple[_Columns, ...]
    numbers: tuple[_Columns, ...]


def _alike(features: Mapping[str, Feature], kind_of: Callable[[Feature], Any]) -> list[dict[str, Feature]]:
    """The features of each kind by name; without features of which the kind is None."""
    groups: dict[Any, dict[str, Feature]] = {}
    for name, feature in features.items():
        kind = kind_of(feature)
        if kind is not None:
            groups.setdefault(kind, {})[name] = feature
    return list(groups.values())


def _width(tensor: tf.Tensor) -> int | None:
    """The number of values of an example; None if it is unknown."""
    return None if tensor.shape.rank is None else tensor.shape[1:].num_elements()


def _kind_of_ids(feature: Feature) -> Any:
    """What features have in common whose ids are found in one step; None of a feature without ids."""
    if isinstance(feature.vocabulary, Path):
        return feature.dtype, feature.vocabulary
    if feature.vocabulary is not None:
        return feature.dtype, "vocabulary"
    if feature.num_buckets is not None:
        return feature.dtype, feature.num_buckets
    return None


def _ids_of(features: Sequence[Feature]) -> Any:
    """The transformation of features of one kind to ids."""
    first = features[0]
    if first.vocabulary is None:
        assert first.num_buckets is not None
        return _ByLayer(_hashing_layer(first.dtype, first.num_buckets), first.num_buckets, len(features))
    is_text = first.dtype == tf.string
    if isinstance(first.vocabulary, Path):
        kind = tf_keras.layers.StringLookup if is_text else tf_keras.layers.IntegerLookup
        lookup = kind(vocabulary=str(first.vocabulary), num_oov_indices=1)
        return _ByLayer(lookup, lookup.vocabulary_size(), len(features))
    vocabularies = []
    for feature in features:
        vocabularies.append(tuple(feature.listed()))
    return _Vocabularies(vocabularies, tf.string if is_text else tf.int64)


def _hashing_layer(dtype: tf.DType, num_buckets: int) -> tf_keras.layers.Layer:
    """The layer that makes ids of values without a vocabulary."""
    if dtype.is_integer:
        return IntegerHashing(num_buckets)
    return tf_keras.layers.Hashing(num_buckets)


@tf_keras.utils.register_keras_serializable(package="psrun")
class IntegerHashing(tf_keras.layers.Layer):
    """Ids for integers: an integer from 0 to num_buckets - 1 is its own id, any other is hashed to one of these ids.

    The hash of x takes the upper 32 bits h of 0x9E3779B97F4A7C15 x modulo 2**64 (multiply-shift; Dietzfelbinger et
    al.: A Reliable Randomized Algorithm for the Closest-Pair Problem, Journal of Algorithms 25, 1997). The id is
    h num_buckets / 2**32, rounded down (Lemire: Fast Random Integer Generation in an Interval, ACM TOMACS 29, 2019).

    Args:
      num_buckets: the number of ids, at most 2**31.

    Call arguments:
      inputs: integers of any shape, or a RaggedTensor.

    Returns:
      int64 of the same shape.
    """

    FUNCTION = "multiply-shift"

    def __init__(self, num_buckets: int, **kwargs: Any) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        self.num_buckets = num_buckets

    def call(self, inputs: Any) -> Any:
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._ids(inputs.flat_values))
        return self._ids(inputs)

    def _ids(self, values: tf.Tensor) -> tf.Tensor:
        # Without a sign, a negative number is greater than all ids.
        numbers = tf.bitcast(tf.cast(values, tf.int64), tf.uint64)
        bits = tf.constant(32, tf.uint64)
        upper = tf.bitwise.right_shift(numbers * tf.constant(_MULTIPLIER, tf.uint64), bits)
        hashed = tf.bitwise.right_shift(upper * self.num_buckets, bits)
        return tf.bitcast(tf.where(numbers < self.num_buckets, numbers, hashed), tf.int64)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_buckets": self.num_buckets}


class _ByLayer(tf.Module):
    """Ids of columns by a layer that makes no difference between them."""

    def __init__(self, layer: tf_keras.layers.Layer, num_ids: int, num_columns: int) -> None:
        super().__init__()
        self.num_ids = (num_ids,) * num_columns
        self._layer = layer

    def __call__(self, values: tf.Tensor, columns: Any) -> tf.Tensor:
        return self._layer(values)


class _Vocabularies(tf.Module):
    """Ids of columns by their vocabularies: 1 for the first value, 2 for the second; 0 for any other value.

    One table numbers the values of all vocabularies from 1 on. Another one has the id of each pair of a column and the
    number of a value. Two look-ups serve any number of columns.

    Args:
      vocabularies: of each column.
      dtype: of the values.
    """

    def __init__(self, vocabularies: Sequence[Sequence[Any]], dtype: tf.DType) -> None:
        super().__init__()
        numbers: dict[Any, int] = {}
        found = []
        num_ids = []
        for values in vocabularies:
            if not values:
                raise ValueError("a vocabulary is empty; list the values of the feature, or use num_buckets")
            if len(set(values)) < len(values):
                twice = [value for value, count in Counter(values).items() if count > 1]
                raise ValueError(f"a vocabulary has the value {twice[0]!r} twice; list each value once")
            num_ids.append(1 + len(values))
            found.append([numbers.setdefault(value, len(numbers) + 1) for value in values])
        self.num_ids = tuple(num_ids)
        self._dtype = dtype
        self._stride = len(numbers) + 1
        pairs = [np.array(each, np.int64) + column * self._stride for column, each in enumerate(found)]
        ids = [np.arange(1, 1 + len(each)) for each in found]
        self._numbers = _table(list(numbers), np.arange(1, 1 + len(numbers)), dtype)
        self._ids = _table(np.concatenate(pairs), np.concatenate(ids), tf.int64)

    def __call__(self, values: tf.Tensor, columns: Any) -> tf.Tensor:
        number = self._numbers.lookup(tf.cast(values, self._dtype))
        # A value that is in no vocabulary has the number 0, and with it no id in any column.
        return self._ids.lookup(number + np.int64(columns) * self._stride)


def _table(keys: Any, values: np.ndarray, key_dtype: tf.DType) -> tf.lookup.StaticHashTable:
    """A table of int64 values, 0 for other keys."""
    with tf.init_scope():
        initializer = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys, key_dtype), tf.constant(values, tf.int64), key_dtype, tf.int64
        )
        return tf.lookup.StaticHashTable(initializer, 0)


def _kind_of_number(feature: Feature, *, keep_missing: bool) -> Any:
    """What features have in common whose numbers are changed in one step; None of a feature that stays as it is."""
    has_ids = _kind_of_ids(feature) is not None
    logarithm = feature.logarithm and not has_ids
    replaced = feature.nullable and not keep_missing
    if not logarithm and not replaced and not _is_scaled(feature):
        return None
    dtype = tf.int64 if has_ids else feature.dtype
    return dtype, logarithm, _is_scaled(feature), replaced


def _is_scaled(feature: Feature) -> bool:
    return (feature.mean, feature.deviation) != (0.0, 1.0)


class _Scaling:
    """Numbers of columns less their means, divided by their deviations; perhaps of logarithms; missing ones replaced.

    Args:
      features: of each column; of one kind.
      keep_missing: as in `prepared`.
      dtype: of scaled numbers.
    """

    def __init__(self, features: Sequence[Feature], keep_missing: bool, dtype: str) -> None:
        kind = features[0]
        self._logarithm = kind.logarithm and _kind_of_ids(kind) is None
        self._is_scaled = _is_scaled(kind)
        self._replaces_missing = kind.nullable and not keep_missing
        self._dtype = dtype
        self._scale = np.array([1 / feature.deviation for feature in features])
        self._offset = np.array([-feature.mean / feature.deviation for feature in features])

    def __call__(self, values: tf.Tensor, columns: Any) -> tf.Tensor:
        if self._logarithm:
            values = tf.math.log1p(tf.nn.relu(values))
        if self._is_scaled:
            scale = tf.constant(self._scale[columns], self._dtype)
            offset = tf.constant(self._offset[columns], self._dtype)
            values = tf.cast(values, self._dtype) * scale + offset
        if self._replaces_missing:
            values = tf.where(tf.math.is_nan(values), 0.0, values)
        return values


def network_inputs(source: DataSource, num_ids: dict[str, int]) -> dict[str, tf_keras.Input]:
    """Keras inputs for the result of `prepared`: int64 ids for the features with ids."""
    features = {
        name: replace(feature, dtype=tf.int64) if name in num_ids else feature
        for name, feature in source.features.items()
    }
    return inputs(features)


@tf_keras.utils.register_keras_serializable(package="psrun")
class DecayedDense(tf_keras.layers.Dense):
    """Keras' Dense whose kernel also gets the gradient of decay / 2 times the sum of its squares.

    A Keras regularizer would add that sum to the loss too, which evaluations would report, and which Keras' own
    evaluation of a distributed model leaves out.

    Args:
      decay: 0 or more.
    """

    def __init__(self, units: int, *, decay: float = 0.0, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.decay = decay

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        kernel = _with_decay(tf.convert_to_tensor(self.kernel), self.decay)
        outputs = tf.nn.bias_add(tf.matmul(inputs, kernel), self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay": self.decay}


def _with_decay(kernel: tf.Tensor, decay: float) -> tf.Tensor:
    """The kernel; `decay` times the kernel is added to its gradient, once over all replicas."""
    share = decay / tf.distribute.get_strategy().num_replicas_in_sync

    @tf.custom_gradient
    def same(kernel: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(kernel), lambda gradient: gradient + share * kernel

    return same(kernel)


def hidden(tensor: tf.Tensor, units: Sequence[int], dropout: float = 0.0, decay: float = 0.0) -> tf.Tensor:
    """A stack of ReLU layers, each followed by dropout if `dropout` is positive; `decay`: see `DecayedDense`."""
    for width in units:
        layer = DecayedDense(width, decay=decay, activation="relu") if decay else tf_keras.layers.Dense(width, "relu")
        tensor = layer(tensor)
        if dropout:
            tensor = tf_keras.layers.Dropout(dropout)(tensor)
    return tensor


def head(tensor: tf.Tensor, source: DataSource) -> tf.Tensor:
    """The last layer for the data's task: one probability, one per class, or a number.

    A number is the mean of the labels plus a multiple of their deviation, if the source knows them: an optimizer with
    steps of one size, such as Adam, would take long to reach labels of another scale.
    """
    if several := getattr(source, "label_tasks", None):
        message = f"the model has one output, but the data has the labels {', '.join(several)}"
        raise ArgumentError(("", f"{message}; choose model=mmoe, a model of your own, or one label"))
    activation = {"binary": "sigmoid", "multiclass": "softmax", "regression": None}[source.task]
    name = _free_name("prediction", source)
    mean, deviation = label_scale(source)
    if (mean, deviation) == (0.0, 1.0):
        return tf_keras.layers.Dense(source.num_classes, activation=activation, name=name)(tensor)
    standardized = tf_keras.layers.Dense(source.num_classes, name=_free_name("standardized_prediction", source))(tensor)
    return tf_keras.layers.Rescaling(deviation, mean, name=name)(standardized)


def _free_name(name: str, source: DataSource) -> str:
    """`name`, or one that begins with it: the input layers have the names of the features."""
    while name in source.features:
        name += "_"
    return name


def label_scale(source: DataSource) -> tuple[float, float]:
    """The mean and the deviation of the labels of a regression; 0 and 1 if unknown, and for other tasks."""
    if source.task != "regression":
        return 0.0, 1.0
    return getattr(source, "label_mean", 0.0), getattr(source, "label_deviation", 0.0) or 1.0


def floats(tensors: dict[str, tf.Tensor]) -> tf.Tensor:
    """All float inputs but lists side by side: (batch, sum of sizes).

    Raises:
      ValueError: there are no float inputs.
    """
    flat = numbers_of(tensors)
    if not flat:
        features = ", ".join(f"{name} ({tensor.dtype.name})" for name, tensor in tensors.items())
        raise ValueError(f"the data has no features that this model can use: it needs float32, but they are {features}")
    return flat[0]


def numbers_of(tensors: dict[str, tf.Tensor]) -> list[tf.Tensor]:
    """All float inputs but lists side by side: one tensor, (batch, sum of sizes); none without such inputs."""
    numbers = [tensor for tensor in tensors.values() if tensor.dtype == tf.float32 and not is_ragged(tensor)]
    return [SideBySide()(numbers)] if numbers else []


@tf_keras.utils.register_keras_serializable(package="psrun")
class SideBySide(tf_keras.layers.Layer):
    """Tensors of one type, each flattened, as one matrix: a layer for any number of features.

    Call arguments:
      inputs: a list of tensors, (batch, *shape).

    Returns:
      (batch, sum of sizes).
    """

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat([as_matrix(tensor) for tensor in inputs], 1)


def is_ragged(tensor: Any) -> bool:
    """Whether an input of a network takes RaggedTensors."""
    return isinstance(tensor.type_spec, tf.RaggedTensorSpec)


def concatenated(tensors: list[tf.Tensor]) -> tf.Tensor:
    """The concatenation of `tensors`; a single tensor is unchanged."""
    if not tensors:
        raise ValueError("the data has no features that this model can use")
    return tensors[0] if len(tensors) == 1 else tf_keras.layers.Concatenate()(tensors)


def refuse_single_files(network: tf_keras.Model) -> None:
    """Makes `save` and `save_weights` of a sharded model refuse .keras and .h5, which Keras could not load again."""

    def refusing(method: Callable[..., None]) -> Callable[..., None]:
        def call(filepath: Any, *arguments: Any, **options: Any) -> None:
            if str(filepath).endswith((".keras", ".h5", ".hdf5")) or options.get("save_format") in ("keras", "h5"):
                raise ExportError(
                    f"{filepath}: Keras writes .keras and .h5 files of sharded variables, but cannot load them again; "
                    "write a SavedModel with export.at_end=true or psrun export RUN"
                )
            method(filepath, *arguments, **options)

        return call

    network.save = refusing(network.save)
    network.save_weights = refusing(network.save_weights)


def dense(source: DataSource, *, hidden_units: Sequence[int] = (64, 32)) -> Model:
    """ReLU layers of `hidden_units` on all float features but lists."""
    preprocessing, num_ids = prepared(source)
    tensors = network_inputs(source, num_ids)
    network = tf_keras.Model(tensors, head(hidden(floats(tensors), hidden_units), source))
    unused = [name for name, feature in source.features.items() if name in num_ids or feature.is_list]
    return Model(network, preprocessing, unused=unused)


def embedding(source: DataSource, *, embedding_dim: int = 20) -> Model:
    """Embeds each feature with ids in its own table, and averages over its values.

    The tables have shape (ids, embedding_dim); with a vocabulary, row 0 is for values outside of it.
    """
    refuse_lists(source, "embedding")
    preprocessing, num_ids = prepared(source)
    tensors = network_inputs(source, num_ids)
    averaged = [
        tf_keras.layers.GlobalAveragePooling1D()(tf_keras.layers.Embedding(size, embedding_dim)(tensors[name]))
        for name, size in num_ids.items()
    ]
    unused = [name for name in source.features if name not in num_ids]
    return Model(tf_keras.Model(tensors, head(concatenated(averaged), source)), preprocessing, unused=unused)


def cnn(source: DataSource, *, filters: Sequence[int] = (16, 32), hidden_units: Sequence[int] = (64,)) -> Model:
    """3 x 3 convolutions, each followed by max pooling, then ReLU layers, on the only image feature of the data."""
    refuse_lists(source, "cnn")
    images = [name for name, feature in source.features.items() if len(feature.shape) == 3]
    if len(source.features) != 1 or not images:
        there = ", ".join(source.features)
        raise ArgumentError(("", f"cnn takes one feature of images; the data has {there}; choose another model"))
    tensors = inputs(dict(source.features))
    (tensor,) = tensors.values()
    for channels in filters:
        tensor = tf_keras.layers.Conv2D(channels, 3, padding="same", activation="relu")(tensor)
        tensor = tf_keras.layers.MaxPooling2D()(tensor)
    tensor = hidden(tf_keras.layers.Flatten()(tensor), hidden_units)
    return Model(tf_keras.Model(tensors, head(tensor, source)))
