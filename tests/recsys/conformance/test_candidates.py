"""Ranking among candidates, and the models for it, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import run_config

from psrun.cluster import strategy
from psrun.cluster.strategy import Distribution
from psrun.data.source import ArraySource, Feature
from psrun.errors import ConfigError
from psrun.parts import gathered_metric
from psrun.program.build import build_program, build_state, start_afresh
from psrun.program.compiled_model import Program
from psrun.recsys import interactions
from psrun.recsys.metrics.ranking import NDCG, Examples, mean
from psrun.recsys.models.in_batch import InBatchSoftmax
from psrun.training import evaluators

pytestmark = pytest.mark.inprocess

NUM_USERS, NUM_ITEMS, TRAINED, EVALUATED = 9, 13, 60, 25
METRICS = ("recall@3", "ndcg@3", "mrr@4", "map@4", "gauc")
OTHER = "{_target_: psrun.recsys.metrics.ranking.NDCG, k: 3, gain: exponential, name: other}"
BASE = (
    "data.global_batch_size=8", "evaluation.user=user", "evaluation.item=item", "optimizer=sgd",
    "optimizer.learning_rate=0.1",
)  # fmt: skip
LISTS = f"model.metrics=[{','.join(METRICS)},{OTHER}]"
MODELS = {
    "matrix_factorization": ("model=matrix_factorization", "model.user=user", "model.item=item"),
    "two_tower": ("model=two_tower", "model.query_features=[user,age]", "model.item=item", "model.objective=softmax"),
    "wide_deep": ("model=wide_deep", "evaluation.item_features=[item,price]"),
}  # fmt: skip


class Ratings(ArraySource):
    """Ratings 1 to 5; an item has one price."""

    def __init__(self, **_: Any) -> None:
        rng = np.random.default_rng(0)
        price = rng.random(NUM_ITEMS).astype(np.float32)

        def part(size: int) -> Any:
            user, item = rng.integers(0, NUM_USERS, size), rng.integers(0, NUM_ITEMS, size)
            features = {"user": user, "age": (user / 10).astype(np.float32), "item": item, "price": price[item]}
            return features, rng.integers(1, 6, (size, 1)).astype(np.float32)

        self.parts = part(TRAINED), part(EVALUATED)
        ids = {"user": NUM_USERS, "item": NUM_ITEMS}
        features = {name: Feature((), tf.int64, vocabulary=tuple(range(size))) for name, size in ids.items()}
        numbers = {name: Feature((), tf.float32) for name in ("age", "price")}
        super().__init__(
            features={**features, **numbers}, task="regression", train=self.parts[0], evaluation=self.parts[1]
        )


def built(spec: Any, *arguments: str, metrics: str = LISTS) -> Program:
    run = run_config("data=features", *arguments, *BASE, metrics)
    distribution = Distribution(tf.distribute.get_strategy())
    if run.cluster.has_parameter_servers:
        distribution = strategy.parameter_servers(spec, run.partitioner)
    start_afresh(1)
    program = build_program(run, Ratings(), distribution)
    build_state(program)
    return program


def scores(program: Program, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """By the network, pair by pair."""
    features, _ = program.source.parts[0]
    price = dict(zip(features["item"].tolist(), features["price"].tolist()))
    price |= dict(zip(*(program.source.parts[1][0][name].tolist() for name in ("item", "price"))))
    batch = {
        "user": users, "age": (users / 10).astype(np.float32), "item": items,
        "price": np.array([price.get(item, 0.0) for item in items.tolist()], np.float32),
    }  # fmt: skip
    tensors = {name: tf.constant(values) for name, values in batch.items()}
    network = tf.function(lambda batch: program.network(program.model.preprocessed(batch)))
    outputs = [network({name: each[at : at + 1] for name, each in tensors.items()}) for at in range(len(users))]
    return np.array([float(tf.squeeze(each)) for each in outputs])


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("matrix_factorization", "none"), ("two_tower", "inprocess"), ("wide_deep", "none")],
)
def test_relevant_items_are_ranked_among_all_that_the_user_has_not_seen(cluster_spec, name, cluster):
    arguments = [*MODELS[name], f"cluster={cluster}", "evaluation.candidates=all"]
    if cluster == "inprocess":
        arguments += ["partitioner=fixed_shards", "evaluation=exact"]
    program = built(cluster_spec[1], *arguments)
    evaluation = evaluators.make(program).evaluate(0, lambda: None)
    (trained, _), (evaluated, ratings) = program.source.parts
    known = sorted({*trained["item"].tolist(), *evaluated["item"].tolist()})
    seen = set(zip(trained["user"].tolist(), trained["item"].tolist()))
    relevant: dict[tuple[int, int], float] = {}
    for *pair, rating in zip(evaluated["user"].tolist(), evaluated["item"].tolist(), ratings[:, 0].tolist()):
        relevant[tuple(pair)] = max(rating, relevant.get(tuple(pair), 0))
    pairs = [
        (user, item)
        for user in sorted({user for user, _ in relevant})
        for item in known
        if (user, item) in relevant or (user, item) not in seen
    ]
    users, items = (np.array(each) for each in zip(*pairs))
    label = np.array([relevant.get(pair, 0) for pair in pairs])
    whole = Examples(users, label, scores(program, users, items).astype(np.float32))
    expected = {each: mean(*gathered_metric(each).values(whole)) for each in METRICS if each != "gauc"}
    expected["other"] = mean(*NDCG(3, gain="exponential").values(whole))
    assert {each: evaluation.metrics[each] for each in expected} == pytest.approx(expected, abs=1e-6)
    assert evaluation.estimates[""]["users"] == len(set(users.tolist()))
    repeated = sum(pair in seen for pair in zip(evaluated["user"].tolist(), evaluated["item"].tolist()))
    (warning,) = evaluation.warnings
    assert f"{repeated} of {EVALUATED} held-out interactions are with an item that the user also has" in warning


@pytest.mark.parametrize("sampling", ["uniform", "popularity"])
def test_drawn_candidates_are_the_same_for_every_model_and_none_is_of_an_example(cluster_spec, sampling):
    drawn = []
    for name in MODELS:
        candidates = ("evaluation.candidates=3", f"evaluation.sampling={sampling}", "cluster=none")
        program = built(None, *MODELS[name], *candidates)
        ranking = evaluators.make(program)._meters._gathered[0]._ranking
        assert set(ranking.result()["metrics"]) == {*METRICS, "other"}
        assert not ranking.warnings
        assert all(len({*row}) == 3 for row in ranking._negatives.tolist())
        drawn.append(ranking._negatives)
    assert all((each == drawn[0]).all() for each in drawn)
    known = ranking._known
    own = {*zip(known.trained.user, known.trained.item), *zip(*known.evaluated)}
    assert own.isdisjoint(zip(np.repeat(ranking._relevant.user, 3), drawn[0].reshape(-1)))


def test_mistakes_that_the_data_shows(cluster_spec):
    for arguments, message in (
        (("evaluation.candidates=all", "evaluation.item=itme"), "Did you mean 'item'"),
        (("evaluation.candidates=2",), "needs more items than the 3 candidates"),
        (("evaluation.candidates=13",), "there are 13 items"),
        (("evaluation.candidates=all", "evaluation.user=item"), "as is evaluation.user"),
        (("evaluation.candidates=all", "evaluation.user=price"), "numbers with fractions"),
        (("evaluation.candidates=all", "model.metrics=[recall@14]"), "than the 13 candidates"),
        (("evaluation.candidates=all", "evaluation.item=user", "model.metrics=[mrr@3]"), "no feature of items"),
    ):
        run = run_config("data=features", *MODELS["matrix_factorization"], "cluster=none",
                         *BASE, LISTS, *arguments)  # fmt: skip
        program = build_program(run, Ratings(), Distribution(tf.distribute.get_strategy()))
        build_state(program)
        with pytest.raises(ConfigError, match=message):
            evaluators.make(program)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.metrics=[AUC,recall@3]",), "a metric of probabilities, but the model returns scores"),
        (("model.loss=mse",), "the softmax over a batch is the whole loss"),
        (("model.class_weight={0: 1, 1: 2}",), "class_weight"),
        (("model.temperature=0",), "must be more than 0"),
    ],
)
def test_what_scores_do_not_have(arguments, message):
    run = run_config(
        "data=features", *MODELS["two_tower"], "cluster=none", *BASE, LISTS, "evaluation.candidates=all", *arguments
    )
    with pytest.raises(ConfigError, match=message):
        build_program(run, Ratings(), Distribution(tf.distribute.get_strategy()))


@pytest.mark.parametrize(
    ("arguments", "compared_by"),
    [
        (("model.metrics=[coverage@3,recall@3,ndcg@3]",), ("val_recall@3", "max")),
        (("model.metrics=[coverage@3]",), ("val_loss", "min")),
        ((f"model.metrics=[{OTHER}]",), ("val_loss", "min")),
        (("early_stopping.metric=val_loss", "early_stopping.mode=min"), ("val_loss", "min")),
        (("model.metrics=null", "evaluation.candidates=null"), ("val_loss", "min")),
    ],
)
def test_the_first_metric_of_lists_says_which_evaluation_is_the_best(arguments, compared_by):
    run = run_config(
        "data=features", *MODELS["two_tower"], "cluster=none", *BASE, LISTS, "evaluation.candidates=all", *arguments
    )
    assert run.compared_by == compared_by


class OwnNDCG(NDCG):
    """A metric of lists that the configuration does not know as one."""


@pytest.mark.parametrize(
    ("evaluation", "cluster", "message"),
    [
        (("evaluation=validation", "trainer=fit"), "none", "cannot group examples as ndcg@3 needs"),
        (("evaluation=distributed",), "inprocess", "ndcg@3 needs each example once"),
    ],
)
def test_evaluations_that_cannot_group_examples_refuse_metrics_of_lists(cluster_spec, evaluation, cluster, message):
    metrics = f"model.metrics=[{{_target_: {__name__}.OwnNDCG, k: 3}}]"
    program = built(cluster_spec[1], *MODELS["wide_deep"], f"cluster={cluster}", *evaluation, metrics=metrics)
    with pytest.raises(ConfigError, match=message):
        evaluators.make(program)


def test_features_of_a_user_are_of_the_first_evaluation_example_or_the_last_one_trained_on():
    source = Ratings()
    (trained, _), (evaluated, _) = source.parts
    trained["age"] = np.arange(TRAINED, dtype=np.float32)
    evaluated["age"] = -np.arange(EVALUATED, dtype=np.float32) - 1
    read = Ratings.__new__(Ratings)
    ArraySource.__init__(
        read, features=source.features, task="regression", train=source.parts[0], evaluation=source.parts[1]
    )
    known = interactions.read(read, "user", "item", ["item", "price"])
    for user, age in zip(known.users["user"].numpy().tolist(), known.users["age"].numpy().tolist()):
        held_out = np.flatnonzero(evaluated["user"] == user)
        expected = -held_out[0] - 1 if len(held_out) else np.flatnonzero(trained["user"] == user)[-1]
        assert age == expected
    price = dict(zip(trained["item"].tolist(), trained["price"].tolist()))
    of_items = zip(*(known.items[name].numpy().tolist() for name in ("item", "price")))
    assert all(price.get(item, own) == own for item, own in of_items)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_softmax_over_a_batch_is_its_formula_and_counts_items(normalize):
    rng = np.random.default_rng(1)
    query, item = (rng.normal(size=(5, 3)).astype(np.float32) for _ in range(2))
    ids = np.array([2, 0, 2, 1, 3])
    layer = InBatchSoftmax(4, temperature=0.5, normalize=normalize)
    layer((query, item, ids), training=True)  # which has seen nothing yet
    predicted = layer((query, item, ids), training=True).numpy()[:, 0]
    if normalize:
        query, item = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (query, item))
    score = query @ item.T / 0.5
    assert predicted == pytest.approx(np.diag(score), rel=1e-5)
    share = (np.bincount(ids, minlength=4) + 1) / (5 + 4)
    logit = score - np.log(share[ids])
    logit[[0, 2], [2, 0]] = -np.inf
    losses = np.log(np.exp(logit).sum(1)) - np.diag(logit)
    assert float(layer.losses[0]) == pytest.approx(losses.mean(), rel=1e-5)
    assert layer.counts.numpy().tolist() == [[2, 2, 4, 2]]
