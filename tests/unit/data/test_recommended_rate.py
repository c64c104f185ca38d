"""The learning rate that follows from the data."""

from __future__ import annotations

import pytest
from support import run_config

from psrun.data import load

pytestmark = pytest.mark.tensorflow


class Recommending:
    num_train_examples = 1000

    def recommended(self, global_batch_size):
        return {"learning_rate": 0.003, "learning_rate_falls": True}


class Silent:
    num_train_examples = 1000


@pytest.mark.parametrize(
    ("source", "overrides", "rate", "falls"),
    [
        (Recommending, [], 0.003, True),
        (Silent, [], 0.001, False),
        (Recommending, ["optimizer.learning_rate=0.02"], 0.02, False),
        (Recommending, ["reduce_lr.metric=loss", "reduce_lr.mode=min"], 0.003, False),
    ],
)
def test_auto_is_the_rate_that_the_data_recommends(source, overrides, rate, falls):
    planned = load.planned(run_config("optimizer=lazy_adam", *overrides), source())
    assert (planned.optimizer.options["learning_rate"], planned.learning_rate_falls) == (rate, falls)
    assert planned.raw["optimizer"]["learning_rate"] == ("auto" if not overrides or "reduce" in overrides[0] else rate)


@pytest.mark.inprocess
@pytest.mark.parametrize("trainer", ["custom_loop", "fit"])
def test_a_rate_falls_by_half_a_cosine_wave_over_the_epochs(train, monkeypatch, trainer):
    from psrun.training.metric_policies import MetricPolicies

    rates = []
    lower_rate = MetricPolicies.lower_rate

    def noted(self, context):
        lower_rate(self, context)
        rates.append(float(context.program.optimizer.learning_rate))

    monkeypatch.setattr(MetricPolicies, "lower_rate", noted)
    monkeypatch.setattr(load, "_recommended", lambda source, size: {"learning_rate": 0.1, "learning_rate_falls": True})
    train(
        "optimizer=lazy_adam", f"trainer={trainer}", "trainer.epochs=3", "evaluation=none", "trainer.steps_per_epoch=6"
    )
    assert rates == pytest.approx([0.1 * share for share in (0.9330127, 0.5, 0.0669873)], rel=1e-5)
