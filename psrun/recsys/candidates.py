"""Ranks the items of evaluation examples among candidates: all items, or negatives that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.recsys import interactions, pair_scores
from psrun.recsys.metrics import estimates, retrieval
from psrun.recsys.metrics.ranking import OfItems, RankingMetric, RelevantExamples

_PAIRS = 1 << 22  # scores in memory at a time
_DRAWN_PAIRS = 1 << 18  # whose vectors are in memory at a time
_DRAWS = 1000  # to replace negatives that a user has in an example


class CandidateRanking:
    """The metrics of lists in which each user's relevant evaluation items are ranked among candidates.

    With all items as candidates, the list of a user has all items but those of his training examples, unless these are
    relevant. With drawn negatives, each relevant item has a list of its own. The other items of the list are in none of
    the user's examples. The seed of the run draws them, so that they are the same for every model.

    Attributes:
      warnings: lines about held-out items that a person should know to read the metrics.

    Raises:
      ConfigError: the data lacks a feature, or a list is longer than there are items.
    """

    def __init__(self, program: Program, metrics: list[RankingMetric]) -> None:
        evaluation = program.config.evaluation
        self._metrics = metrics
        self._seed = program.config.seed
        num_drawn = None if evaluation.candidates == "all" else int(evaluation.candidates or 0)
        known = interactions.of_run(evaluation, program.source, program.model)
        if num_drawn is not None and num_drawn >= known.num_items:
            message = f"is {num_drawn}, but there are {known.num_items} items; choose all"
            raise ConfigError([Problem("evaluation.candidates", message)])
        num_candidates = known.num_items if num_drawn is None else num_drawn + 1
        by_relevance = [metric for metric in metrics if not isinstance(metric, OfItems)]
        if len({metric.relevant_from for metric in by_relevance}) > 1:
            message = (
                "has metrics that differ in relevant_from, but one list of candidates has one kind of relevant items"
            )
            raise ConfigError([Problem("model.metrics", message)])
        for metric in metrics:
            if getattr(metric, "k", 0) > num_candidates:
                message = f"{metric.name} needs more items than the {num_candidates} candidates of a list"
                raise ConfigError([Problem("model.metrics", message)])
        self._known = known
        self._scores = pair_scores.PairScores(program.model, known)
        self._by_popularity = evaluation.sampling == "popularity"
        user, item = known.evaluated
        relevant = (known.weight > 0) & [*by_relevance, *metrics][0].relevant(known.label)
        self._relevant = retrieval.Pairs.of(user[relevant], item[relevant])
        keys = user[relevant] * known.num_items + item[relevant]
        place = np.searchsorted(self._relevant.user * known.num_items + self._relevant.item, keys)
        if not len(self._relevant.user):
            raise ConfigError(
                [Problem("evaluation.candidates", "no evaluation example is relevant: their labels or weights are 0")]
            )
        self._label: np.ndarray = np.zeros(len(self._relevant.user))
        np.maximum.at(self._label, place, known.label[relevant])  # an item that is there twice is one item
        self._negatives = None if num_drawn is None else self._drawn(num_drawn)
        self.warnings: tuple[str, ...] = ()
        num_repeated = int(np.isin(keys, known.trained.user * known.num_items + known.trained.item).sum())
        if num_repeated and num_drawn is None:
            self.warnings = (_repeats(num_repeated, len(keys)),)

    def result(self, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """As `KeptExamples.result`.

        Args:
          progress: called for each part of the users, and of the bootstrap.
        """
        self._scores.refresh()
        of_items: dict[str, float | None] = {}
        try:
            if self._negatives is None:
                examples, recommended = self._among_all(progress)
                of_items = self._of_items(recommended)
            else:
                examples = self._among_drawn(self._negatives, progress)
        except ValueError as error:
            raise ConfigError([Problem("evaluation", f"cannot rank the predictions: {error}")]) from error
        of_lists = [each for each in self._metrics if each.name not in of_items]
        users = None if self._negatives is None else self._relevant.user
        result = estimates.of_lists(examples, of_lists, users, progress)
        return {**result, "metrics": {**result["metrics"], **of_items}, "share_of_users": 1.0, "segments": []}

    def _among_all(self, progress: Callable[[], None]) -> tuple[RelevantExamples, np.ndarray]:
        """The relevant items with their ranks, and the first items of each list: (users, k)."""
        known = self._known
        longest = max((each.k for each in self._metrics if isinstance(each, OfItems)), default=0)
        found = []
        lengths = []
        firsts = []
        users = np.unique(self._relevant.user)
        size = max(1, _PAIRS // known.num_items)
        for at in range(0, len(users), size):
            chosen = users[at : at + size]
            user, item = self._relevant.of_users(int(chosen[0]), int(chosen[-1]) + 1)
            seen_user, seen_item = known.trained.of_users(int(chosen[0]), int(chosen[-1]) + 1)
            is_excluded = np.isin(seen_user, chosen) & ~np.isin(
                seen_user * known.num_items + seen_item, user * known.num_items + item
            )
            row: np.ndarray = np.searchsorted(chosen, user)  # type: ignore[assignment]
            excluded_row: np.ndarray = np.searchsorted(chosen, seen_user[is_excluded])  # type: ignore[assignment]
            excluded = excluded_row, seen_item[is_excluded]
            scores = self._scores.of_all_items(chosen)
            if longest:
                first, first_scores = pair_scores.top(scores, longest, excluded)
                firsts.append(np.where(np.isfinite(first_scores), first, -1))
            found.append(retrieval.ranks(scores, (row, item), excluded))
            progress()
            num_excluded = np.bincount(excluded[0], minlength=len(chosen))
            lengths.append((known.num_items - num_excluded)[row])
        rank, equal_or_higher, higher = (np.concatenate(each) for each in zip(*found))
        relevant = RelevantExamples(
            self._relevant.user, self._label, rank, higher, equal_or_higher - higher, np.concatenate(lengths)
        )
        return relevant, np.concatenate(firsts) if firsts else np.zeros((len(users), 0), np.int64)

    def _of_items(self, recommended: np.ndarray) -> dict[str, float | None]:
        """The metrics of what is recommended, whether it is relevant or not."""
        return {
            metric.name: metric.value(recommended[:, : metric.k], self._known.popularity)
            for metric in self._metrics
            if isinstance(metric, OfItems)
        }

    def _among_drawn(self, negatives: np.ndarray, progress: Callable[[], None]) -> RelevantExamples:
        count, width = negatives.shape
        higher: np.ndarray = np.empty(count, np.int64)
        equal: np.ndarray = np.empty(count, np.int64)
        size = max(1, _DRAWN_PAIRS // width)
        for at in range(0, count, size):
            part = slice(at, at + size)
            user = self._relevant.user[part]
            items = np.column_stack([self._relevant.item[part], negatives[part]])
            scores = self._scores.of_pairs(np.repeat(user, 1 + width), items.reshape(-1)).reshape(items.shape)
            if np.isnan(scores).any():
                raise ValueError("scores are NaN, which have no rank")
            own = scores[:, :1]
            others = scores[:, 1:]
            higher[part] = (others > own).sum(1)
            equal[part] = (others == own).sum(1)
            progress()
        return RelevantExamples(
            np.arange(count), self._label, 1 + higher + equal, higher, equal, np.full(count, width + 1)
        )

    def _drawn(self, count: int) -> np.ndarray:
        """(relevant, count) items that the user of each relevant pair has in no example."""
        known = self._known
        random = np.random.default_rng(self._seed)
        shares = known.popularity / known.popularity.sum() if self._by_popularity else None
        taken = retrieval.Pairs.of(
            np.concatenate([known.trained.user, known.evaluated[0]]),
            np.concatenate([known.trained.item, known.evaluated[1]]),
        )
        keys = taken.user * known.num_items + taken.item
        drawn: np.ndarray = np.empty((len(self._relevant.user), count), np.int64)
        size = max(1, _DRAWN_PAIRS // count)
        for at in range(0, len(drawn), size):
            part = drawn[at : at + size]
            user: np.ndarray = self._relevant.user[at : at + size, np.newaxis] * known.num_items
            wrong: np.ndarray = np.ones(part.shape, bool)
            for _ in range(_DRAWS):
                part[wrong] = random.choice(known.num_items, int(wrong.sum()), p=shares)
                wrong = np.isin(user + part, keys) | _repeated(part)
                if not wrong.any():
                    break
            else:
                raise self._too_few()
        return drawn

    def _too_few(self) -> ConfigError:
        message = "some users have nearly all items in examples, so that no negatives can be drawn; choose all"
        return ConfigError([Problem("evaluation.candidates", message)])


def _repeats(count: int, total: int) -> str:
    """The warning about held-out interactions with an item that the user has among the training examples."""
    which = "interaction is" if total == 1 else "interactions are"
    return (
        f"evaluation.candidates=all: {count:,} of {total:,} held-out {which} with an item that the user also has in "
        "the training. The metrics rank this item, without the user's other items of the training. psrun predict "
        "predict.top_k leaves out all of them, so its lists find less than the metrics say. To measure what it "
        "recommends, keep one row for each user and item"
    )


def _repeated(rows: np.ndarray) -> np.ndarray:
    """Whether a value is in its row before."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    is_again: np.ndarray = np.zeros(rows.shape, bool)
    is_again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    found: np.ndarray = np.empty(rows.shape, bool)
    np.put_along_axis(found, order, is_again, axis=1)
    return found
