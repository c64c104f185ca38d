"""psrun beside the same programs written by hand: equal to 5 digits in all variables, slots and metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import oracles
import pytest
import tensorflow as tf
from bounds import BOUND_S
from outcomes import of_model
from support import HARNESS
from tf_keras.optimizers import SGD, RMSprop, schedules

KEYS = (
    "~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "data._target_=oracles.Ordered",
    "data.global_batch_size=16", "trainer.epochs=2", "trainer.steps_per_epoch=8", "trainer.steps_per_execution=1",
)  # fmt: skip
DECAY = (
    "+optimizer.learning_rate._target_=tf_keras.optimizers.schedules.ExponentialDecay",
    "+optimizer.learning_rate.initial_learning_rate=0.1", "+optimizer.learning_rate.decay_steps=3",
    "+optimizer.learning_rate.decay_rate=0.7",
)  # fmt: skip
IMAGES = ("model._target_=oracles.convolutions", "+data.kind=images", "optimizer=sgd", "optimizer.learning_rate=0.1")


def same(folder: Path, model, optimizer, tmp_path: Path) -> None:
    """Whether the newest checkpoint of a run holds what the model and the optimizer do."""
    by_hand = of_model(tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "by_hand")))
    agrees(of_model(tf.train.latest_checkpoint(str(folder))), by_hand)


def agrees(by_psrun: dict[str, np.ndarray], by_hand: dict[str, np.ndarray]) -> None:
    weights = [name for name in by_hand if name.startswith("model/") and "metrics" not in name]
    assert len(weights) >= 2
    for name in by_hand:
        if name.startswith("optimizer/") or name in weights:
            np.testing.assert_allclose(by_psrun[name], by_hand[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.fixture
def by_hand(cluster_spec):
    """A strategy and a coordinator for one worker and two parameter servers, as the tutorial makes them."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster_spec[1], rpc_layer="grpc")
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "decays", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["constant", "schedule"]
)
def test_the_custom_loop_of_the_tutorial(train, by_hand, tmp_path, decays):
    rate = ("optimizer.learning_rate=0.1",) if not decays else ("~optimizer.learning_rate", *DECAY)
    keys = (*KEYS, "model._target_=oracles.heroes", "+data.kind=heroes", "partitioner=fixed_shards",
            "optimizer._target_=tf_keras.optimizers.RMSprop", "+evaluation.batch_size=8")  # fmt: skip
    result, folder = train(*keys, *rate, num_workers=1)
    optimizer = lambda: RMSprop(schedules.ExponentialDecay(0.1, 3, 0.7) if decays else 0.1)  # noqa: E731
    model, optimizer, metrics = oracles.custom_loop(*by_hand, optimizer)
    same(folder.checkpoints, model, optimizer, tmp_path)
    for name, value in metrics.items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-5), name
    assert result["metrics"]["val_accuracy"] == pytest.approx(oracles.direct_evaluation(model), rel=1e-6)


SGD_BY_STEPS = ("~optimizer.learning_rate", *DECAY)
NUMBERS = ("model._target_=oracles.ten_units", "+model.loss=mse", "+data.kind=numbers", "optimizer=sgd", *SGD_BY_STEPS)


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("pieces", "model", "kind", "compiled"),
    [
        (("trainer=fit", *NUMBERS), oracles.ten_units, "numbers", {"loss": "mse"}),
        *(
            pytest.param((f"trainer={trainer}", *IMAGES), oracles.convolutions, "images",
                         {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
                         marks=pytest.mark.thorough)
            for trainer in ("fit", "custom_loop")
        ),
    ],
)  # fmt: skip
def test_model_fit_of_the_rfc(train, by_hand, tmp_path, pieces, model, kind, compiled):
    """Of the layer of the RFC, whose rate follows a schedule, and of a convolutional network."""
    result, folder = train(*KEYS, *pieces, "partitioner=fixed_shards", "evaluation=none", num_workers=1)
    optimizer = lambda: SGD(schedules.ExponentialDecay(0.1, 3, 0.7) if kind == "numbers" else 0.1)  # noqa: E731
    network, optimizer, metrics = oracles.fit(by_hand[0], model, kind, optimizer, **compiled)
    same(folder.checkpoints, network, optimizer, tmp_path)
    for name, value in metrics.items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.thorough
def test_the_mirrored_strategy_of_the_guide(psrun, tmp_path):
    here = HARNESS
    environment = {"PYTHONPATH": str(here)}
    done = psrun("cluster=mirrored", "cluster.num_replicas=2", *KEYS, *IMAGES, "evaluation=none", **environment)
    assert done.code == 0, done.stderr
    subprocess.run(
        [sys.executable, str(here / "oracles.py"), str(tmp_path / "by_hand")],
        check=True,
        capture_output=True,
        timeout=BOUND_S,
    )
    agrees(of_model(tf.train.latest_checkpoint(str(done.folder / "checkpoints"))), of_model(str(tmp_path / "by_hand")))
