"""Metrics of ranked lists, one list for each user, of scores and labels in arrays.

A user's list is all examples of that user, by falling score. Of equal scores, examples that are less relevant come
first: a model that gives all items one score gains nothing, and no metric depends on the order of the examples. An
example is relevant if its label is more than 0 (or `relevant_from` or more). Users without a relevant example do not
count, unless `empty=zero`. Examples of weight 0 are left out; other weights matter only where a metric says so.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psrun.parts import GatheredMetric


class Examples:
    """Examples of users, ordered by user and rank.

    Args:
      user: (n,) integers that identify users.
      label, score: (n,); a label is a grade of relevance, 0 for none.
      weight: (n,) numbers of 0 or more; None for 1 each.

    Attributes:
      order: (m,) of those whose weight is not 0, their place in the arguments.
      user: (m,) the number of each one's user, from 0 on.
      first: (u + 1,) where the list of each user begins; the last value is m.
      rank: (m,) from 1 on, within the list.
      label, score, weight: (m,) in that order.

    Raises:
      ValueError: a score is NaN.
    """

    def __init__(
        self, user: np.ndarray, label: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None
    ) -> None:
        if num_nan := int(np.isnan(score).sum()):
            raise ValueError(f"{num_nan} of {len(score)} scores are NaN, which have no rank")
        order = np.lexsort((label, -score.astype(np.float64), user))
        if weight is not None:
            order = order[weight[order] > 0]
        users = user[order]
        is_first: np.ndarray = np.append(True, users[1:] != users[:-1])[: len(users)]
        self.order = order
        self.user = np.cumsum(is_first) - 1
        self.first: np.ndarray = np.append(np.flatnonzero(is_first), len(users))
        self.rank = self.place
        self.label = label[order].astype(np.float64)
        self.score = score[order]
        self.weight = np.ones(len(users)) if weight is None else weight[order].astype(np.float64)

    @property
    def place(self) -> np.ndarray:
        """(m,) from 1 on, the place of each example among those of its user here."""
        return np.arange(1, len(self.user) + 1) - self.first[self.user]

    @property
    def num_users(self) -> int:
        return len(self.first) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(u,) the number of examples of each user."""
        return np.diff(self.first)

    def aucs(self, relevant: np.ndarray) -> np.ndarray:
        """(u,) the AUC of each user's list; NaN without relevant or without other examples."""
        return auc_by_group(self.user, self.num_users, relevant, self.score, self.weight)

    def by_user(self, values: np.ndarray) -> np.ndarray:
        """(u,) the sums of values (m,) over the examples of each user."""
        return np.bincount(self.user, weights=values, minlength=self.num_users)

    @functools.cached_property
    def ideal(self) -> np.ndarray:
        """(m,) the labels in the order of the best possible lists: by user, falling."""
        return self.label[np.lexsort((-self.label, self.user))]


