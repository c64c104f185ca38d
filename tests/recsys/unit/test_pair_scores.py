"""Scores of pairs and ranking among candidates where items are equal for the model, against NumPy in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from psrun.data.source import ArraySource, Feature
from psrun.parts import gathered_metric
from psrun.recsys import candidates, pair_scores
from psrun.recsys.candidates import CandidateRanking
from psrun.recsys.metrics.ranking import Examples, mean
from psrun.recsys.pair_scores import ItemVectors

pytestmark = pytest.mark.tensorflow

DIM = 9
METRICS = ("hit_rate@3", "recall@3", "ndcg@3", "mrr@3", "map@3")


@pytest.fixture(autouse=True)
def columns_differ(monkeypatch):
    """Products as of a processor on which columns, and batches of different sizes, differ in the last bits."""
    exact = tf.matmul

    def product(left: Any, right: Any, **options: Any) -> tf.Tensor:
        found = exact(left, right, **options)
        size = tf.shape(found)[-1]
        return found * (1 + tf.cast(tf.range(size) % 3, found.dtype) * 2e-7)

    monkeypatch.setattr(tf, "matmul", product)


def table(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of items, and the number of the distinct vector that each has."""
    rng = np.random.default_rng(count)
    number = {
        "all equal": np.zeros(count, np.int64),
        "many equal": rng.integers(0, 1 + count // 4, count),
        "no equal": rng.permutation(count),
    }[kind]
    return rng.normal(size=(count, DIM)).astype(np.float32)[number], number


@pytest.mark.parametrize("kind", ["all equal", "many equal", "no equal"])
@pytest.mark.parametrize(("users", "items"), [(1, 3), (2, 97), (5, 17), (31, 33), (64, 193)])
def test_items_with_equal_vectors_have_equal_scores(kind, users, items):
    vectors, number = table(kind, items)
    query = np.random.default_rng(users).normal(size=(users, DIM)).astype(np.float32)
    found = ItemVectors.of(vectors).products(query).numpy()
    assert found == pytest.approx(query.astype(np.float64) @ vectors.T.astype(np.float64), rel=1e-4, abs=1e-5)
    for each in range(number.max() + 1):
        equal = found[:, number == each]
        assert (equal == equal[:, :1]).all()
    best, _ = pair_scores.top(found, 3)
    assert best.tolist() == np.argsort(-found, axis=1, kind="stable")[:, :3].tolist()


def test_zeros_of_both_signs_are_equal():
    assert len(ItemVectors.of(np.array([[0.0, 1.0], [-0.0, 1.0]], np.float32)).distinct) == 1


def program(kind: str, users: int, items: int, count: int | str, *, has_towers: bool) -> tuple[Any, Any]:
    """A program of a model whose items have the vectors of `table`, and its scores in float64."""
    vectors, number = table(kind, items)
    query = np.random.default_rng(1).normal(size=(users, DIM)).astype(np.float32)
    rng = np.random.default_rng(2)
    every = np.arange(items)
    trained = {"user": every % users, "item": every}
    evaluated = {"user": rng.integers(0, users, 3 * users), "item": rng.integers(0, items, 3 * users)}
    ids = {"user": users, "item": items}
    features = {name: Feature((), tf.int64, vocabulary=tuple(range(size))) for name, size in ids.items()}
    parts = [(part, np.ones((len(part["user"]), 1), np.float32)) for part in (trained, evaluated)]
    source = ArraySource(features=features, task="regression", train=parts[0], evaluation=parts[1])

    def both(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"query": tf.gather(query, features["user"]), "item": tf.gather(vectors, features["item"])}

    def scores(features: dict[str, tf.Tensor], *, training: bool) -> tf.Tensor:
        """A network whose rows differ in the last bit by their places within each batch, but not at full batches."""
        values = both(features)
        product = tf.reduce_sum(values["query"] * values["item"], axis=1)
        rest = tf.shape(product)[0] % pair_scores._LEAST
        return product * (1 + tf.cast(tf.range(tf.shape(product)[0]) % (rest + 1), tf.float32) * 2e-7)

    towers = SimpleNamespace(item_features=("item",), vectors=lambda features, training: both(features))
    model = SimpleNamespace(towers=towers if has_towers else None, preprocessed=lambda each: each, network=scores)
    evaluation = SimpleNamespace(user="user", item="item", item_features=None, candidates=count, sampling="uniform")
    config = SimpleNamespace(evaluation=evaluation, seed=0)
    seen, relevant = ({*zip(part["user"].tolist(), part["item"].tolist())} for part in (trained, evaluated))
    made = SimpleNamespace(config=config, source=source, model=model, seen=seen, relevant=relevant)
    score = query.astype(np.float64) @ vectors.T.astype(np.float64)
    _, first, place = np.unique(number, return_index=True, return_inverse=True)
    return made, score[:, first[place]]


@pytest.mark.parametrize("has_towers", [True, False], ids=["towers", "network"])
@pytest.mark.parametrize("kind", ["all equal", "many equal"])
@pytest.mark.parametrize(("users", "items", "pairs"), [(5, 17, 1), (31, 97, 500), (64, 193, 1 << 22)])
def test_ranks_among_all_items_by_the_stated_rule_of_equal_scores(monkeypatch, kind, users, items, pairs, has_towers):
    monkeypatch.setattr(candidates, "_PAIRS", pairs)
    made, score = program(kind, users, items, "all", has_towers=has_towers)
    found = CandidateRanking(made, [gathered_metric(name) for name in METRICS]).result()["metrics"]
    lists = [
        (user, item)
        for user in sorted({user for user, _ in made.relevant})
        for item in range(items)
        if (user, item) in made.relevant or (user, item) not in made.seen
    ]
    user, item = (np.array(each) for each in zip(*lists))
    whole = Examples(user, np.array([float(pair in made.relevant) for pair in lists]), score[user, item])
    expected = {name: mean(*gathered_metric(name).values(whole)) for name in METRICS}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("has_towers", [True, False], ids=["towers", "network"])
def test_a_collapsed_model_gains_nothing_among_drawn_items(has_towers):
    made, _ = program("all equal", 31, 97, 5, has_towers=has_towers)
    metrics = [gathered_metric(name) for name in (*METRICS, "gauc")]
    found = CandidateRanking(made, metrics).result()["metrics"]
    assert found == dict.fromkeys(METRICS, 0) | {"gauc": 0.5}
