"""Lists of values, one per row, in a compact form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ENDS = ("first", "last")  # of a list, which may be kept where it is too long
COMBINERS = ("sum", "mean", "sqrtn", "max")  # of the rows of the values of a list


def weights_name(feature: str) -> str:
    """The name by which batches have the weights of the values of a list feature."""
    return f"{feature}_weights"


def length_name(feature: str) -> str:
    """The name of the lengths of a list feature among the inputs of an exported model, which are padded."""
    return f"{feature}_length"


@dataclass(frozen=True)
class Lists:
    """A list per row, of any length.

    Attributes:
      values: of all rows, one after the other; numbers or objects, one axis.
      splits: where the list of each row begins in `values`, and the end of the last one; int64, shape (rows + 1,).
    """

    values: np.ndarray
    splits: np.ndarray

    def __len__(self) -> int:
        return len(self.splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.splits)

    @property
    def width(self) -> int | None:
        """The number of values of each row; None if rows differ, if there are none, or if all are empty."""
        lengths = self.lengths
        return int(lengths[0]) if lengths.any() and (lengths == lengths[0]).all() else None


def of_lengths(values: np.ndarray, lengths: np.ndarray) -> Lists:
    return Lists(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
