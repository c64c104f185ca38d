"""The names that TensorFlow's strategies give to the shards of a variable (TensorFlow 2.21). Imports no TensorFlow."""

from __future__ import annotations

import re
from typing import Any

_SHARD = re.compile(r"^(?P<variable>.+)/part_(?P<shard>\d+)$")


def split_name(name: str) -> tuple[str, int]:
    """'table/part_1:0' is shard 1 of 'table'."""
    name = name.partition(":")[0]
    match = _SHARD.match(name)
    return (match["variable"], int(match["shard"])) if match else (name, 0)


def name_of(variable: Any) -> str:
    """The name of a variable, whole or in shards; for a shard, the name of its variable."""
    return split_name((getattr(variable, "variables", None) or [variable])[0].name)[0]
