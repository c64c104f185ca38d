"""Training and evaluation in this process: every combination, and that all ways to train give the same numbers."""

from __future__ import annotations

import io
import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support import MODELS, SAME, SMALL, STEPS, run_config, variables

from psrun.errors import ConfigError, DataExhaustedError, Interrupted, NonFiniteLossError, TaskLostError, TrainingError
from psrun.process import Stop
from psrun.results.console import ConsoleSink
from psrun.results.run_folder import RunFolder

PARTITIONERS = {
    "none": [],
    "fixed_shards": [],
    "min_size": ["partitioner.min_shard_bytes=200"],
    "max_size": ["partitioner.max_shard_bytes=400", "partitioner.max_shards=3"],
}


def combinations() -> Iterator[Any]:
    """Each pair of model, way to spread its variables and trainer; without a cluster nothing is partitioned.

    By default each way to spread variables, each model and each trainer with two models or more.
    """
    ways = [("none", "none"), *(("inprocess", partitioner) for partitioner in PARTITIONERS)]
    for (m, model), (w, way) in itertools.product(enumerate(MODELS), enumerate(ways)):
        default = m == (0, 2, 1, 3, 0)[w]
        trainer = ("fit", "custom_loop")[(m + w) % 2]
        yield pytest.param(*way, trainer, model, marks=() if default else pytest.mark.thorough)


@pytest.mark.inprocess
@pytest.mark.parametrize(("cluster", "partitioner", "trainer", "model"), combinations())
def test_every_combination_trains_and_evaluates(train, cluster, partitioner, trainer, model):
    result, folder = train(
        f"cluster={cluster}", f"partitioner={partitioner}", f"trainer={trainer}", f"model={model}",
        *PARTITIONERS[partitioner],
    )  # fmt: skip
    assert result["steps"] == {"applied": 2 * STEPS, "scheduled": 2 * STEPS, "repeated": 0}
    assert result["evaluation"]["examples_seen"] == result["data"]["num_eval_examples"]
    assert {"loss", "val_loss"} < set(result["metrics"])
    assert all(np.isfinite(value) for value in result["metrics"].values())
    tasks = {row["task"] for row in result["placement"] if row["kind"] == "model"}
    assert tasks == ({"chief-0"} if cluster == "none" else {"ps-0", "ps-1"})
    if cluster == "inprocess" and partitioner != "none":
        assert max(row["shard"] for row in result["placement"]) >= 1
    assert [row["step"] for row in result["checkpoints"]] == [STEPS, 2 * STEPS]
    assert list((folder.tensorboard / "train").glob("events*"))


@pytest.mark.inprocess
@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=() if model == "embedding" else pytest.mark.thorough) for model in MODELS]
)
def test_both_trainers_and_no_cluster_give_the_same_numbers(train, model):
    """One worker, same seed: within 2e-4 of each other, relatively, in every variable, slot and metric."""
    pieces = [("cluster=none", "trainer=custom_loop"), ("cluster=none", "trainer=fit"),
              ("cluster=inprocess", "trainer=custom_loop"), ("cluster=inprocess", "trainer=fit")]  # fmt: skip
    runs = [train(*piece, f"model={model}", num_workers=1) for piece in pieces]
    first_result, first = runs[0][0], variables(runs[0][1])
    assert first
    for result, folder in runs[1:]:
        stored = variables(folder)
        assert set(stored) == set(first)
        for name, values in first.items():
            np.testing.assert_allclose(stored[name], values, **SAME, err_msg=name)
        for name, value in first_result["metrics"].items():
            assert result["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


@pytest.mark.thorough
@pytest.mark.parametrize("partitioner", ["fixed_shards", "min_size"])
def test_both_trainers_agree_on_sharded_variables(train, partitioner):
    """Shards draw other initial values than whole variables do, so that sharded runs are compared with each other."""
    pieces = [f"partitioner={partitioner}", *PARTITIONERS[partitioner], "model=dense"]
    (_, loop), (_, fit) = (train(*pieces, f"trainer={name}", num_workers=1) for name in ("custom_loop", "fit"))
    stored = variables(fit)
    for name, values in variables(loop).items():
        np.testing.assert_allclose(stored[name], values, **SAME, err_msg=name)


@pytest.mark.thorough
@pytest.mark.inprocess
def test_the_same_seed_gives_the_same_numbers_and_another_one_others(train):
    short = ("model=embedding", "trainer.epochs=1", "evaluation=none")
    runs = [variables(train(*short, f"seed={seed}", num_workers=1)[1]) for seed in (1, 1, 2)]
    table = next(name for name, values in runs[0].items() if values.shape == (8, 20))
    np.testing.assert_array_equal(runs[0][table], runs[1][table])
    assert np.abs(runs[0][table] - runs[2][table]).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.inprocess
@pytest.mark.parametrize("cluster", ["inprocess", "none"])
def test_validation_counts_every_example_once_and_agrees_with_direct(train, cluster):
    """101 examples in batches of 8: the last one is smaller, and the shards are uneven."""
    odd = ("trainer=fit", "model=embedding", "data.num_eval_examples=101", "data.global_batch_size=8",
           "trainer.epochs=1")  # fmt: skip
    (validation, _), (direct, _) = (
        train(f"cluster={cluster}", f"evaluation={mode}", *odd, num_workers=1) for mode in ("validation", "direct")
    )
    assert validation["evaluation"]["examples_seen"] == direct["evaluation"]["examples_seen"] == 101
    assert validation["evaluation"]["mode"] == "validation"
    for name in ("val_loss", "val_auc", "val_accuracy"):
        assert validation["metrics"][name] == pytest.approx(direct["metrics"][name], abs=1e-5), name


@pytest.mark.tensorflow
def test_evaluation_happens_when_it_is_due(train):
    _, folder = train("cluster=none", "evaluation.every=2", "trainer.epochs=5", "model=embedding")
    events = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [event["step"] // STEPS for event in events if event["event"] == "evaluation"] == [2, 4, 5]


@pytest.mark.tensorflow
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "ftrl", "sgd"])
def test_every_optimizer_learns(train, optimizer):
    short = ("cluster=none", "model=dense", "trainer.epochs=20", "evaluation=none", "checkpoint=none")
    _, folder = train(*short, f"optimizer={optimizer}")
    events = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    losses = [event["metrics"]["loss"] for event in events if event["event"] == "epoch"]
    assert losses[-1] < losses[0] - 0.005


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("trainer", "clusters"),
    [
        pytest.param("fit", ["one_device", "mirrored"], marks=pytest.mark.thorough),
        ("custom_loop", ["central_storage"]),
        pytest.param("fit", ["central_storage"], marks=pytest.mark.thorough),
        pytest.param("custom_loop", ["one_device", "mirrored"], marks=pytest.mark.thorough),
    ],
)
def test_synchronous_strategies_train_as_one_process_does(train, trainer, clusters):
    plain, *others = (
        train(f"cluster={name}", f"trainer={trainer}", "model=dense", "checkpoint=none")[0]
        for name in ("none", *clusters)
    )
    for result in others:
        assert result["steps"]["applied"] == 2 * STEPS
        assert result["metrics"]["val_loss"] == pytest.approx(plain["metrics"]["val_loss"], rel=1e-3)


