"""Sizes of an evaluation."""

from __future__ import annotations

from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource


def num_eval_batches(run: RunConfig, source: DataSource) -> int:
    """The number of evaluation batches."""
    return -(-source.num_eval_examples // eval_batch_size(run))


def eval_batch_size(run: RunConfig) -> int:
    """Examples per evaluation batch."""
    return run.evaluation.batch_size or run.data.batch_size


def num_eval_shards(run: RunConfig, source: DataSource, num_workers: int) -> int:
    """Shards of Keras' exact evaluation: a few per worker, and at most one per batch, as Keras requires."""
    return max(1, min(num_eval_batches(run, source), 4 * num_workers))
