"""Models whose features share a table, and whose tables have a width each."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from psrun.data.source import Feature
from psrun.recsys.models import tables
from psrun.recsys.models.wide_deep import wide_deep


def share(folder: Path, given: Any) -> None:
    """Makes the tables of a model in which features share tables as `given` says."""
    for name, words in (("one", "a\nb\n"), ("two", "b\na\n"), ("same", "a\nb\n")):
        (folder / f"{name}.txt").write_text(words)
    files = {"filed": "one", "other": "two", "same": "same"}
    words = {"clicked": "abc", "bought": "abc", "turned": "bac", "longer": "abcd", "wide": "abc"}
    features = {
        **{name: Feature((1,), tf.string, tuple(values)) for name, values in words.items()},
        **{name: Feature((1,), tf.string, folder / f"{file}.txt") for name, file in files.items()},
        "seen": Feature((1,), tf.string, num_buckets=9),
        "heard": Feature((1,), tf.string, num_buckets=8),
        "number": Feature((1,), tf.int64, num_buckets=9),
        "price": Feature((1,), tf.float32),
    }
    num_ids = dict.fromkeys([name for name in features if name != "price"], 4)
    make = functools.partial(tables.make_tables, SimpleNamespace(features=features), num_ids)
    dims = {"default": 4, "wide": 2}
    made = make(embedding_dim=dims, shared_tables={"a": ["clicked", "bought"], "b": ["filed", "same"]})
    assert [table.name for table in made[:2]] == ["a", "turned"]
    make(embedding_dim=dims, shared_tables=given)


def with_widths(embedding_dim: Any) -> Any:
    source = SimpleNamespace(
        features={"city": Feature((1,), tf.string, ("ulm", "bonn"))}, task="binary", num_classes=2, facts={}
    )
    return wide_deep(source, embedding_dim=embedding_dim)