@pytest.mark.inprocess
@pytest.mark.parametrize("trainer", ["fit", pytest.param("custom_loop", marks=pytest.mark.thorough)])
def test_a_loss_that_is_not_a_number_ends_the_run(train, trainer):
    with pytest.raises(NonFiniteLossError, match="learning_rate"):
        train("model=dense", f"trainer={trainer}", "optimizer=sgd", "optimizer.learning_rate=1e20")


@pytest.mark.inprocess
@pytest.mark.parametrize(("cluster", "trainer"), [("none", "fit"), ("inprocess", "custom_loop")])
def test_data_that_ends_is_reported_before_or_when_it_does(train, cluster, trainer, monkeypatch):
    from psrun.data.features import HeroFeatures

    endless = HeroFeatures.train
    pieces = [f"cluster={cluster}", f"trainer={trainer}", "model=embedding"]
    monkeypatch.setattr(HeroFeatures, "train", lambda self, **kwargs: endless(self, **kwargs).take(3))
    with pytest.raises(ConfigError, match=r"ends after 3 batches; make it endless with \.repeat"):
        train(*pieces)
    hidden = lambda self, **kwargs: endless(self, **kwargs).take(3).filter(lambda features, label: True)  # noqa: E731
    monkeypatch.setattr(HeroFeatures, "train", hidden)
    with pytest.raises(DataExhaustedError, match="the training data ended"):
        train(*pieces)


@pytest.mark.inprocess
@pytest.mark.parametrize("trainer", [pytest.param("fit", marks=pytest.mark.thorough), "custom_loop"])
def test_a_step_that_fails_is_reported_with_its_reason(train, trainer, monkeypatch):
    import tensorflow as tf

    from psrun.data.features import HeroFeatures

    good = HeroFeatures.train

    def bad(self, **kwargs):
        checked = lambda features, label: (features, tf.debugging.check_numerics(label / 0.0, "planted failure"))  # noqa: E731
        return good(self, **kwargs).map(checked)

    monkeypatch.setattr(HeroFeatures, "train", bad)
    with pytest.raises(TrainingError, match="planted failure"):
        train(f"trainer={trainer}", "model=embedding")


@pytest.mark.tensorflow
@pytest.mark.parametrize("raised", ["End of sequence", "Function was cancelled before it was started"])
def test_the_first_of_several_errors_is_reported(raised):
    """A dataset that failed reports its end when it is read once more, and an error cancels other steps."""
    import tensorflow as tf

    from psrun.training import failures

    first = tf.errors.InvalidArgumentError(None, None, "Graph execution error:\n\nplanted failure\n")

    def failing():
        log = logging.getLogger("tensorflow")
        with failures.named(lambda: None):
            log.error(" %s encountered the following error when processing closure: %r:%s", "/job:worker", first, first)
            log.error("Start cancelling closures due to error %r: %s", first, first)
            raise tf.errors.OutOfRangeError(None, None, raised)

    with pytest.raises(TrainingError, match=r"a step failed: .*: planted failure$"):
        failing()


