"""Each trainer trains as Keras alone does, and saves, evaluates, reports and calls hooks: one training, many facts.

Pairs of trainer, cluster, partitioner, consistency mode and evaluation; with one worker each of them applies the same
steps to the same weights.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_weights
import tensorflow as tf
import tf_keras
from outcomes import check_equal, events, of_model
from sample_weights import NUM_EVAL, Weighted, own_data
from support import SMALL, STEPS, run_config, variables

from psrun import metrics
from psrun.checkpoint.storage import Store
from psrun.cluster import strategy
from psrun.data.datasets import HeroFeatures
from psrun.errors import CheckpointError, DataExhaustedError, NonFiniteLossError, TaskLostError, TrainingError
from psrun.results.run_folder import RunFolder
from psrun.tf_internals.checkpoints import Saving

EPOCHS, EPOCH = 2, 8  # steps of an epoch of `own_data`, in executions of 4
HOOKS = (
    "{_target_: user_code.Notes, name: last, every_epochs: 2}, "
    "{_target_: user_code.Notes, name: epochs, every_epochs: 1}, "
    "{_target_: user_code.Notes, name: steps, wait_for: last, every_steps: 5}, "
    "{_target_: user_code.Notes, name: seconds, every_s: 0.1}"
)  # fmt: skip
FACTS = (
    "checkpoint.every_steps=3", "checkpoint.max_to_keep=9", "checkpoint.best_metric=val_loss",
    "checkpoint.best_mode=max", f"trainer.hooks=[{HOOKS}]",
)  # fmt: skip


class WarmUp(tf_keras.optimizers.schedules.LearningRateSchedule):
    """Linear from 0 to `peak` in `steps` steps."""

    def __init__(self, peak: float, steps: int) -> None:
        self.peak, self.steps = peak, steps

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return self.peak * tf.minimum(1.0, (tf.cast(step, tf.float32) + 1) / self.steps)


def adamw() -> tf_keras.optimizers.Optimizer:
    decay = tf_keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=5, decay_rate=0.7)
    return tf_keras.optimizers.AdamW(decay, weight_decay=0.3, clipnorm=0.05, amsgrad=True)


# One step with each optimizer and option is in test_optimizer_steps.py.
OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "optimizer._target_=tf_keras.optimizers.AdamW": adamw,
    "optimizer=adam": lambda: tf_keras.optimizers.Adam(WarmUp(0.05, 9)),
    "optimizer=sgd": lambda: tf_keras.optimizers.SGD(0.1),
}
ADAMW = (
    "optimizer._target_=tf_keras.optimizers.AdamW", "+optimizer.weight_decay=0.3", "+optimizer.clipnorm=0.05",
    "+optimizer.amsgrad=true",
    "optimizer.learning_rate={_target_: tf_keras.optimizers.schedules.ExponentialDecay, "
    "initial_learning_rate: 0.01, decay_steps: 5, decay_rate: 0.7}",
)  # fmt: skip
ADAM = (
    "optimizer=adam",
    "optimizer.learning_rate={_target_: test_trainers.WarmUp, peak: 0.05, steps: 9}",
)
OWN_LOOP = ("trainer=own_loop", "trainer._target_=user_code.plain")
CASES = {
    "fit-none": ("trainer=fit", "cluster=none", "evaluation=direct", *ADAM),
    "custom_loop-exact": ("trainer=custom_loop", "partitioner=fixed_shards", "evaluation=exact", *ADAMW),
    "own_loop-one_device": (*OWN_LOOP, "cluster=one_device", "evaluation=direct"),
    "fit-validation": ("trainer=fit", "partitioner=fixed_shards", "evaluation=validation", "+model.l2=0"),
}
THOROUGH = {
    "own_loop-sync": (*OWN_LOOP, "consistency=sync", "trainer.steps_per_execution=1", "evaluation=direct"),
    "custom_loop-ssp": ("consistency=ssp", "consistency.staleness=1", "partitioner=fixed_shards", "evaluation=direct"),
    "fit-bounded_delay": ("trainer=fit", "consistency=bounded_delay", "consistency.max_delay=2", "evaluation=exact"),
    "custom_loop-central_storage": ("cluster=central_storage", "evaluation=direct"),
    "fit-mirrored": ("trainer=fit", "cluster=mirrored", "evaluation=direct"),
    "custom_loop-none-validation-by-exact": ("cluster=none", "evaluation=exact"),
}


@dataclass(frozen=True)
class Trained:
    """A training of two epochs.

    Attributes:
      by_keras: the metrics of Keras alone; `checkpoint`: its weights, slots and counters.
    """

    pieces: tuple[str, ...]
    result: Mapping[str, Any]
    folder: RunFolder
    by_keras: Mapping[str, float]
    checkpoint: Mapping[str, np.ndarray]

    @property
    def on_workers(self) -> bool:
        return not any(piece.startswith("cluster=") for piece in self.pieces)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return events(self.folder, kind)


@pytest.fixture(scope="module")
def by_keras(tmp_path_factory) -> Callable[..., tuple[Mapping[str, float], Mapping[str, np.ndarray]]]:
    folder = tmp_path_factory.mktemp("alone")
    return functools.cache(functools.partial(trained_by_keras, folder))


def trained_by_keras(folder: Path, optimizer: str, l2: float) -> tuple[Mapping[str, float], Mapping[str, np.ndarray]]:
    network, made = sample_weights.one_output(l2=l2), OPTIMIZERS[optimizer]()
    measured = sample_weights.by_keras(
        network, Weighted(), batch_size=16, epochs=EPOCHS, steps=EPOCH, loss="binary_crossentropy", optimizer=made,
        weighted_metrics=[
            metrics.AUC(bits=8), metrics.AUC("finer"), tf_keras.metrics.BinaryAccuracy(name="accuracy"),
        ],
    )  # fmt: skip
    return measured, of_model(
        tf.train.Checkpoint(model=network, optimizer=made).write(str(folder / f"{optimizer}-{l2}"))
    )


@pytest.fixture(scope="module", params=[*CASES, *(pytest.param(name, marks=pytest.mark.thorough) for name in THOROUGH)])
def trained(request, trainings, tmp_path_factory, by_keras) -> Trained:
    pieces = (CASES | THOROUGH)[request.param]
    result, folder = trainings(tmp_path_factory.mktemp("trained"))(*own_data(*pieces, *FACTS), num_workers=1)
    (optimizer,) = [each for each in pieces if each in OPTIMIZERS] or ["optimizer=sgd"]
    return Trained(pieces, result, folder, *by_keras(optimizer, 0.0 if "+model.l2=0" in pieces else 0.01))


@pytest.mark.inprocess
class TestTraining:
    """The facts of one training."""

    def test_metrics_weights_and_slots_are_those_of_keras_alone(self, trained):
        expected = {name: value for name, value in trained.by_keras.items() if "finer" not in name}
        if "evaluation=validation" not in trained.pieces:  # which has the counters of the training
            expected["val_auc"] = trained.by_keras["val_finer"]
        assert trained.result["metrics"] == pytest.approx(expected, rel=1e-5)
        assert len(trained.checkpoint) > 3
        check_equal(variables(trained.folder), trained.checkpoint, rtol=1e-5, atol=1e-6)

    def test_each_step_is_scheduled_and_applied_once(self, trained):
        assert trained.result["steps"] == {"applied": 16, "scheduled": 16, "repeated": 0}
        assert [(event["epoch"], event["step"]) for event in trained.events("epoch")] == [(1, 8), (2, 16)]
        assert all(event["steps_per_s"] > 0 for event in trained.events("epoch"))
        assert list((trained.folder.tensorboard / "train").glob("events*"))
        assert (trained.result["step_time"] is None) != trained.on_workers

    def test_each_epoch_is_evaluated_with_every_example(self, trained):
        assert [event["step"] for event in trained.events("evaluation")] == [8, 16]
        assert trained.result["evaluation"]["examples_seen"] == NUM_EVAL
        assert f"evaluation={trained.result['evaluation']['mode']}" in trained.pieces

    def test_checkpoints_within_epochs_hold_what_was_scheduled(self, trained):
        store = Store(trained.folder.checkpoints)
        alone = "trainer.steps_per_execution=1" in trained.pieces
        steps = [3, 6, 8, 11, 14, 16] if alone else [4, 8, 12, 16]
        assert sorted(store.steps()) == steps
        for step in steps:
            position = store.manifest(step).position
            assert (position.epochs, position.steps, position.scheduled) == (*divmod(step, EPOCH), step)
        assert [row["step"] for row in trained.result["checkpoints"]] == steps

    def test_the_best_checkpoint_is_that_of_its_evaluation(self, trained):
        losses = [event["metrics"]["loss"] for event in trained.events("evaluation")]
        best = trained.result["best_checkpoint"]
        assert (best["step"], best["value"]) == (8 if losses[0] > losses[1] else 16, pytest.approx(max(losses)))
        (end,) = trained.events("end")
        (checkpoint,) = [row["path"] for row in trained.result["checkpoints"] if row["step"] == best["step"]]
        said = end["best"]
        assert (said["metric"], said["value"], said["checkpoint"]) == ("val_loss", best["value"], checkpoint)
        assert (said["epoch"], said["epochs"]) == (best["step"] // EPOCH, EPOCHS)
        assert end["next"] == {"command": "report", "arguments": []}

    def test_hooks_are_called_at_epochs_steps_and_seconds_and_no_step_waits_for_them(self, trained):
        """The hook of steps waits for what only the hook of the last epoch writes: the steps go on meanwhile."""
        path = trained.folder.path
        notes = {name: json.loads((path / name).read_text()) for name in ("epochs", "last", "steps", "seconds")}
        assert [row[:2] for row in notes["epochs"]] == [[8, 1], [16, 2]]
        assert notes["last"][-1][2] == pytest.approx(trained.result["metrics"])
        assert 1 <= len(notes["steps"]) <= 3
        assert notes["steps"][-1][0] <= 16
        assert notes["seconds"]
        assert len({row[3] for row in notes["epochs"]}) == 2  # it has read the weights, and they were others

    def test_variables_are_where_the_partitioner_puts_them(self, trained):
        rows = [row for row in trained.result["placement"] if row["kind"] == "model"]
        assert {row["task"] for row in rows} == ({"ps-0", "ps-1"} if trained.on_workers else {"chief-0"})
        sharded = "partitioner=fixed_shards" in trained.pieces
        assert (max(row["shard"] or 0 for row in rows) >= 1) == sharded


PARTITIONERS = {
    "none": ["partitioner=none"],
    "fixed_shards": ["partitioner=fixed_shards"],
    "min_size": ["partitioner=min_size", "partitioner.min_shard_bytes=200"],
    "max_size": ["partitioner=max_size", "partitioner.max_shard_bytes=400", "partitioner.max_shards=3"],
}


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("cluster", "partitioner", "trainer", "model"),
    [
        ("none", "none", "fit", "cnn"),
        ("inprocess", "max_size", "custom_loop", "embedding"),
        pytest.param(
            "inprocess", "min_size", "fit", "wide_deep", marks=[pytest.mark.thorough, pytest.mark.part("recsys")]
        ),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                ("inprocess", "fixed_shards", "fit", "dense"),
                ("inprocess", "min_size", "custom_loop", "cnn"),
            ]
        ),
    ],
)
def test_models_train_on_each_way_to_spread_their_variables(train, cluster, partitioner, trainer, model):
    result, _ = train(f"cluster={cluster}", f"trainer={trainer}", f"model={model}", *PARTITIONERS[partitioner])
    assert result["steps"] == {"applied": 2 * STEPS, "scheduled": 2 * STEPS, "repeated": 0}
    assert result["evaluation"]["examples_seen"] == result["data"]["num_eval_examples"]
    assert all(np.isfinite(value) for value in result["metrics"].values())
    assert (max(row["shard"] or 0 for row in result["placement"]) >= 1) == (partitioner != "none")


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_numbers_and_another_one_others(train):
    short = ("cluster=none", "model=embedding", "trainer.epochs=1", "evaluation=none")
    runs = [variables(train(*short, f"seed={seed}")[1]) for seed in (1, 1, 2)]
    table = next(name for name, values in runs[0].items() if values.shape == (8, 20))
    np.testing.assert_array_equal(runs[0][table], runs[1][table])
    assert np.abs(runs[0][table] - runs[2][table]).max() > 1e-3


@pytest.mark.tensorflow
@pytest.mark.parametrize("trainer", ["fit", "custom_loop"])
def test_a_loss_that_is_not_a_number_ends_the_run(train, trainer):
    with pytest.raises(NonFiniteLossError):
        train("cluster=none", "model=dense", f"trainer={trainer}", "optimizer=sgd", "optimizer.learning_rate=1e20")


@pytest.mark.inprocess
@pytest.mark.parametrize(
    ("cluster", "trainer"), [("none", "fit"), pytest.param("inprocess", "custom_loop", marks=pytest.mark.thorough)]
)
def test_data_that_ends_where_nothing_shows_it_before_is_no_epoch(train, cluster, trainer, monkeypatch):
    """Also exactly at the end of an execution, of three steps."""
    endless = HeroFeatures.train
    hidden = lambda self, **keys: endless(self, **keys).take(6).filter(lambda features, label: True)  # noqa: E731
    monkeypatch.setattr(HeroFeatures, "train", hidden)
    with pytest.raises(DataExhaustedError):
        train(f"cluster={cluster}", f"trainer={trainer}", "model=embedding")


@pytest.mark.inprocess
@pytest.mark.parametrize("trainer", [pytest.param("fit", marks=pytest.mark.thorough), "custom_loop"])
def test_a_step_that_fails_is_reported_with_its_reason(train, trainer, monkeypatch):
    good = HeroFeatures.train

    def bad(self, **keys):
        checked = lambda features, label: (features, tf.debugging.check_numerics(label / 0.0, "planted failure"))  # noqa: E731
        return good(self, **keys).map(checked)

    monkeypatch.setattr(HeroFeatures, "train", bad)
    with pytest.raises(TrainingError, match="planted failure"):
        train(f"trainer={trainer}", "model=embedding")


@pytest.mark.tensorflow
@pytest.mark.parametrize("part", ["stage", "write"])
def test_a_parameter_server_that_is_lost_in_a_save_asks_for_another_start(train, monkeypatch, part):
    def lost(self, *arguments, **options):
        raise tf.errors.UnavailableError(None, None, "failed to connect: /job:ps/replica:0/task:1")

    monkeypatch.setattr(Saving, part, lost)
    with pytest.raises(TaskLostError) as caught:
        train("cluster=none", "model=embedding")
    assert (caught.value.task, caught.value.exit_code) == ("ps-1", 175)


@pytest.mark.tensorflow
def test_a_disk_that_is_full_while_a_checkpoint_is_written_ends_the_run_and_leaves_the_one_before(train, monkeypatch):
    stores = []
    complete = Store.complete

    def full(self, held):
        stores.append(self)
        if self.steps():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return complete(self, held)

    monkeypatch.setattr(Store, "complete", full)
    with pytest.raises(CheckpointError, match=r"no checkpoint could be written at step \d+: .*No space left on device"):
        train("cluster=none", "model=embedding", "trainer.epochs=9")
    (store,) = set(stores)
    (step,) = store.steps()
    assert store.damage(step) is None
    assert {file.name.partition(".")[0] for file in store.folder.glob("*ckpt-*")} == {f"ckpt-{step}"}


@pytest.mark.inprocess
def test_tables_have_names_that_no_other_process_gives_and_threads_that_wait_do_not_spin(cluster_spec):
    """Workers outlive chiefs, and keep their tables by name; servers share cores."""
    from tensorflow.python.eager import context

    config = run_config("cluster=inprocess", *SMALL["features"])
    strategy.prepare(config.cluster, None)
    strategy.parameter_servers(cluster_spec[1], config.partitioner)
    assert context.get_server_def().default_session_config.experimental.disable_thread_spinning
    names = set()
    for _ in range(2):
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
        assert int(table.lookup(tf.constant("a"))) == 1
        names.add(table._shared_name)
    assert len(names) == 2
    assert all(len(name) == 32 for name in names)  # not a number that every process counts up to
