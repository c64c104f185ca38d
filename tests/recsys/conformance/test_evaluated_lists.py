"""Metrics of lists and segments that an evaluation gathers are those of all examples at once."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import run_config

from psrun.cluster import strategy
from psrun.data.source import ArraySource, Feature
from psrun.models.model import Model
from psrun.parts import gathered_metric
from psrun.program.build import build_program, build_state, start_afresh
from psrun.recsys.metrics.ranking import Examples, mean
from psrun.training import evaluators

pytestmark = pytest.mark.inprocess

NUM_EXAMPLES, BATCH = 21, 8  # the last batch is a small one
SHARDED = ("cluster=inprocess", "partitioner=fixed_shards")
LISTS = ("ndcg@3", "hit_rate@1", "mrr@5", "gauc")


class Clicks(ArraySource):
    """Weighted clicks of users of several countries, in another order than that of the users."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.x = rng.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
        self.user = rng.integers(0, 5, size=NUM_EXAMPLES)
        self.country = np.array([b"de", b"fr"])[rng.integers(0, 2, size=NUM_EXAMPLES)]
        self.clicked = (self.x[:, 0] + rng.normal(size=NUM_EXAMPLES) > 0).astype(np.float32)
        self.weights = rng.integers(0, 4, size=NUM_EXAMPLES).astype(np.float32)
        age = rng.random(NUM_EXAMPLES).astype(np.float32)
        raw = {"x": self.x, "user": self.user, "country": self.country, "age": age}
        examples = (raw, self.clicked[:, np.newaxis], self.weights)
        features = {"x": Feature((4,), tf.float32), "user": Feature((), tf.int64)}
        features |= {"country": Feature((), tf.string), "age": Feature((), tf.float32)}
        super().__init__(features=features, task="binary", train=examples, evaluation=examples)


def network(source: Clicks) -> Model:
    x = tf_keras.Input((4,), name="x")
    return Model(tf_keras.Model({"x": x}, tf_keras.layers.Dense(1, "sigmoid", name="click")(x)))


@pytest.mark.parametrize(("way", "num_workers"), [("direct", 1), ("exact", 1), ("exact", 2)])
def test_metrics_of_lists_and_segments_are_those_of_all_examples_at_once(cluster_spec, way, num_workers):
    start_afresh(1)
    run = run_config(
        "model=dense", "~model.hidden_units", f"model._target_={__name__}.network",
        f"data.global_batch_size={BATCH}", *SHARDED, f"evaluation={way}", "evaluation.user=user",
        "evaluation.by=[country,age]", f"model.metrics=[AUC,{','.join(LISTS)}]",
    )  # fmt: skip
    source = Clicks()
    program = build_program(run, source, strategy.parameter_servers(cluster_spec[num_workers], run.partitioner))
    build_state(program)
    assert program.metric_names == ["auc"]  # of lists there are none in training
    evaluation = evaluators.make(program).evaluate(0, lambda: None)
    score = program.network(tf.constant(source.x)).numpy()[:, 0]

    def expected(chosen: np.ndarray) -> dict[str, float | None]:
        columns = (column[chosen] for column in (source.user, source.clicked, score, source.weights))
        examples = Examples(*columns)
        return {name: mean(*gathered_metric(name).values(examples)) for name in LISTS}

    found = {name: evaluation.metrics[name] for name in LISTS}
    assert found == pytest.approx(expected(source.user >= 0), abs=1e-6)
    whole = evaluation.estimates[""]
    assert whole["metrics"]["auc"] == evaluation.metrics["auc"]
    assert (whole["examples"], whole["share_of_users"]) == (np.count_nonzero(source.weights), 1)
    assert all(low <= whole["metrics"][name] <= high for name, (low, high) in whole["intervals"].items())
    assert [each["column"] for each in whole["segments"]] == ["country"] * 2 + ["age"] * len(whole["segments"][2:])
    for segment in whole["segments"][:2]:
        chosen = source.country == segment["value"].encode()
        assert {name: segment["metrics"][name] for name in LISTS} == pytest.approx(expected(chosen), abs=1e-6)
