"""How workers that do every step together share the training data: TensorFlow's policies of cutting a pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute  # for _AutoShardDataset; a test pins it

from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem

_KEY = "data.sharding"


def policy(run: RunConfig, dataset: Callable[[], tf.data.Dataset]) -> str | None:
    """What becomes of the training data: 'data', 'file' or 'off'; of 'auto' or nothing, what TensorFlow makes of it.

    Args:
      dataset: makes the pipeline. Not to be called within a function, where TensorFlow would say nothing.

    Returns:
      None where the run has no such workers.

    Raises:
      ConfigError: files are to be shared out, and the data does not begin with any.
    """
    if not run.cluster.has_synchronous_workers:
        return None
    made, name, num_workers = dataset(), run.data.target.name, run.cluster.num_workers
    asked = run.data.sharding or made.options().experimental_distribute.auto_shard_policy.name.lower()
    if asked not in ("auto", "file"):
        return asked
    try:
        distribute._AutoShardDataset(applied(made, "file"), num_workers, 0)
    except tf.errors.NotFoundError as error:
        if asked == "auto":
            return "data"
        message = f"is file, but the training data of {name} does not begin with files that TensorFlow could share out"
        raise ConfigError([Problem(_KEY, f"{message}; choose data, by which each batch is")]) from error
    return "file"


def too_few_files(cause: str) -> Problem | None:
    """What TensorFlow says of fewer files than workers, when the first batch is read; how many it says is not right."""
    found = re.search(r"only has \d+ file\(s\), which is not enough for the required (\d+)", cause)
    if found is None:
        return None
    return Problem(_KEY, f"would share out files, of which there are fewer than the {found[1]} workers; choose data")


def applied(dataset: tf.data.Dataset, policy: str | None) -> tf.data.Dataset:
    """The dataset with a policy; without one as it is."""
    if policy is None:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
    return dataset.with_options(options)


def index(strategy: tf.distribute.Strategy) -> int:
    """Which of the workers this process is: the chief is the first."""
    resolver = strategy.cluster_resolver
    return 0 if resolver is None or resolver.task_type == "chief" else int(resolver.task_id) + 1
