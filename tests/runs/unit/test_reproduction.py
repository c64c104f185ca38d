"""When a run counts as reproduced: equal numbers, rounding, the spread of seeds."""

from __future__ import annotations

from statistics import mean, stdev

import pytest
from recorded_runs import a_run
from support import run_config

from psrun.errors import ConfigError
from psrun.runs import reproduction
from psrun.runs.reproduction import Comparison, Determinism, Difference, Spread

EXACT = Determinism(True, "one worker")
ROUNDED = Determinism(True, "synchronous", rounding=1e-5)
FREE = Determinism(False, "asynchronous")
SPREAD = Spread("3 seeds", {"val_auc": [0.70, 0.71, 0.72]})
NONE = Spread()
PACKAGE = [Difference("package numpy", "1", "2")]
MEMORY = [Difference("memory", "1 GB", "2 GB", matters=False)]


@pytest.mark.parametrize(
    ("now", "steps", "determinism", "spread", "differences", "equal", "reproduced"),
    [
        (0.71, 40, EXACT, NONE, [], True, True),
        (0.71, 40, FREE, NONE, PACKAGE, True, True),
        (0.71, 39, EXACT, NONE, [], False, False),
        (0.7100001, 40, EXACT, NONE, [], False, False),
        (0.7100001, 40, ROUNDED, NONE, [], True, True),
        (0.72, 40, ROUNDED, SPREAD, [], False, False),  # must be equal, whatever the seeds show
        (0.72, 40, EXACT, SPREAD, MEMORY, False, False),
        (0.72, 40, EXACT, SPREAD, PACKAGE, False, True),
        (0.72, 40, FREE, SPREAD, [], False, True),
        (0.80, 40, FREE, SPREAD, [], False, False),
        (0.72, 39, FREE, SPREAD, [], False, False),
        (0.72, 40, FREE, NONE, [], False, False),  # not judged
        (None, 40, FREE, SPREAD, [], False, False),
    ],
)
def test_verdicts(now, steps, determinism, spread, differences, equal, reproduced):
    compared = Comparison(
        {"val_auc": 0.71}, {} if now is None else {"val_auc": now}, (40, steps), spread, "val_auc", determinism,
        differences,
    )  # fmt: skip
    assert (compared.equal, compared.is_reproduced) == (equal, reproduced)
    assert compared.verdict.startswith("reproduced") == reproduced
    assert compared.facts["reproduced"] == reproduced


@pytest.mark.parametrize("number", [3, 10, 31])
def test_the_interval_is_that_of_one_more_run(number):
    stats = pytest.importorskip("scipy.stats")
    values = [(7 * index) % 11 / 10 for index in range(number)]
    low, high = Spread("", {"loss": values}).interval("loss")
    half = stats.t.ppf(0.975, number - 1) * stdev(values) * (1 + 1 / number) ** 0.5
    assert (low, high) == pytest.approx((mean(values) - half, mean(values) + half), rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "changes", "rounding"),
    [
        (("cluster=none",), {}, 0.0),
        (("cluster=inprocess",), {"cluster": {"num_workers": 1}}, 0.0),
        (("cluster=inprocess", "trainer.prefetch_rows=true"), {"cluster": {"num_workers": 1}}, None),
        (("cluster=inprocess",), {"cluster": {"num_workers": 2}}, None),
        (("cluster=inprocess", "consistency=ssp"), {"cluster": {"num_workers": 2}}, None),
        (("cluster=inprocess", "consistency=sync"), {"cluster": {"num_workers": 2}}, 1e-5),
        (("cluster=inprocess", "cluster.num_workers=3", "consistency=sync", "consistency.backup_workers=1"),
         {"cluster": {"num_workers": 3}}, None),
        (("cluster=local",), {"cluster": {"num_workers": 1}, "recoveries": [{"task": "ps-0"}]}, None),
        (("cluster=none",), {"environment": {"hardware": {"gpus": ["H100"]}}}, None),
    ],
)  # fmt: skip
def test_what_must_give_equal_numbers(overrides, changes, rounding):
    found = reproduction.determinism(run_config(*overrides), [changes, changes])
    assert (found.rounding if found.equal else None) == rounding
    assert not reproduction.determinism(run_config(*overrides), [changes, changes], resumed=True).equal


def test_the_spread_is_that_of_completed_runs_which_differ_in_the_seed(tmp_path):
    for seed in (1, 2, 3, 4):
        a_run(tmp_path / f"seed{seed}", seed=seed, auc=0.7 + seed / 100)
    a_run(tmp_path / "failed", seed=5, auc=0.1, status="failed")
    a_run(tmp_path / "other", seed=6, auc=0.2, workers=4)
    found = reproduction.spread(tmp_path / "seed1", [tmp_path], named=True)
    assert (sorted(found.values["val_auc"]), found.sample) == ([0.71, 0.72, 0.73, 0.74], "4 seeds")
    assert reproduction.spread(tmp_path / "other", [tmp_path], named=False) == Spread()
    with pytest.raises(ConfigError):
        reproduction.spread(tmp_path / "other", [tmp_path], named=True)
    for number in (1, 2):
        a_run(tmp_path / f"again{number}", seed=1, auc=0.71 + number / 1000)
    found = reproduction.spread(tmp_path / "seed1", [tmp_path], named=False)
    assert (sorted(found.values["val_auc"]), found.sample) == ([0.71, 0.711, 0.712], "3 runs with the same seed")
