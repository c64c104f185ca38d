"""Learning rates that begin small, and that grow with the number of workers."""

from __future__ import annotations

import pytest
from outcomes import events
from support import run_config, variables

from psrun.config import targets
from psrun.config.targets import Target

pytestmark = pytest.mark.tensorflow


def rates(schedule: dict, *steps: int) -> list[float]:
    name = f"psrun.optimizers.schedules.{schedule.pop('_target_')}"
    made = targets.call(Target(name, schedule, "optimizer.learning_rate"))
    assert type(made).from_config(made.get_config()).get_config() == made.get_config()
    return [float(made(step)) for step in steps]


def test_a_warm_up_grows_to_the_rate_and_stays_or_follows_another_schedule():
    assert rates({"_target_": "WarmUp", "learning_rate": 0.4, "steps": 4}, 0, 1, 4, 9) == pytest.approx(
        [0.0, 0.1, 0.4, 0.4]
    )
    decay = {"_target_": "tf_keras.optimizers.schedules.ExponentialDecay", "initial_learning_rate": 0.4,
             "decay_steps": 2, "decay_rate": 0.5}  # fmt: skip
    followed = {"_target_": "WarmUp", "learning_rate": 0.4, "steps": 4, "start": 0.2, "after": decay}
    assert rates(followed, 0, 2, 4, 6) == pytest.approx([0.2, 0.3, 0.4, 0.2])


def test_a_rate_is_scaled_by_a_factor_or_its_root():
    scaled = {"_target_": "Scaled", "learning_rate": 0.1, "factor": 4, "steps": 2}
    assert rates({**scaled}, 0, 1, 2) == pytest.approx([0.1, 0.25, 0.4])
    assert rates({**scaled, "rule": "sqrt"}, 2) == pytest.approx([0.2])
    assert rates({"_target_": "Scaled", "learning_rate": 0.1, "factor": 4}, 0) == pytest.approx([0.4])


def test_a_schedule_is_configured_by_name():
    rate = "{_target_: psrun.optimizers.schedules.Scaled, learning_rate: 0.05, factor: ${cluster.num_workers}}"
    config = run_config("optimizer=sparse_adagrad", f"optimizer.learning_rate={rate}", "cluster.num_workers=4")
    assert config.optimizer.options["learning_rate"]["factor"] == 4


def test_a_run_goes_on_with_a_rate_in_place_of_a_schedule_and_with_a_schedule_again(train):
    schedule = "{_target_: tf_keras.optimizers.schedules.CosineDecay, initial_learning_rate: 0.02, decay_steps: 20}"
    pieces = ("cluster=none", "model=dense", "optimizer=sgd", "evaluation=none", "trainer.steps_per_epoch=3")
    _, folder = train(*pieces, "trainer.epochs=1", f"optimizer.learning_rate={schedule}")
    resumed = (*pieces, f"resume={folder.path}")
    train(*resumed, "trainer.epochs=2", "optimizer.learning_rate=0.005", into=folder)
    held = variables(folder)
    (rate,) = (value for name, value in held.items() if "learning_rate" in name)
    assert float(rate) == pytest.approx(0.005)
    result, _ = train(*resumed, "trainer.epochs=3", f"optimizer.learning_rate={schedule}", into=folder)
    assert result["steps"]["applied"] == 9
    (iterations,) = (value for name, value in variables(folder).items() if "/_iterations/" in name)
    assert int(iterations) == 9


@pytest.mark.parametrize(
    "cluster",
    [
        ("cluster=inprocess", "cluster.replicas_per_worker=2"),
        ("cluster=inprocess", "consistency=sync", "trainer.steps_per_execution=1"),
        ("cluster=none",),
        ("cluster=central_storage",),
        ("cluster=none", "trainer=fit"),
    ],
)
def test_each_epoch_says_the_learning_rate_of_its_last_update(train, cluster):
    kind = "tf_keras.optimizers.schedules.ExponentialDecay"
    schedule = f"{{_target_: {kind}, initial_learning_rate: 0.1, decay_steps: 1, decay_rate: 0.5}}"
    pieces = ("model=dense", "optimizer=sgd", "evaluation=none", "trainer.steps_per_epoch=3", "trainer.epochs=2")
    _, folder = train(*pieces, *cluster, f"optimizer.learning_rate={schedule}", num_workers=1)
    epochs = events(folder, "epoch")
    assert [epoch["learning_rate"] for epoch in epochs] == pytest.approx([0.1 / 2**2, 0.1 / 2**5])
