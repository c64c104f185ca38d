"""How synchronous workers share the training data: TensorFlow's auto-shard policies."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from psrun import process
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.tf_internals import messages
from psrun.tf_internals.datasets import share_files

_KEY = "data.sharding"


def policy(run: RunConfig, dataset: Callable[[], tf.data.Dataset]) -> str | None:
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
            share_files(applied(pipeline, "file"), run.cluster.num_workers)
    except tf.errors.NotFoundError as error:
        if requested == "auto":
            return "data"
        message = f"is file, but the training data of {run.data.target.name} does not start from files"
        raise ConfigError(
            [Problem(_KEY, f"{message} that TensorFlow can shard; choose data, which shards each batch")]
        ) from error
    return "file"


def too_few_files(cause: str) -> Problem | None:
    """The problem behind TensorFlow's error for fewer files than workers."""
    num_workers = messages.workers_short_of_files(cause)
    if num_workers is None:
        return None
    return Problem(_KEY, f"shards by file, but there are fewer files than the {num_workers} workers; choose data")


def applied(dataset: tf.data.Dataset, policy: str | None) -> tf.data.Dataset:
    """The dataset with a policy; unchanged if it is None."""
    if policy is None:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
    return dataset.with_options(options)


def index(strategy: tf.distribute.Strategy) -> int:
    """The index of this process among the workers; the chief is 0."""
    resolver = strategy.cluster_resolver
    return 0 if resolver is None or resolver.task_type == "chief" else int(resolver.task_id) + 1
