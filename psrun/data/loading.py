"""Loads and checks the data of a run: its labels, and how synchronous workers share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from psrun import process
from psrun.config import rules, targets
from psrun.config.run_config import RunConfig
from psrun.config.schema import AUTO
from psrun.data.source import MEMBERS, ByNumber, DataSource, Order
from psrun.errors import ConfigError, Problem
from psrun.tf_internals import messages
from psrun.tf_internals.strategies import share_files

LABELS_KEY = "data.label_vocabulary"
LabelVocabulary = tuple[str, ...] | tuple[int, ...]
_BUCKETS = 2**63 - 1
_SHARDING = "data.sharding"
# Instead of `auto`, for sources that recommend nothing.
_USUAL_RATE = 0.001
_USUAL: dict[str, Any] = {"global_batch_size": 64, "epochs": 5, "steps_per_epoch": 100}


def own_vocabulary(source: DataSource) -> LabelVocabulary | None:
    """The vocabulary that a source itself uses to convert labels to class numbers; None if it declares none."""
    vocabulary = getattr(source, "label_vocabulary", None)
    return None if vocabulary is None else tuple(vocabulary)


def class_names(source: DataSource, vocabulary: LabelVocabulary | None) -> tuple[str, ...] | None:
    """The names of the classes 0, 1, ...; None without names.

    Args:
      vocabulary: of the configuration.
    """
    values = own_vocabulary(source) or vocabulary
    return None if values is None else tuple(map(str, values))


def vocabulary_problems(source: DataSource, vocabulary: LabelVocabulary | None) -> list[Problem]:
    """Contradictions between the configured vocabulary and the labels of the source."""
    if vocabulary is None:
        return []
    own = own_vocabulary(source)
    if own is not None and own != vocabulary:
        return [Problem(LABELS_KEY, f"is {_shown(vocabulary)}, but the labels of the data source are {_shown(own)}")]
    return task_problems(source.task, source.num_classes if source.task == "multiclass" else None, vocabulary)


def task_problems(task: str, num_classes: int | None, vocabulary: Sequence[Any]) -> list[Problem]:
    """Contradictions between a task and a vocabulary of labels.

    Args:
      num_classes: of a multiclass task; None: the size of the vocabulary.
    """
    count = len(vocabulary)
    if task == "regression":
        return [Problem(LABELS_KEY, "requires a classification task; got data.task=regression: set it to null")]
    if task == "binary" and count != 2:
        return [Problem(LABELS_KEY, f"has {count} values; a binary task has 2: set data.task=multiclass for more")]
    if task == "multiclass" and num_classes not in (None, count):
        return [Problem(LABELS_KEY, f"has {count} values, but num_classes is {num_classes}; make them equal")]
    return []


def to_class_numbers(source: DataSource, vocabulary: LabelVocabulary | None) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """A function from a batch of the source's labels to class numbers.

    It uses no lookup table, which the chief would have to create on each worker. It raises InvalidArgumentError with
    the label if a label is not in the vocabulary.

    Returns:
      None if the source returns class numbers.

    Raises:
      ConfigError: the labels have another type than the vocabulary.
    """
    if vocabulary is None or own_vocabulary(source) is not None:
        return None
    with tf.init_scope():
        _, label, *_ = source.train(batch_size=1, seed=tf.constant(0, tf.int64)).element_spec
        if not isinstance(label, tf.TensorSpec):
            raise ConfigError([Problem(LABELS_KEY, "requires one label per example; the data source has several")])
        if (label.dtype == tf.string) != isinstance(vocabulary[0], str):
            message = f"is {_shown(vocabulary)}, but the labels of the data source are of type {label.dtype.name}"
            raise ConfigError([Problem(LABELS_KEY, message)])
        return _lookup(vocabulary, multiclass=source.task == "multiclass")


def check_label_specs(label: Any) -> None:
    """Raises ConfigError if the labels (a nest of specs) are strings, or their number of axes is unknown."""
    for spec in tf.nest.flatten(label):
        if spec.dtype == tf.string:
            message = "is null, but the labels are strings; name the classes, as in data.label_vocabulary=[no,yes]"
            raise ConfigError([Problem(LABELS_KEY, message)])
        if spec.shape.rank is None:
            example = f"output_signature=tf.TensorSpec((None, 1), tf.{spec.dtype.name})"
            message = f"the labels have no known shape in the batches: give the dataset one, such as {example}"
            raise ConfigError([Problem("data", message)])


def _lookup(vocabulary: LabelVocabulary, *, multiclass: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    words = np.array(vocabulary)
    shown = _shown(vocabulary)
    keys = _search_keys(tf.constant(vocabulary)).numpy()
    order = np.argsort(keys)

    def convert(label: tf.Tensor) -> tf.Tensor:
        label = tf.reshape(label, [-1])
        places = tf.minimum(tf.searchsorted(keys[order], _search_keys(label)), len(order) - 1)
        numbers = tf.gather(order, places)
        is_known = tf.equal(tf.cast(tf.gather(words, numbers), label.dtype), label)
        unknown = tf.boolean_mask(label, tf.logical_not(is_known))
        message = f"a label is not in {LABELS_KEY}={shown}:"
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_known), [message, unknown[:1]])]):
            return tf.identity(numbers) if multiclass else tf.cast(numbers, tf.float32)[:, tf.newaxis]

    return convert


def _search_keys(values: tf.Tensor) -> tf.Tensor:
    """Keys for the binary search of values. Of two values with the same key, at most one is found."""
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, _BUCKETS)
    return tf.cast(values, tf.int64)


def _shown(vocabulary: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, vocabulary))}]"


def sharding_policy(run: RunConfig, dataset: Callable[[], tf.data.Dataset]) -> str | None:
    """The effective policy of the training data, 'data', 'file' or 'off'; resolves 'auto' and None as TensorFlow does.

    Args:
      dataset: creates the pipeline. Call it eagerly: inside a tf.function TensorFlow reports no errors.

    Returns:
      None if the run has no synchronous workers.

    Raises:
      ConfigError: the policy is 'file', but the dataset does not start from files.
    """
    if not run.cluster.has_synchronous_workers:
        return None
    assert run.cluster.num_workers is not None  # synchronous workers are counted
    pipeline = dataset()
    requested = run.data.sharding or pipeline.options().experimental_distribute.auto_shard_policy.name.lower()
    if requested not in ("auto", "file"):
        return requested
    try:
        with process.silent_stderr():  # TensorFlow also logs the error that is expected here
            share_files(sharded(pipeline, "file"), run.cluster.num_workers)
    except tf.errors.NotFoundError as error:
        if requested == "auto":
            return "data"
        message = f"is file, but the training data of {run.data.target.name} does not start from files"
        raise ConfigError(
            [Problem(_SHARDING, f"{message} that TensorFlow can shard; choose data, which shards each batch")]
        ) from error
    return "file"


def too_few_files(cause: str) -> Problem | None:
    """The problem behind TensorFlow's error for fewer files than workers."""
    num_workers = messages.workers_short_of_files(cause)
    if num_workers is None:
        return None
    return Problem(_SHARDING, f"shards by file, but there are fewer files than the {num_workers} workers; choose data")


