"""Generated clicks on items by users with a history of items, with a known truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from psrun import files
from psrun.errors import ConfigError
from psrun.tables import synthesis
from psrun.tables.synthesis import name_of, zipf

_INTERESTS = 3  # groups that a user is interested in
_OF_INTERESTS = 0.8  # share of the items of a history and of the targets that are from these groups


@dataclass(frozen=True)
class Recipe(synthesis.Recipe):
    """The options of the generated data.

    Attributes:
      num_groups: of the items.
      max_values: length of the longest history.
      skew: the exponent of Zipf's law for the items of a group; 0: uniform.
      empty: share of empty histories.
    """

    num_groups: int = 20
    max_values: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_groups <= self.num_values:
            raise ConfigError(f"num-groups is {self.num_groups}, must be from 1 to num-values={self.num_values}")
        if self.max_values < 1:
            raise ConfigError(f"max-values is {self.max_values}, must be 1 or more")

    def truth(self, rng: np.random.Generator) -> Truth:
        return Truth(self, rng)


class Rows(NamedTuple):
    """`items`: (n,); `history` and `seconds`: (n, max_values), of which the first `lengths` values of a row count."""

    items: np.ndarray
    history: np.ndarray
    seconds: np.ndarray
    lengths: np.ndarray


class Truth:
    """A click depends on how much the user liked the items of the target's group in his history.

    Each item has a quality. The logit is the sum of the qualities of these items, weighted by the seconds that the user
    spent on each, plus a bias of the target. Items of other groups do not matter, so that pooling the whole history
    loses what attention to the target's group keeps.
    """

    ending = "csv"
    header = "clicked,item,history,seconds\n"

    def __init__(self, recipe: Recipe, rng: np.random.Generator) -> None:
        self._recipe = recipe
        self._ranks = zipf(-(-recipe.num_values // recipe.num_groups), recipe.skew)
        self._quality = rng.normal(size=recipe.num_values)
        self._bias = rng.normal(size=recipe.num_values)

    def draw(self, rng: np.random.Generator, size: int) -> tuple[Rows, np.ndarray]:
        recipe = self._recipe
        interests = rng.integers(recipe.num_groups, size=(size, _INTERESTS))
        history, items = (self._items(rng, interests, count) for count in (recipe.max_values, 1))
        lengths = rng.integers(1, recipe.max_values + 1, size=size)
        lengths[rng.random(size) < recipe.empty] = 0
        seconds = np.round(rng.exponential(size=history.shape) + 0.01, 2)
        counts = (history % recipe.num_groups == items % recipe.num_groups) & (
            np.arange(recipe.max_values) < lengths[:, np.newaxis]
        )
        liked = np.where(counts, seconds * self._quality[history], 0.0).sum(1)
        # A quarter of half of the longest history is of the target's group; the mean square of the seconds is 2.
        liked /= np.sqrt(2 * 0.25 * (recipe.max_values + 1) / 2)
        logit = np.sqrt(0.8) * liked + np.sqrt(0.2) * self._bias[items[:, 0]]
        return Rows(items[:, 0], history, seconds, lengths), 1 / (1 + np.exp(-recipe.signal * logit))

    def _items(self, rng: np.random.Generator, interests: np.ndarray, count: int) -> np.ndarray:
        """Items (n, count); group g has the items g, g + num_groups, g + 2 num_groups, ..."""
        recipe = self._recipe
        shape = (len(interests), count)
        own = np.take_along_axis(interests, rng.integers(_INTERESTS, size=shape), 1)
        groups = np.where(rng.random(shape) < _OF_INTERESTS, own, rng.integers(recipe.num_groups, size=shape))
        sizes = (recipe.num_values - groups + recipe.num_groups - 1) // recipe.num_groups
        ranks = np.minimum(np.searchsorted(self._ranks, rng.random(shape)), sizes - 1)
        return ranks * recipe.num_groups + groups

    def lines(self, labels: np.ndarray, rows: Rows) -> Iterator[str]:
        names = np.char.mod("%08x", name_of(np.arange(self._recipe.num_values)))
        for index, (label, length) in enumerate(zip(labels.tolist(), rows.lengths.tolist())):
            history = "|".join(names[rows.history[index, :length]])
            seconds = "|".join(f"{value:g}" for value in rows.seconds[index, :length].tolist())
            yield f"{label},{names[rows.items[index]]},{history},{seconds}\n"


_COMMENT = "# A target item and a history of items per row, as written by psrun data synthesize --histories.\n"


def write_config(folder: Path, recipe: Recipe, eval_path: Path | None) -> Path:
    """Writes `items.txt`, a vocabulary, and `data/histories.yaml`, a choice of the group `data`; returns its path."""
    names = (f"{name:08x}\n" for name in name_of(np.arange(recipe.num_values)).tolist())
    files.write_atomic(folder / "items.txt", "".join(names))
    path = folder / "data" / "histories.yaml"
    path.parent.mkdir()
    words = {"dtype": "string", "vocabulary": str(folder.absolute() / "items.txt"), "table": "item"}
    content = {
        "defaults": ["table", "_self_"],
        "path": str(folder.absolute() / "train-*"),
        "eval_path": None if eval_path is None else str(eval_path.absolute()),
        "label": "clicked",
        "features": {
            "item": words,
            "history": {**words, "max_values": recipe.max_values, "weights": "seconds"},
        },
    }
    files.write_atomic(path, _COMMENT + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120))
    return path
