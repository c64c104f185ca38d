"""How TensorFlow shares out the files of a dataset among workers."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute


def share_files(dataset: tf.data.Dataset, num_workers: int) -> tf.data.Dataset:
    """The part of a dataset that the first of several workers reads, by the dataset's policy of sharing.

    A strategy does this when it distributes a dataset. There is no public function for it (TensorFlow 2.21).

    Raises:
      tf.errors.NotFoundError: files are to be shared, and the dataset does not begin with files.
      tf.errors.InvalidArgumentError: when read: there are fewer files than workers.
    """
    return distribute._AutoShardDataset(dataset, num_workers, 0)