def sharded(dataset: tf.data.Dataset, policy: str | None) -> tf.data.Dataset:
    """The dataset with a policy; unchanged if it is None."""
    if policy is None:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
    return dataset.with_options(options)


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """The index of this process among the workers; the chief is 0."""
    resolver = strategy.cluster_resolver
    return 0 if resolver is None or resolver.task_type == "chief" else int(resolver.task_id) + 1


def load_source(
    run: RunConfig,
    recorded: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda text: None,
    folder: Path | None = None,
) -> DataSource:
    """The data of the run.

    Args:
      recorded: the facts about the data in the run.json of a run that has started before.
      folder: of the run, for files that belong to the source; None: there is none.
      tell: called repeatedly during preparation with the progress.

    Raises:
      ConfigError: the data does not fit the configuration.
      DataError: the data cannot be read.
    """
    vocabulary = run.data.label_vocabulary
    options = {} if vocabulary is None else {"label_vocabulary": vocabulary}  # a source may have its own default
    predicting = run.mode == "predict"
    provided: dict[str, Any] = {"list_ends": targets.list_ends(run.model)}
    provided |= {"tell": tell, "recorded": recorded, "run_folder": folder, "predicting": predicting, **options}
    source: DataSource = targets.called(run.data.target, seed=run.seed, **provided)
    if lacks := [member for member in MEMBERS if not hasattr(source, member)]:
        message = f"{run.data.target.name} returned {type(source).__name__}, which has no {', no '.join(lacks)}"
        raise ConfigError([Problem("data._target_", f"{message}; see psrun.data.source.DataSource for the interface")])
    problems = [*_problems(run, source), *_of_the_vocabulary(run, source, recorded or {})]
    problems += vocabulary_problems(source, vocabulary)
    if problems:
        raise ConfigError(problems)
    return source


def _problems(run: RunConfig, source: DataSource) -> Iterator[Problem]:
    """Keys that do not fit the number of examples, or the interface of the source."""
    batch = run.data.global_batch_size
    examples = source.num_train_examples
    if examples is not None and isinstance(batch, int) and batch > examples:
        message = f"is {batch}, must be at most {examples}, the number of training examples"
        yield Problem("data.global_batch_size", message)
    if run.data.visitation != "every_worker" and not isinstance(source, ByNumber):
        problem = f"is {run.data.visitation}, but {run.data.target.name} is not a psrun.data.source.ByNumber"
        message = f"{problem}, so its examples cannot be read by number; choose every_worker"
        yield Problem("data.visitation", message)
    if run.trainer.steps_per_epoch is None and examples is None:
        yield Problem("trainer.steps_per_epoch", "is required: the number of training examples is unknown")
    if run.evaluation.runs_on is not None and not source.num_eval_examples:
        yield Problem("evaluation", "there are no evaluation examples; choose evaluation=none")


def facts(run: RunConfig, source: DataSource) -> dict[str, Any]:
    """The facts about the data for run.json."""
    sizes = {"num_train_examples": source.num_train_examples, "num_eval_examples": source.num_eval_examples}
    names = class_names(source, run.data.label_vocabulary)
    return {**sizes, **source.facts, **({"label_vocabulary": list(names)} if names else {})}


