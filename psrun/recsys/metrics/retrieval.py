"""Ranks of relevant items among all candidates of each user, from scores of all pairs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

_COUNTED = 4  # relevant items of a user, on average, up to which counting is faster than sorting


@dataclass(frozen=True)
class Pairs:
    """Pairs of a user and an item, ordered by user.

    Attributes:
      user, item: (n,) numbers from 0 on.
    """

    user: np.ndarray
    item: np.ndarray

    @classmethod
    def of(cls, user: np.ndarray, item: np.ndarray) -> Pairs:
        """The distinct pairs."""
        order = np.lexsort((item, user))
        user, item = user[order], item[order]
        is_new: np.ndarray = np.append(True, (user[1:] != user[:-1]) | (item[1:] != item[:-1]))[: len(user)]
        return cls(user[is_new], item[is_new])

    def of_users(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The users and the items of the pairs of the users from `first` to before `last`."""
        begin = np.searchsorted(self.user, first)
        end = np.searchsorted(self.user, last)
        return self.user[begin:end], self.item[begin:end]


def ranks(
    scores: np.ndarray, relevant: tuple[np.ndarray, np.ndarray], excluded: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each relevant pair, in their order: its rank, from 1 on, and how many of its user's other candidates have a
    score that is at least as high, and higher: (n,) each. Of equal scores, what is not relevant comes first.

    Args:
      scores: (users, items); overwritten.
      relevant: the numbers of users and items, ordered by user.
      excluded: pairs that are no candidates, unless they are relevant.

    Raises:
      ValueError: a score is NaN.
    """
    if np.isnan(scores).any():
        raise ValueError("scores are NaN, which have no rank")
    user, item = relevant
    own = scores[user, item].copy()
    scores[excluded] = -np.inf
    scores[user, item] = -np.inf
    if len(user) <= _COUNTED * len(scores):
        equal_or_higher = _counted(scores, user, own, np.greater_equal)
        higher = _counted(scores, user, own, np.greater)
    else:
        scores.sort(axis=1)
        equal_or_higher = np.empty(len(user), np.int64)
        higher = np.empty(len(user), np.int64)
        firsts: list[int] = np.searchsorted(user, np.arange(len(scores) + 1)).tolist()  # type: ignore[assignment]
        for row, (begin, end) in enumerate(itertools.pairwise(firsts)):
            equal_or_higher[begin:end] = scores.shape[1] - np.searchsorted(scores[row], own[begin:end], "left")
            higher[begin:end] = scores.shape[1] - np.searchsorted(scores[row], own[begin:end], "right")
    # Relevant items of the same user that come before.
    order = np.lexsort((-own, user))
    place: np.ndarray = np.empty(len(user), np.int64)
    place[order] = np.arange(len(user)) - np.searchsorted(user, user)
    return 1 + equal_or_higher + place, equal_or_higher, higher


def _counted(scores: np.ndarray, user: np.ndarray, own: np.ndarray, compare: np.ufunc) -> np.ndarray:
    """Compares the relevant items of all users that are the first of theirs, then the second, and so on."""
    counts: np.ndarray = np.empty(len(user), np.int64)
    number = np.arange(len(user)) - np.searchsorted(user, user)
    for each in range(int(number.max(initial=-1)) + 1):
        chosen = np.flatnonzero(number == each)
        rows = scores if len(chosen) == len(scores) else scores[user[chosen]]
        counts[chosen] = np.count_nonzero(compare(rows, own[chosen, np.newaxis]), axis=1)
    return counts