@pytest.mark.tensorflow
def test_a_server_that_a_hook_found_lost_is_a_lost_task():
    from types import SimpleNamespace

    import tensorflow as tf

    from psrun.errors import TaskLostError
    from psrun.training import failures

    def check():
        raise tf.errors.UnavailableError(None, None, "Socket closed, from /job:ps/replica:0/task:1")

    session: Any = SimpleNamespace(check=check)
    with pytest.raises(TaskLostError, match=r"^ps-1 was lost"), failures.named(lambda: session):
        session.check()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "other", ["CANCELLED:  EagerClusterFunctionLibraryRuntime::Run", "OUT_OF_RANGE:  End of sequence"]
)
@pytest.mark.parametrize("turned", [False, True])
def test_of_errors_at_several_places_of_a_step_the_cause_is_reported(other, turned):
    import tensorflow as tf

    from psrun.training import failures

    roots = [f"  ({number}) {root}\n\t [[node]]" for number, root in
             enumerate([other, "INVALID_ARGUMENT:  planted failure"][:: -1 if turned else 1])]  # fmt: skip
    both = "\n".join(["Graph execution error:", "", "2 root error(s) found.", *roots, "0 successful operations."])
    first = tf.errors.InvalidArgumentError(None, None, both)

    def failing():
        log = logging.getLogger("tensorflow")
        with failures.named(lambda: None):
            log.error(" %s encountered the following error when processing closure: %r:%s", "/job:worker", first, first)
            log.error("Start cancelling closures due to error %r: %s", first, first)
            raise tf.errors.CancelledError(None, None, "cancelled")

    with pytest.raises(TrainingError, match=r"a step failed: .*planted failure$"):
        failing()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.global_batch_size=501"], "must be at most 500"),
        (["data.num_eval_examples=0"], "choose evaluation=none"),
        (["model.embedding_dim=-1"], "model: psrun.models.embedding.embedding failed"),
        (["optimizer=adam", "+optimizer.learnign_rate=1"], "optimizer: tf_keras.optimizers.Adam"),
        (["model=dense", "data=features", "data.num_train_examples=500"], "no features that this model can use"),
        (["cluster=one_device", "cluster.device=/GPU:7"], "this machine has /CPU:0"),
    ],
)
def test_what_only_tensorflow_detects_is_reported_by_key_too(overrides, message, tmp_path):
    from psrun.roles import coordinator
    from psrun.roles.task_context import TaskContext

    small = [] if "data=features" in overrides else SMALL["features"]
    config = run_config("cluster=none", *small, *overrides)
    folder = RunFolder.create(tmp_path, raw={})
    with pytest.raises(ConfigError, match=message):
        coordinator.run(config, TaskContext(folder, ConsoleSink(Console(file=io.StringIO())), 0), Stop())


@pytest.mark.inprocess
def test_a_parameter_server_that_is_lost_in_a_save_asks_for_another_start(train, monkeypatch):
    import tensorflow as tf

    from psrun.checkpoint.checkpoints import Checkpoints

    def lost(path):
        raise tf.errors.UnavailableError(None, None, "failed to connect: /job:ps/replica:0/task:1")

    original = Checkpoints.__init__

    def init(self, *arguments, **options):
        original(self, *arguments, **options)
        self._write = lost

    monkeypatch.setattr(Checkpoints, "__init__", init)
    with pytest.raises(TaskLostError, match="ps-1 was lost") as caught:
        train("model=embedding")
    assert caught.value.exit_code == 175


@pytest.mark.thorough
@pytest.mark.inprocess
def test_a_finished_evaluation_is_reported_also_by_a_run_that_stops(train, monkeypatch, tmp_path):
    from psrun.training.actions import Saves

    monkeypatch.setattr(Saves, "_save", lambda self, step, within_epoch: self._run.stop.follow())
    with pytest.raises(Interrupted):
        train("trainer=fit", "evaluation=validation", "model=embedding", "trainer.epochs=1")
    result = json.loads((tmp_path / "run0" / "run.json").read_text())
    assert result["evaluation"]["mode"] == "validation"
    assert {"loss", "val_loss"} < set(result["metrics"])
    assert result["steps"] == {"applied": STEPS, "scheduled": STEPS, "repeated": 0}


@pytest.mark.inprocess
def test_threads_that_wait_do_not_spin_on_cores_that_servers_share(train):
    train("model=dense", "trainer.epochs=1", "evaluation=none", "checkpoint=none")
    from tensorflow.python.eager import context

    assert context.get_server_def().default_session_config.experimental.disable_thread_spinning


@pytest.mark.inprocess
def test_tables_have_names_that_no_other_process_gives(cluster_spec):
    """Workers outlive chiefs, and keep their tables by name."""
    import tensorflow as tf

    from psrun.cluster import strategy

    strategy.prepare(run_config("cluster=inprocess").cluster, None)
    names = set()
    for _ in range(2):
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
        assert int(table.lookup(tf.constant("a"))) == 1
        names.add(table._shared_name)
    assert len(names) == 2
    assert all(len(name) == 32 for name in names)  # not a number that every process counts up to
