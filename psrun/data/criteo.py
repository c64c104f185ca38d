"""Display advertising as Criteo published it (Kaggle 2014): rows of a label, 13 counts and 26 categories with tabs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from psrun.data.rows import TAB, Layout
from psrun.data.source import Feature
from psrun.data.synthesis import NUM_CATEGORIES, NUM_COUNTS
from psrun.data.table import Table
from psrun.errors import ConfigError, DataError, Problem

COUNTS = tuple(f"I{number}" for number in range(1, NUM_COUNTS + 1))
CATEGORIES = tuple(f"C{number}" for number in range(1, NUM_CATEGORIES + 1))
COLUMNS = ("label", *COUNTS, *CATEGORIES)
LAYOUT = Layout("tsv", TAB, quoted=False, columns=COLUMNS)


class Criteo(Table):
    """A table without header, in text files that are gzipped if their names end in .gz.

    Features are `counts` (13 numbers, 0 for an empty field) and `C1` to `C26` (strings, also empty ones).

    Args:
      path: training files: one, a folder, or a pattern with * ? and [].
      eval_path: the same for evaluation; None for none.
      vocabulary: a folder written by `psrun data vocabulary`; None to hash the categories.
      num_buckets: ids per category without a vocabulary.
      max_bad_rows: number of malformed rows (fields, label or counts) to skip, with a report; one more is an error.
      cache: the folder for prepared sets, which all workers must see; None for one in the home folder.
      predicting, tell: as of `Table`.

    Raises:
      ConfigError: `num_buckets` is below 1, `max_bad_rows` below 0, the folder has no vocabulary, or a file is used
        for training and evaluation.
      DataError: a file does not exist or cannot be read to its end, or there are more malformed rows.
    """

    def __init__(
        self,
        *,
        path: str,
        eval_path: str | None = None,
        vocabulary: str | None = None,
        num_buckets: int = 100_000,
        max_bad_rows: int = 0,
        cache: str | None = None,
        predicting: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        words, digest = _vocabularies(Path(vocabulary).expanduser().absolute()) if vocabulary else ({}, None)
        categories = {name: {"dtype": "string"} for name in CATEGORIES}
        super().__init__(
            path=path,
            eval_path=eval_path,
            label="label",
            task="binary",
            features={name: {"default": 0} for name in COUNTS} | categories,
            format=LAYOUT.format,
            columns=LAYOUT.columns,
            quoted=LAYOUT.quoted,
            num_buckets=num_buckets,
            max_bad_rows=max_bad_rows,
            cache=cache,
            predicting=predicting,
            tell=tell,
        )
        described = {
            name: Feature((1,), tf.string, words[name]) if words else Feature((1,), tf.string, num_buckets=num_buckets)
            for name in CATEGORIES
        }
        self.features: Mapping[str, Feature] = {
            "counts": Feature((NUM_COUNTS,), tf.float32, logarithm=True),
            **described,
        }
        if digest:
            self.facts = {**self.facts, "vocabulary": digest}

    def recommended(self, global_batch_size: int | None) -> dict[str, Any]:
        """Nothing: the configuration of data=criteo has numbers."""
        return {}

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        features, *others = super()._example(columns)
        counts = tf.concat([features.pop(name) for name in COUNTS], axis=1)
        return ({"counts": counts, **features}, *others)


def _vocabularies(folder: Path) -> tuple[dict[str, Path], str]:
    """The files of a vocabulary, and its digest."""
    files = {name: folder / f"{name}.txt" for name in CATEGORIES}
    try:
        digest = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))["digest"]
    except (OSError, ValueError, KeyError) as error:
        message = f"{folder} holds no vocabulary ({error}); create one with psrun data vocabulary"
        raise ConfigError([Problem("data.vocabulary", message)]) from error
    missing = [file for file in files.values() if not file.exists()]
    if missing:
        raise DataError(f"{missing[0]} is missing; create the vocabulary again with psrun data vocabulary")
    return files, digest
