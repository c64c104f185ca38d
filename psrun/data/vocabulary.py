"""The values that categories have, counted in files of `psrun.data.criteo` and written once, for every run to use."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from psrun.data import criteo, files, formats
from psrun.errors import ConfigError, DataError
from psrun.files import write_atomic


def write(path: str, folder: Path, *, min_count: int, num_buckets: int, seed: int) -> dict[str, dict[str, int]]:
    """Counts the values of each category and writes `C1.txt` to `C26.txt`, a value a line, and last `vocabulary.json`.

    The order is random, so that frequent values are spread over a table. An empty field is not a value.

    Returns:
      For each category: `values` that were written, values `left_out` as they are rarer than `min_count`, and
      `collisions`, how many of the values written would share their id with another one if they were hashed to
      `num_buckets`.

    Raises:
      ConfigError: an argument is below 1.
      DataError: there are no such files, or a row is not as it should be.
    """
    if min(min_count, num_buckets) < 1 or seed < 0:
        raise ConfigError("--min-count and --num-buckets must be 1 or more, --seed 0 or more")
    counted = _counted(path)
    folder.mkdir(parents=True, exist_ok=True)
    rng, digest = np.random.default_rng(seed), hashlib.sha256()
    counts_by_name: dict[str, dict[str, int]] = {}
    for name, counter in counted.items():
        del counter[b""]
        values = sorted(value for value, count in counter.items() if count >= min_count)
        rng.shuffle(values)
        text = "".join(f"{value.decode(errors='replace')}\n" for value in values)
        write_atomic(folder / f"{name}.txt", text)
        digest.update(f"{name}\n{text}".encode())
        counts_by_name[name] = {
            "values": len(values),
            "left_out": len(counter) - len(values),
            "collisions": _collisions(values, num_buckets),
        }
    record: dict[str, Any] = {
        "path": path,
        "min_count": min_count,
        "num_buckets": num_buckets,
        "categories": counts_by_name,
    }
    record["digest"] = digest.hexdigest()
    write_atomic(folder / "vocabulary.json", json.dumps(record, indent=2) + "\n")
    return counts_by_name


def _counted(path: str) -> dict[str, Counter[bytes]]:
    """How often each value of each category occurs."""
    counted: dict[str, Counter[bytes]] = {name: Counter() for name in criteo.CATEGORIES}
    for file in files.find(path):
        for rows in formats.rows(file, criteo.COLUMNS, criteo.LAYOUT):
            if rows.problems:
                number, problem = rows.problems[0]
                raise DataError(f"{file}, row {number}: {problem}")
            for name, counter in counted.items():
                encoded = rows.batch.column(name).dictionary_encode()
                counts = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
                counter.update(dict(zip(encoded.dictionary.cast(pa.binary()).to_pylist(), counts.tolist())))
    return counted


def _collisions(values: list[bytes], num_buckets: int) -> int:
    if not values:
        return 0
    ids = tf.strings.to_hash_bucket_fast(tf.constant(values), num_buckets).numpy()  # as Keras' Hashing does
    _, counts = np.unique(ids, return_counts=True)
    return int(counts[counts > 1].sum())
