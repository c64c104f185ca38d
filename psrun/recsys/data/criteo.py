"""Display advertising as Criteo published it (Kaggle 2014): rows of a label, 13 counts and 26 categories with tabs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from psrun.data import storage
from psrun.data.source import Feature
from psrun.errors import ConfigError, DataError, Problem
from psrun.files import write_atomic
from psrun.tables import formats
from psrun.tables.rows import TAB, Layout
from psrun.tables.synthesis import NUM_CATEGORIES, NUM_COUNTS
from psrun.tables.table import Table
from psrun.tables.table_source import TableSource

COUNTS = tuple(f"I{number}" for number in range(1, NUM_COUNTS + 1))
CATEGORIES = tuple(f"C{number}" for number in range(1, NUM_CATEGORIES + 1))
COLUMNS = ("label", *COUNTS, *CATEGORIES)
LAYOUT = Layout("tsv", TAB, quoted=False, columns=COLUMNS)


class CriteoSource(TableSource):
    """A table whose counts are one feature."""

    def recommended(self, global_batch_size: int | None) -> dict[str, Any]:
        """Nothing: the configuration of data=criteo has numbers."""
        return {}

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        features, *others = super()._example(columns)
        counts = tf.concat([features.pop(name) for name in COUNTS], axis=1)
        return ({"counts": counts, **features}, *others)


def Criteo(  # noqa: N802 - configurations and recorded runs name the source so
    *,
    path: str,
    eval_path: str | None = None,
    vocabulary: str | None = None,
    num_buckets: int = 100_000,
    max_bad_rows: int = 0,
    cache: str | None = None,
    predicting: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> CriteoSource:
    """A table without header, in text files that are gzipped if their names end in .gz.

    Features are `counts` (13 numbers, 0 for an empty field) and `C1` to `C26` (strings, also empty ones).

    Args:
      path: training files: one, a folder, or a pattern with * ? and [].
      eval_path: the same for evaluation; None for none.
      vocabulary: a folder written by `psrun data vocabulary`; None to hash the categories.
      num_buckets: ids per category without a vocabulary.
      max_bad_rows: number of malformed rows (fields, label or counts) to skip, with a report; one more is an error.
      cache: the folder for prepared sets, which all workers must see; None for one in the home folder.
      predicting, tell: see `Table`.

    Raises:
      ConfigError: `num_buckets` is below 1, `max_bad_rows` below 0, the folder has no vocabulary, or a file is used
        for training and evaluation.
      DataError: a file does not exist or cannot be read to its end, or there are more malformed rows.
    """
    words: dict[str, Path] = {}
    facts = {}
    if vocabulary:
        words, facts["vocabulary"] = _vocabularies(Path(vocabulary).expanduser().absolute())
    columns: dict[str, Any] = {name: {"default": 0} for name in COUNTS}
    columns |= {name: {"dtype": "string"} for name in CATEGORIES}
    table = Table(
        path=path,
        eval_path=eval_path,
        label="label",
        task="binary",
        features=columns,
        format=LAYOUT.format,
        columns=LAYOUT.columns,
        quoted=LAYOUT.quoted,
        num_buckets=num_buckets,
        max_bad_rows=max_bad_rows,
        cache=cache,
        predicting=predicting,
        tell=tell,
    )
    features = {"counts": Feature((NUM_COUNTS,), tf.float32, logarithm=True)}
    for name in CATEGORIES:
        if words:
            features[name] = Feature((1,), tf.string, vocabulary=words[name])
        else:
            features[name] = Feature((1,), tf.string, num_buckets=num_buckets)
    members = {**vars(table), "features": features, "facts": {**table.facts, **facts}}
    return CriteoSource(**members)


def _vocabularies(folder: Path) -> tuple[dict[str, Path], str]:
    """The files of a vocabulary, and its digest."""
    words = {name: folder / f"{name}.txt" for name in CATEGORIES}
    try:
        digest = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))["digest"]
    except (OSError, ValueError, KeyError) as error:
        message = f"{folder} holds no vocabulary ({error}); create one with psrun data vocabulary"
        raise ConfigError([Problem("data.vocabulary", message)]) from error
    missing = [file for file in words.values() if not file.exists()]
    if missing:
        raise DataError(f"{missing[0]} is missing; create the vocabulary again with psrun data vocabulary")
    return words, digest


def write_vocabulary(
    path: str, folder: Path, *, min_count: int, num_buckets: int, seed: int
) -> dict[str, dict[str, int]]:
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
    rng = np.random.default_rng(seed)
    digest = hashlib.sha256()
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
    options = {"path": path, "min_count": min_count, "num_buckets": num_buckets}
    record = {**options, "categories": counts_by_name, "digest": digest.hexdigest()}
    write_atomic(folder / "vocabulary.json", json.dumps(record, indent=2) + "\n")
    return counts_by_name


def _counted(path: str) -> dict[str, Counter[bytes]]:
    counted: dict[str, Counter[bytes]] = {name: Counter() for name in CATEGORIES}
    for file in storage.find(path):
        for rows in formats.rows(file, COLUMNS, LAYOUT):
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
