"""Numbers of a run that follow from its data: what is set holds, `auto` is as the source recommends, or as usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import raw_config, run_config

from psrun.config import parse
from psrun.data import loading
from psrun.errors import ConfigError
from psrun.training.metric_policies import MetricPolicies

pytestmark = pytest.mark.tensorflow

AUTO = "data.global_batch_size=auto"


class Examples:
    """A source with nothing but its numbers.

    Args:
      recommends: the batch size; the epochs are twenty thousand steps over the steps of a pass.
    """

    num_eval_examples = 0

    def __init__(self, num_train_examples: int | None, recommends: int | None = None) -> None:
        self.num_train_examples = num_train_examples
        if recommends is not None:
            self.recommended = lambda batch_size: self._numbers(batch_size or recommends)

    def _numbers(self, batch_size: int) -> Mapping[str, Any]:
        steps = -(-self.num_train_examples // batch_size)
        return {"global_batch_size": batch_size, "steps_per_epoch": None, "epochs": 20_000 // steps}


def numbers(source: Examples, *pieces: str, told: list[str] | None = None) -> tuple[int, int, int]:
    """Batch size, epochs and steps per epoch."""
    run = loading.planned(run_config(*pieces), source, (told if told is not None else []).append)
    return run.data.batch_size, run.trainer.num_epochs, run.trainer.num_steps


@pytest.mark.parametrize("trainer", ["custom_loop", "fit"])
@pytest.mark.parametrize(
    ("recommends", "pieces", "expected"),
    [
        (None, [], (64, 5, 100)),
        (None, [AUTO], (64, 5, 100)),
        (None, ["trainer.steps_per_epoch=null"], (64, 5, 157)),
        (100, [AUTO], (100, 200, 100)),
        (100, ["data.global_batch_size=50"], (50, 100, 200)),
        (100, [AUTO, "trainer.epochs=3"], (100, 3, 100)),
        (100, [AUTO, "trainer.steps_per_epoch=7"], (100, 200, 7)),
        (100, ["data.global_batch_size=10", "trainer.epochs=2", "trainer.steps_per_epoch=3",
               "trainer.steps_per_execution=2"], (10, 2, 3)),
        (100, [AUTO, "consistency=sync"], (100, 200, 50)),  # of two workers
    ],
)  # fmt: skip
def test_what_is_set_holds_and_the_rest_follows_from_the_data(trainer, recommends, pieces, expected):
    assert numbers(Examples(10_000, recommends), f"trainer={trainer}", "cluster.num_workers=2", *pieces) == expected


def test_a_default_batch_that_is_too_large_is_reduced_and_said():
    told: list[str] = []
    assert numbers(Examples(40), AUTO, "trainer.steps_per_epoch=null", told=told) == (40, 5, 1)
    assert told == ["data.global_batch_size: 64 is reduced to 40, the number of training examples"]
    assert numbers(Examples(40, recommends=64), AUTO, told=told) == (40, 20_000, 1)
    assert len(told) == 2
    assert numbers(Examples(None), AUTO, told=told) == (64, 5, 100)
    assert len(told) == 2


def test_a_batch_that_the_user_set_too_large_is_an_error():
    with pytest.raises(ConfigError, match=r"data.global_batch_size: is 64, must be at most 10, the number of training"):
        loading.load_source(run_config("data.num_train_examples=10"))
    assert loading.load_source(run_config("data.num_train_examples=10", AUTO)).num_train_examples == 10


def test_the_configuration_gets_the_numbers_of_auto():
    run = run_config(AUTO)
    planned = loading.planned(run, Examples(10_000, recommends=100))
    assert planned.raw["trainer"] == {**run.raw["trainer"], "epochs": 200, "steps_per_epoch": 100}
    assert planned.raw["data"] == {**run.raw["data"], "global_batch_size": 100}
    assert run.raw["trainer"]["epochs"] == "auto"
    assert parse.load(planned.raw) == replace(planned, raw=planned.raw)
    assert loading.planned(planned, Examples(3)) is planned
    one_pass = loading.planned(run_config("trainer.steps_per_epoch=null"), Examples(10_000))
    assert one_pass.raw["trainer"]["steps_per_epoch"] is None  # also over other data, when the run is resumed


def test_more_steps_per_execution_than_a_short_epoch_has_are_reduced():
    run = loading.planned(run_config("trainer.steps_per_execution=50", AUTO), Examples(1000, recommends=100))
    assert (run.trainer.steps_per_execution, run.trainer.num_steps_packed) == (10, 10)


def test_one_pass_of_synchronous_workers_needs_their_number():
    run = run_config("consistency=sync", "cluster=tf_config", AUTO)
    assert loading.planned(run, Examples(10_000)).trainer.num_steps == 100
    with pytest.raises(ConfigError, match=r"trainer.steps_per_epoch: is required with consistency=sync"):
        loading.planned(run, Examples(10_000, recommends=100))


def test_examples_per_replica_that_are_set_win_over_an_automatic_batch_size():
    raw = raw_config(AUTO, "data.batch_size_per_replica=5", "cluster=mirrored", "cluster.num_replicas=2")
    assert parse.load(raw).data.global_batch_size == 10


@pytest.mark.parametrize(
    ("recommended", "overrides", "rate", "falls"),
    [
        (True, [], 0.003, True),
        (False, [], 0.001, False),
        (True, ["optimizer.learning_rate=0.02"], 0.02, False),
        (True, ["reduce_lr.metric=loss", "reduce_lr.mode=min"], 0.003, False),
    ],
)
def test_a_rate_that_is_auto_is_the_one_that_the_data_recommends(recommended, overrides, rate, falls):
    source = Examples(1000)
    if recommended:
        source.recommended = lambda batch_size: {"learning_rate": 0.003, "learning_rate_falls": True}
    planned = loading.planned(run_config("optimizer=lazy_adam", *overrides), source)
    assert (planned.optimizer.options["learning_rate"], planned.learning_rate_falls) == (rate, falls)
    assert planned.raw["optimizer"]["learning_rate"] == (0.02 if rate == 0.02 else "auto")


def test_a_rate_falls_by_half_a_cosine_wave_over_the_epochs():
    policies = MetricPolicies.__new__(MetricPolicies)
    policies._optimizers = [SimpleNamespace(learning_rate=rate) for rate in (0.1, 0.2)]
    both = ("optimizer=lazy_adam", "table_optimizer=ftrl", "table_optimizer.learning_rate=0.2")
    run = replace(run_config(*both, "trainer.epochs=3"), learning_rate_falls=True)
    run.optimizer.options["learning_rate"] = 0.1
    rates = []
    for epoch in (1, 2, 3):
        policies.lower_rate(SimpleNamespace(epoch=epoch, program=SimpleNamespace(config=run)))
        rates.append(policies._optimizers[0].learning_rate)
    assert rates == pytest.approx([0.1 * share for share in (0.9330127, 0.5, 0.0669873)], rel=1e-5)
    assert policies._optimizers[1].learning_rate == 0.2  # a number that is set is constant