def _of_the_vocabulary(run: RunConfig, source: DataSource, recorded: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuses another vocabulary than the run has: rows of tables, and classes, would belong to other values."""
    if run.resume is None:
        return
    now = facts(run, source)
    for key in ("vocabulary", "label_vocabulary"):
        known = recorded.get(key)
        if known is not None and known != now.get(key):
            listed = f", [{', '.join(map(str, known))}]" if isinstance(known, list) else ""  # else a digest
            message = f"differs from the vocabulary that the run in {run.resume} was trained with{listed}"
            yield Problem(f"data.{key}", f"{message}; remove it to keep the recorded one")


def planned(run: RunConfig, source: DataSource, tell: Callable[[str], None] = lambda text: None) -> RunConfig:
    """The run with numbers instead of `auto`, and with the number of steps per epoch; `raw` has the numbers, too.

    A number that is configured holds. `auto` is what the source recommends for the batch size (`recommended`), and the
    usual number if it recommends none.

    Args:
      tell: called with a text if a number is not the recommended one.

    Raises:
      ConfigError: another key does not fit these numbers.
    """
    data = run.data
    trainer = run.trainer
    run = _with_rate(run, source)
    if all(isinstance(value, int) for value in (data.global_batch_size, trainer.epochs, trainer.steps_per_epoch)):
        return run
    batch_size = _batch_size(run, source, tell)
    numbers = {**_USUAL, **_recommended(source, batch_size)}
    epochs = numbers["epochs"] if isinstance(trainer.epochs, str) else trainer.epochs
    steps = numbers["steps_per_epoch"] if isinstance(trainer.steps_per_epoch, str) else trainer.steps_per_epoch
    chosen = replace(
        run,
        data=replace(data, global_batch_size=batch_size),
        trainer=replace(trainer, epochs=epochs, steps_per_epoch=steps),
    )
    if steps is None:
        _require_no_problems(chosen)  # one pass may require a known number of workers
        steps = _steps_of_a_pass(chosen, source)
    packed = trainer.steps_per_execution
    if isinstance(packed, int) and not isinstance(trainer.steps_per_epoch, int):
        packed = min(packed, steps)
    completed = replace(
        chosen,
        trainer=replace(chosen.trainer, steps_per_epoch=steps, steps_per_execution=packed),
        raw=_with_numbers(run.raw, batch_size, epochs, steps),
    )
    _require_no_problems(completed)
    return completed


def _with_rate(run: RunConfig, source: DataSource) -> RunConfig:
    """The run with learning rates instead of `auto`, which stays in `raw`: more epochs change how a rate falls."""
    if not run.chosen_rates:
        return run
    recommended = {"learning_rate": _USUAL_RATE, "learning_rate_falls": False, **_recommended(source, None)}
    completed: dict[str, Any] = {}
    for target in run.optimizers:
        if target.key in run.chosen_rates:
            options = {**target.options, "learning_rate": recommended["learning_rate"]}
            completed[target.key] = replace(target, options=options)
    falls = recommended["learning_rate_falls"] and run.reduce_lr.metric is None  # which lowers it by itself
    return replace(run, **completed, learning_rate_falls=falls)


def _batch_size(run: RunConfig, source: DataSource, tell: Callable[[str], None]) -> int:
    """The examples per step, as configured; else as recommended, and at most as many as there are."""
    configured = run.data.global_batch_size
    examples = source.num_train_examples
    if isinstance(configured, int):
        return configured
    usual = {**_USUAL, **_recommended(source, None)}["global_batch_size"]
    if examples is None or usual <= examples:
        return usual
    tell(f"data.global_batch_size: {usual:,} is reduced to {examples:,}, the number of training examples")
    return examples


def _recommended(source: DataSource, batch_size: int | None) -> Mapping[str, Any]:
    recommend = getattr(source, "recommended", None)
    return {} if recommend is None else recommend(batch_size)


def _steps_of_a_pass(run: RunConfig, source: DataSource) -> int:
    assert source.num_train_examples is not None
    batches = Order(source.num_train_examples, run.data.batch_size).batches_per_pass
    return max(1, batches // run.consistency.gradients_per_update(run.num_training_workers or 1))


def _with_numbers(raw: Mapping[str, Any], batch_size: int, epochs: int, steps: int) -> Mapping[str, Any]:
    """The configuration with numbers instead of `auto`. Null is kept: one pass, also over other data."""
    data = _decided(raw["data"], {"global_batch_size": batch_size})
    trainer = _decided(raw["trainer"], {"epochs": epochs, "steps_per_epoch": steps})
    return {**raw, "data": data, "trainer": trainer}


def _decided(node: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """The node with the numbers where it has `auto`."""
    decided = dict(node)
    for key, number in numbers.items():
        if node.get(key) == AUTO:
            decided[key] = number
    return decided


def _require_no_problems(run: RunConfig) -> None:
    """Raises ConfigError if keys do not fit each other."""
    if problems := rules.problems(run):
        raise ConfigError(problems)
