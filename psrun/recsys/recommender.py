"""mode=predict with predict.top_k: the items with the highest scores of each user, without those trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import csv, parquet

from psrun import files
from psrun.checkpoint import trained_model
from psrun.checkpoint.storage import Store
from psrun.config.run_config import RunConfig
from psrun.errors import PsrunError
from psrun.recsys import interactions
from psrun.recsys.pair_scores import PairScores
from psrun.roles.checkpoint_modes import source_here
from psrun.roles.chief import Chief
from psrun.roles.table import TaskContext

_PAIRS = 1 << 22  # scores in memory at a time


def run(run_config: RunConfig, context: TaskContext) -> None:
    """Writes the file, rows of user, rank, item and score, and prints its path. It runs in this process alone.

    Raises:
      PsrunError: there is no such checkpoint, or the file cannot be written.
    """
    folder = context.folder
    with source_here(run_config, context) as (chief, source, run_config):
        loaded = trained_model.load(run_config, source, Store(folder.checkpoints), chief.reporter.warn)
        evaluation = run_config.evaluation
        known = interactions.of_run(evaluation, source, loaded.model)
        table = _recommended(known, PairScores(loaded.model, known), run_config, chief)
        keys = run_config.predict
        step = loaded.checkpoint.step
        path = Path(keys.path).expanduser() if keys.path else folder.predictions / f"{step}-top.{keys.file_format}"
        _write(table, path, keys.file_format or "csv")
        chief.reporter.emit("predictions", step=step, path=str(path), count=len(table), malformed=0)


def _recommended(known: interactions.Interactions, scores: PairScores, run_config: RunConfig, chief: Chief) -> pa.Table:
    top_k = run_config.predict.top_k
    assert top_k is not None
    user = run_config.evaluation.user or ""
    item = run_config.evaluation.item or ""
    k = min(top_k, known.num_items)
    scores.refresh()
    parts: list[tuple[np.ndarray, ...]] = []
    size = max(1, _PAIRS // known.num_items)
    for first in range(0, known.num_users, size):
        users = np.arange(first, min(first + size, known.num_users))
        seen_user, seen_item = known.trained.of_users(int(users[0]), int(users[-1]) + 1)
        seen_row: np.ndarray = seen_user - first
        seen = seen_row, seen_item
        chosen, own = scores.top(users, k, seen)
        is_there = np.isfinite(own)  # a user may have seen nearly all items
        row, place = np.nonzero(is_there)
        parts.append((users[row], place + 1, chosen[is_there], own[is_there]))
        chief.preparing(f"recommending: {users[-1] + 1:,} of {known.num_users:,} users")
    of_user, rank, of_item, score = (np.concatenate(each) for each in zip(*parts))
    columns = [_values(known.users[user], of_user), rank, _values(known.items[item], of_item), score]
    return pa.table(columns, ["user", "rank", "item", "score"])


def _values(feature: tf.Tensor, numbers: np.ndarray) -> Any:
    """The raw values of users or items with these numbers."""
    values = tf.reshape(feature, [-1]).numpy()[numbers]
    return pa.array([each.decode(errors="replace") for each in values]) if values.dtype == object else values


def _write(table: pa.Table, path: Path, file_format: str) -> None:
    write = parquet.write_table if file_format == "parquet" else csv.write_csv
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.put_whole(path) as part:
            write(table, part)
    except OSError as error:
        raise PsrunError(f"the recommendations could not be written to {path}: {error}") from error
