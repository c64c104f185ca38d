"""Generated rows with a known truth, and those in the layout of `psrun.recsys.data.criteo`."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from psrun import files
from psrun.errors import ConfigError

NUM_COUNTS = 13
NUM_CATEGORIES = 26
_ROWS_AT_ONCE = 10_000
_ODD = 2654435761  # times it, modulo 2**32, numbers that differ still differ, and look as hashes do


@dataclass(frozen=True)
class Recipe:
    """The options of the generated data.

    Attributes:
      num_examples, num_eval_examples: rows to train on and to evaluate on.
      num_values: how many values each of the 26 categories has; of histories, number of items.
      skew: the exponent of Zipf's law, by which values are more or less frequent; 0 for all the same.
      empty: the share of fields that are empty, of counts and of categories.
      signal: the standard deviation of the logit, about: skew, empty fields and chance change it.
    """

    num_examples: int
    num_eval_examples: int
    num_values: int = 1000
    skew: float = 1.1
    empty: float = 0.1
    signal: float = 1.5
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError for options out of their ranges."""
        ranges = (
            ("num_examples", self.num_examples >= 1, "1 or more"),
            ("num_eval_examples", self.num_eval_examples >= 0, "0 or more"),
            ("num_values", 1 <= self.num_values < 2**26, "from 1 to 67,108,863"),
            ("skew", self.skew >= 0, "0 or more"),
            ("empty", 0 <= self.empty < 1, "at least 0 and below 1"),
            ("signal", self.signal >= 0, "0 or more"),
            ("seed", self.seed >= 0, "0 or more"),
        )
        problems = [
            f"{name.replace('_', '-')} is {getattr(self, name)}, must be {bounds}"
            for name, is_good, bounds in ranges
            if not is_good
        ]
        if problems:
            raise ConfigError("; ".join(problems))

    def truth(self, rng: np.random.Generator) -> Truth:
        """The model that generates the rows."""
        return CriteoTruth(self, rng)


def zipf(num_values: int, skew: float) -> np.ndarray:
    """The cumulated probabilities of values by Zipf's law."""
    frequencies = np.arange(1, num_values + 1, dtype=np.float64) ** -skew
    return np.cumsum(frequencies / frequencies.sum())


def name_of(numbers: np.ndarray) -> np.ndarray:
    """32 bits for each of different numbers that look like hashes, all of them different."""
    return (numbers + 1) * _ODD % 2**32


class Truth(Protocol):
    """A known model that generates rows.

    Attributes:
      ending: of the names of the files.
      header: their first line; empty for none.
    """

    ending: str
    header: str

    def draw(self, rng: np.random.Generator, size: int) -> tuple[Any, np.ndarray]:
        """Rows, and the probability of a click (size,)."""
        ...

    def lines(self, labels: np.ndarray, rows: Any) -> Iterator[str]:
        """The rows as text."""
        ...


class CriteoTruth:
    """A logistic model: a weight for each value of each category, and a slope for the logarithm of each count."""

    ending = "tsv"
    header = ""

    def __init__(self, recipe: Recipe, rng: np.random.Generator) -> None:
        self._recipe = recipe
        self._cumulated = zipf(recipe.num_values, recipe.skew)
        # Of the two halves of the variance one is the categories' and one the counts'.
        self._weights = rng.normal(size=(NUM_CATEGORIES, recipe.num_values)) / np.sqrt(2 * NUM_CATEGORIES)
        self._slopes = rng.normal(size=NUM_COUNTS) / np.sqrt(2 * NUM_COUNTS)

    def draw(self, rng: np.random.Generator, size: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Counts (size, 13) and values (size, 26), -1 where empty, and the probability of a click (size,)."""
        recipe = self._recipe
        counts = np.floor(np.exp(rng.normal(1.0, 1.0, size=(size, NUM_COUNTS)))).astype(np.int64)
        values = np.searchsorted(self._cumulated, rng.random((size, NUM_CATEGORIES)))
        values = np.minimum(values, recipe.num_values - 1)
        counts[rng.random(counts.shape) < recipe.empty] = -1
        values[rng.random(values.shape) < recipe.empty] = -1
        weights = np.where(values < 0, 0.0, self._weights[np.arange(NUM_CATEGORIES), values])
        logit = weights.sum(1) + (np.log1p(np.maximum(counts, 0)) - 1.1) @ self._slopes
        return (counts, values), 1 / (1 + np.exp(-recipe.signal * logit))

    def lines(self, labels: np.ndarray, rows: tuple[np.ndarray, np.ndarray]) -> Iterator[str]:
        counts, values = rows
        names = name_of(np.arange(NUM_CATEGORIES) * 2**26 + values)
        for label, of_counts, of_values, of_names in zip(labels, counts.tolist(), values.tolist(), names.tolist()):
            fields = [str(label), *("" if count < 0 else str(count) for count in of_counts)]
            fields += ["" if value < 0 else f"{name:08x}" for value, name in zip(of_values, of_names)]
            yield "\t".join(fields) + "\n"


def write(folder: Path, recipe: Recipe, *, num_files: int = 1, zipped: bool = False) -> dict[str, float | None]:
    """Writes files `train-*`, `eval.*` and, last, `truth.json`, into a new folder.

    Returns:
      What `truth.json` holds under `bayes`: AUC and log loss of the true probabilities on the rows to evaluate on. No
      model can beat them but by chance. Labels that are all alike have no AUC: None.

    Raises:
      OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(recipe.seed)
    truth = recipe.truth(rng)
    least, more = divmod(recipe.num_examples, num_files)
    for index in range(num_files):
        size = least + (index < more)
        _write(folder / f"train-{index:05}-of-{num_files:05}.{truth.ending}", truth, rng, size, zipped)
    bayes: dict[str, float | None] = {}
    if recipe.num_eval_examples:
        probability, label = _write(folder / f"eval.{truth.ending}", truth, rng, recipe.num_eval_examples, zipped)
        bayes = {"auc": auc(label, probability), "loss": log_loss(label, probability)}
    content = {"recipe": asdict(recipe), "bayes": bayes}
    files.write_atomic(folder / "truth.json", json.dumps(content, indent=2) + "\n")
    return bayes


def _write(
    path: Path, truth: Truth, rng: np.random.Generator, size: int, zipped: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Writes one file; returns the probabilities and labels of its rows."""
    drawn = []
    path = path.with_name(path.name + ".gz") if zipped else path
    with path.open("wb") as raw, _zipping(raw) if zipped else contextlib.nullcontext(raw) as file:
        file.write(truth.header.encode())
        for begin in range(0, size, _ROWS_AT_ONCE):
            rows, probability = truth.draw(rng, min(_ROWS_AT_ONCE, size - begin))
            label = (rng.random(len(probability)) < probability).astype(np.int64)
            drawn.append((probability, label))
            file.write("".join(truth.lines(label, rows)).encode())
    return np.concatenate([each[0] for each in drawn]), np.concatenate([each[1] for each in drawn])


def _zipping(raw: BinaryIO) -> gzip.GzipFile:
    """Without name and time in it: the same rows make the same file."""
    return gzip.GzipFile("", "wb", compresslevel=4, fileobj=raw, mtime=0)


def auc(label: np.ndarray, score: np.ndarray) -> float | None:
    """The share of pairs of a positive and a negative that the score puts in the right order; ties count one half."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        return None
    return float((rank[label == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def log_loss(label: np.ndarray, probability: np.ndarray) -> float:
    """The mean of -log of the probability of the label."""
    return float(-np.log(np.where(label == 1, probability, 1 - probability)).mean())
