"""Gradients that are applied late in one process, against plain training and against gradient descent by hand."""

from __future__ import annotations

import json

import delayed
import numpy as np
import pytest
from outcomes import check_equal
from support import STEPS, variables

from psrun.results.events import staleness_by_worker
from psrun.results.run_folder import RunFolder
from psrun.virtual.times import delay_probabilities

LATE = ("cluster=virtual", "cluster.delay=constant")

AWARE = ("optimizer.staleness_aware=true", "optimizer.delay_compensation=0.5")


def weights(folder: RunFolder) -> dict[str, np.ndarray]:
    return {name: value for name, value in variables(folder).items() if np.size(value) > 1}


@pytest.mark.thorough
@pytest.mark.tensorflow
@pytest.mark.part("recsys")
def test_without_delay_all_bits_are_those_of_plain_training(train):
    pieces = ("trainer=custom_loop", "model=wide_deep", "optimizer=lazy_adam")
    plain, here = train(*pieces, "cluster=none")
    late, there = train(*pieces, *LATE, "cluster.mean_delay=0")
    assert late["metrics"] == plain["metrics"]
    assert late["staleness"]["histogram"] == [[0, 2 * STEPS]]
    assert "virtual" not in late
    check_equal(variables(there), variables(here))


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("options", "formula"),
    [((), {}), (AWARE, {"late_rate": delayed.divided_rate, "compensation": 0.5})],
)
def test_a_constant_delay_is_delayed_gradient_descent(train, options, formula):
    steps = ("trainer.epochs=1", "trainer.steps_per_epoch=20", "trainer.steps_per_execution=5")
    result, folder = train(*delayed.LINEAR, *LATE, "cluster.mean_delay=3", "trainer=custom_loop", *steps, *options)
    delayed.check(weights(folder), *delayed.by_hand(delayed.delayed(3, 20), 0.1, **formula))
    assert result["staleness"]["histogram"] == [[0, 1], [1, 1], [2, 1], [3, 17]]


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_a_recorded_histogram_is_reproduced_with_the_seed_and_after_a_resume(train, tmp_path):
    recorded = {0: 50, 1: 120, 2: 20, 6: 10}
    (tmp_path / "run.json").write_text(json.dumps({"staleness": staleness_by_worker({"worker-0": recorded})}))
    num_steps = 400
    pieces = (*delayed.LINEAR, "cluster=virtual", "cluster.delay=recorded", "trainer=custom_loop",
              f"cluster.like={tmp_path}", f"trainer.steps_per_epoch={num_steps}",
              "trainer.steps_per_execution=100")  # fmt: skip
    result, folder = train(*pieces)
    drawn = dict(result["staleness"]["histogram"])
    for delay, number in recorded.items():
        share = number / sum(recorded.values())
        sampled = 4 * np.sqrt(share * (1 - share) * 2 * num_steps)  # four standard deviations
        assert drawn[delay] == pytest.approx(
            2 * num_steps * share, abs=sampled + 2 * 6
        )  # an epoch begins without delay
    _, first_epoch = train(*pieces, "trainer.epochs=1")
    again, resumed = train(*pieces, into=RunFolder.resume(first_epoch.path, completed=True))
    assert again["staleness"] == result["staleness"]
    _, other = train(*pieces, "seed=2")
    for name, values in weights(folder).items():
        np.testing.assert_array_equal(weights(resumed)[name], values, err_msg=name)
        assert np.abs(weights(other)[name] - values).max() > 0, name


def test_probabilities_have_the_configured_mean():
    assert delay_probabilities("constant", 2, None) == [0, 0, 1]
    assert delay_probabilities("uniform", 1.5, None) == [0.25] * 4
    geometric = delay_probabilities("geometric", 4, None)
    assert sum(geometric) == pytest.approx(1)
    assert sum(delay * share for delay, share in enumerate(geometric)) == pytest.approx(4, rel=0.02)
    assert geometric[1] / geometric[0] == pytest.approx(0.8)
    assert delay_probabilities("geometric", 0, None) == [1]