class RelevantExamples(Examples):
    """The relevant examples of lists that are not there as a whole, with their ranks in these.

    Args:
      user, label: (n,) as of `Examples`, of relevant examples.
      rank: (n,) in the list, from 1 on.
      num_higher, num_equal: (n,) how many of the list's other examples have a higher and an equal score.
      lengths: (n,) the number of examples in the list.
    """

    def __init__(
        self,
        user: np.ndarray,
        label: np.ndarray,
        rank: np.ndarray,
        num_higher: np.ndarray,
        num_equal: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        super().__init__(user, label, -rank.astype(np.float64))
        self.rank = rank[self.order]
        self._above = num_higher[self.order] + num_equal[self.order] / 2
        self._lengths = lengths[self.order][self.first[:-1]]

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths

    def aucs(self, relevant: np.ndarray) -> np.ndarray:
        others = self.lengths - np.diff(self.first)
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1 - self.by_user(self._above) / np.diff(self.first) / others


@dataclass(frozen=True)
class RankingMetric(GatheredMetric, abc.ABC):
    """A metric that is a mean over users.

    Attributes:
      relevant_from: an example is relevant from this label on; None: if its label is more than 0.
      empty: of users without a relevant example: skip, they do not count; zero, they count as 0.
      name: among the metrics of a run; by default that of the metric with its k, such as ndcg@10.
    """

    relevant_from: float | None = dataclasses.field(default=None, kw_only=True)
    empty: str = dataclasses.field(default="skip", kw_only=True)
    name: str = dataclasses.field(default="", kw_only=True)

    base: ClassVar[str]

    def __post_init__(self) -> None:
        _require("empty", self.empty, ("skip", "zero"))
        if not self.name:
            object.__setattr__(self, "name", self._usual_name)

    @property
    def _usual_name(self) -> str:
        return self.base

    def relevant(self, label: np.ndarray) -> np.ndarray:
        """Whether examples are relevant, by their labels."""
        return label > 0 if self.relevant_from is None else label >= self.relevant_from

    def values(self, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
        """The value and the weight of each user, (u,); the metric is their weighted mean. The weight of users that do
        not count is 0.
        """
        relevant = self.relevant(examples.label)
        num_relevant = examples.by_user(relevant)
        has_any = num_relevant > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            values = self._of_users(examples, relevant, num_relevant)
        return np.where(has_any, values, 0.0), (has_any | (self.empty == "zero")).astype(np.float64)

    @abc.abstractmethod
    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        """(u,) the value of each user; any number for users without a relevant example."""


@dataclass(frozen=True)
class _AtK(RankingMetric):
    """A metric of the first `k` examples of each list."""

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"k is {self.k!r}, must be an integer of 1 or more")

    @property
    def _usual_name(self) -> str:
        return f"{self.base}@{self.k}"

    def _hits(self, examples: Examples, relevant: np.ndarray) -> np.ndarray:
        """(u,) the number of relevant examples among the first k."""
        return examples.by_user(relevant & (examples.rank <= self.k))


@dataclass(frozen=True)
class HitRate(_AtK):
    """The share of users with a relevant example among the first k."""

    base = "hit_rate"

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        return self._hits(examples, relevant) > 0


@dataclass(frozen=True)
class Recall(_AtK):
    """The share of a user's relevant examples that are among the first k.

    Attributes:
      divisor: relevant: of all relevant ones; achievable: of at most k.
    """

    divisor: str = "relevant"

    base = "recall"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("divisor", self.divisor, ("relevant", "achievable"))

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        most = num_relevant if self.divisor == "relevant" else np.minimum(num_relevant, self.k)
        return self._hits(examples, relevant) / most


@dataclass(frozen=True)
class Precision(_AtK):
    """The share of relevant examples among the first k.

    Attributes:
      divisor: k: a shorter list counts as if filled with irrelevant ones; length: its own length, at most k.
    """

    divisor: str = "k"

    base = "precision"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("divisor", self.divisor, ("k", "length"))

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        size = self.k if self.divisor == "k" else np.minimum(examples.lengths, self.k)
        return self._hits(examples, relevant) / size


@dataclass(frozen=True)
class NDCG(_AtK):
    """Normalized discounted cumulative gain: the sum of gains / log2(rank + 1) of the first k, over that of the best
    possible list (Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002).

    Attributes:
      gain: linear: the label; exponential: 2^label - 1 (Burges et al. 2005). Equal for labels 0 and 1. Negative labels
        have no gain.
    """

    gain: str = "linear"

    base = "ndcg"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("gain", self.gain, ("linear", "exponential"))

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        found = examples.by_user(self._gains(examples.label) * self._discounts(examples.rank))
        best = examples.by_user(self._gains(examples.ideal) * self._discounts(examples.place))
        return np.where(best > 0, found / best, 0.0)

    def _discounts(self, rank: np.ndarray) -> np.ndarray:
        return np.where(rank <= self.k, 1 / np.log2(rank + 1), 0.0)

    def _gains(self, label: np.ndarray) -> np.ndarray:
        label = np.where(self.relevant(label), np.maximum(label, 0), 0).astype(np.float64)
        return label if self.gain == "linear" else np.exp2(label) - 1


@dataclass(frozen=True)
class MRR(_AtK):
    """The reciprocal rank of the first relevant example, 0 if it is not among the first k."""

    base = "mrr"

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(relevant)
        users, firsts = np.unique(examples.user[places], return_index=True)
        ranks = examples.rank[places[firsts]]
        values = np.zeros(examples.num_users)
        values[users] = np.where(ranks <= self.k, 1 / ranks, 0.0)
        return values


@dataclass(frozen=True)
class MAP(_AtK):
    """Mean average precision: the precision at the rank of each relevant example among the first k, summed.

    Attributes:
      divisor: achievable: by at most k relevant examples, so that the best list has 1; relevant: by all.
    """

    divisor: str = "achievable"

    base = "map"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("divisor", self.divisor, ("relevant", "achievable"))

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        totals = np.cumsum(relevant)
        before = np.append(0, totals)[examples.first[:-1]]
        hits = totals - before[examples.user]
        precisions = np.where(relevant & (examples.rank <= self.k), hits / examples.rank, 0.0)
        most = num_relevant if self.divisor == "relevant" else np.minimum(num_relevant, self.k)
        return examples.by_user(precisions) / most


@dataclass(frozen=True)
class GroupAUC(RankingMetric):
    """The mean of the AUCs of users who have relevant and other examples (Zhou et al., "Deep Interest Network", 2018).

    Of equal scores half of the pairs count. Weights of examples weigh the pairs.

    Attributes:
      users: how users are weighted: impressions: by the weights of their examples; equal: all alike.
    """

    users: str = "impressions"

    base = "gauc"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("users", self.users, ("impressions", "equal"))

    def values(self, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
        relevant = self.relevant(examples.label)
        values = examples.aucs(relevant)
        weights = examples.by_user(examples.weight) if self.users == "impressions" else np.ones(examples.num_users)
        is_defined = ~np.isnan(values)
        if self.empty == "skip":
            weights = np.where(is_defined, weights, 0.0)
        return np.where(is_defined, values, 0.0), weights

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        raise NotImplementedError  # `values` is all of it


@dataclass(frozen=True)
class OfItems(_AtK):
    """A metric of the items that are recommended, relevant or not; it needs all items as candidates."""

    @abc.abstractmethod
    def value(self, recommended: np.ndarray, popularity: np.ndarray) -> float:
        """The metric.

        Args:
          recommended: (users, k) numbers of items; -1 where a user has fewer candidates.
          popularity: (items,) the number of training examples of each.
        """

    def _of_users(self, examples: Examples, relevant: np.ndarray, num_relevant: np.ndarray) -> np.ndarray:
        raise NotImplementedError  # `value` is all of it


@dataclass(frozen=True)
class Coverage(OfItems):
    """The share of all items that are among the first k of some user."""

    base = "coverage"

    def value(self, recommended: np.ndarray, popularity: np.ndarray) -> float:
        return len(np.unique(recommended[recommended >= 0])) / len(popularity)


@dataclass(frozen=True)
class Popularity(OfItems):
    """The mean number of training examples of the first k items of all users, over that of the most popular item."""

    base = "popularity"

    def value(self, recommended: np.ndarray, popularity: np.ndarray) -> float:
        return float(popularity[recommended[recommended >= 0]].mean() / popularity.max())


def auc_by_group(
    group: np.ndarray, num_groups: int, positive: np.ndarray, score: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """(num_groups,) the area under the ROC curve of each group; NaN for one without both classes.

    The sum of the weights of pairs in which the positive example has the higher score, half for equal ones, over the
    sum of the weights of all pairs (Hanley and McNeil 1982).

    Args:
      group: (n,) integers from 0 on, ordered; within a group, scores fall.
      positive: (n,) bool.
    """
    if not len(group):
        return np.full(num_groups, np.nan)
    positives = np.where(positive, weight, 0.0)
    negatives = np.where(positive, 0.0, weight)
    is_new: np.ndarray = np.append(True, (score[1:] != score[:-1]) | (group[1:] != group[:-1]))
    firsts = np.flatnonzero(is_new)
    of_equal = group[firsts]
    equal_positives = np.add.reduceat(positives, firsts)
    equal_negatives = np.add.reduceat(negatives, firsts)
    total_positives = np.bincount(of_equal, equal_positives, num_groups)
    total_negatives = np.bincount(of_equal, equal_negatives, num_groups)
    reached = np.cumsum(equal_negatives)
    before = np.append(0.0, np.cumsum(total_negatives))[of_equal]
    below = total_negatives[of_equal] - (reached - before)
    won = np.bincount(of_equal, equal_positives * (below + equal_negatives / 2), num_groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        return won / (total_positives * total_negatives)


def mean(values: np.ndarray, weights: np.ndarray) -> float | None:
    """The weighted mean; None without weights, as where no user counts."""
    total = weights.sum()
    return float((values * weights).sum() / total) if total > 0 else None


def _require(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{option} is {value!r}, must be one of {', '.join(choices)}")
