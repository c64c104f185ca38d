"""Layers that write to their own weights when they are called: as in their Keras alone, or refused by name."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import pytest
import tf_keras
import writing_layers
from outcomes import events

from psrun.errors import ConfigError

pytestmark = pytest.mark.inprocess
thorough = pytest.mark.thorough

PIECES = [
    "model=dense", "~model.hidden_units", "model._target_=writing_layers.model", "data._target_=writing_layers.Batches",
    "~data.num_features", "~data.num_train_examples", "~data.num_eval_examples", "~data.noise",
    "data.global_batch_size=8", "optimizer=sgd", "optimizer.learning_rate=0.02",
    "trainer.steps_per_epoch=3", "seed=3",
]  # fmt: skip
NONE = ("cluster=none", "evaluation=direct", "evaluation.batch_size=8")
SHARDS = (
    "cluster=inprocess",
    "partitioner=fixed_shards",
    "partitioner.num_shards=2",
    "evaluation=exact",
    "evaluation.batch_size=8",
)
LIBRARIES: dict[str, Any] = {"keras": keras, "tf_keras": tf_keras}


def alone(kind: str, library: str, *, evaluates: bool = True) -> list[float]:
    """The losses of training and evaluation, by epoch, of `fit` and `evaluate`."""
    LIBRARIES[library].utils.set_random_seed(3)
    model = writing_layers.model(None, kind=kind, library=library)
    model.compile(LIBRARIES[library].optimizers.SGD(0.02), loss="mse")
    losses = []
    for _ in range(2):
        losses += model.fit(*writing_layers.TRAIN, batch_size=8, shuffle=False, verbose=0).history["loss"]
        if evaluates:
            losses.append(model.evaluate(*writing_layers.EVALUATION, batch_size=8, verbose=0))
    return losses


@pytest.mark.parametrize(
    ("kind", "library", "layout"),
    [
        ("spectral", "keras", SHARDS),
        ("own", "keras", SHARDS),
        ("states", "keras", SHARDS),
        ("own", "tf_keras", SHARDS),
        *(
            pytest.param(*case, marks=thorough)
            for case in [
                ("own", "keras", NONE),
                ("spectral", "keras", NONE),
                ("statistics", "keras", SHARDS),
                ("spectral", "tf_keras", NONE),
                ("statistics", "tf_keras", SHARDS),
            ]
        ),
    ],
)
def test_losses_are_those_of_the_library_alone(train, kind, library, layout):
    own = (f"+model.kind={kind}", f"+model.library={library}")
    _, folder = train(*PIECES, *own, *layout, num_workers=1)
    losses = [[event["metrics"]["loss"] for event in events(folder, what)] for what in ("epoch", "evaluation")]
    assert [*itertools.chain(*zip(*losses))] == pytest.approx(alone(kind, library), rel=1e-5)


@thorough
def test_states_are_those_of_the_checkpoint_in_a_resumed_run(train):
    pieces = [*PIECES, "+model.kind=states", "evaluation=none"]
    _, folder = train(*pieces, *SHARDS[:3], "trainer.epochs=1", num_workers=1)
    train(*pieces, "cluster=none", num_workers=1, into=folder)
    losses = [event["metrics"]["loss"] for event in events(folder, "epoch")]
    assert losses == pytest.approx(alone("states", "keras", evaluates=False), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "library", "pieces", "message"),
    [
        ("in_branch", "keras", NONE, "model: own/kernel is assigned within a branch or a loop"),
        ("counting", "keras", NONE, "model: .*calls is assigned in a call, but is no weight"),
        ("float8", "keras", NONE, "model: .* is replaced by its gradient"),
        ("lstm", "keras", SHARDS, "model: lstm keeps its state"),
        ("lstm", "keras", (*NONE, "export.at_end=true"), "export.at_end: .* lstm keeps its state"),
        ("own", "tf_keras", ("cluster=inprocess", "cluster.replicas_per_worker=2"), "model: .* several replicas"),
        ("lstm", "tf_keras", SHARDS, "model: .*Stateful RNNs"),
        # tf-keras' layer returns the variable from a branch. Once it trains here, drop the text from `_OF_CUT_WEIGHTS`.
        ("spectral", "tf_keras", SHARDS, "partitioner: is fixed_shards, .* layer spectral_normalization"),
    ],
)
def test_what_cannot_be_as_in_the_library_is_refused_by_name(train, kind, library, pieces, message):
    with pytest.raises(ConfigError, match=message) as refused:
        train(*PIECES, f"+model.kind={kind}", f"+model.library={library}", *pieces)
    assert len(refused.value.problems) == 1
    assert "\n" not in refused.value.problems[0].message
