"""`psrun report --against`: which runs are pairs, and the test of their differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import a_run

from psrun.errors import ExitCode
from psrun.runs.report import comparison
from psrun.runs.report.commands import main

pytest.importorskip("statsmodels", reason="pip install -e '.[test]'")
stats = pytest.importorskip("scipy.stats", reason="pip install -e '.[test]'")

# Additional hours of sleep of ten patients (Student, The Probable Error of a Mean, 1908), and what R says of them.
DEXTRO = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
LAEVO = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


AUC = ("--metric", "val_auc")


def by_seed(values: list[float]) -> dict[Any, float]:
    return dict(enumerate(values))


def test_the_tests_are_those_of_the_literature():
    found = comparison.paired(by_seed(DEXTRO), by_seed(LAEVO))
    assert found.number == 10
    assert [found.difference, found.low, found.high] == pytest.approx([-1.58, -2.4598858, -0.7001142], abs=1e-7)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    welch = comparison.unpaired(DEXTRO, LAEVO)
    assert [welch.low, welch.high, welch.p] == pytest.approx([-3.3654832, 0.2054832, 0.07939], abs=1e-5)
    # Holm (1979): the smallest of four p values counts four times, the next three times; none falls below one before.
    four = [comparison.MeanDifference(3, 0, 0, p=p) for p in (0.01, 0.04, 0.03, 0.005)]
    untested = comparison.MeanDifference(1, 0, 0)
    adjusted = [each and each.adjusted for each in comparison.corrected([*four, untested, None])]
    assert adjusted[:4] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted[4:] == [None, None]


VALUES = st.lists(st.tuples(*[st.integers(-1000, 1000)] * 3), min_size=2, max_size=8)


@given(VALUES)
def test_what_pairs_have_in_common_does_not_count(triples):
    """A term that both runs of a pair have, such as the luck of a seed, changes neither difference nor test."""
    sample, against, luck = ([number / 100 for number in each] for each in zip(*triples))
    found = comparison.paired(by_seed(sample), by_seed(against))
    lucky = [by_seed([value + more for value, more in zip(values, luck)]) for values in (sample, against)]
    shifted = comparison.paired(*lucky)
    swapped = comparison.paired(by_seed(against), by_seed(sample))
    assert shifted.difference == pytest.approx(found.difference, abs=1e-9)
    assert swapped.difference == pytest.approx(-found.difference)
    each = [round(a - b, 9) for a, b in zip(sample, against)]
    if len(set(each)) == 1:
        assert (found.p, shifted.p, swapped.p) == (None, None, None)
        return
    expected = stats.ttest_1samp(each, 0)
    low, high = expected.confidence_interval(0.95)
    assert [found.low, found.high, found.p] == pytest.approx([low, high, expected.pvalue], rel=1e-6, abs=1e-9)
    assert [shifted.p, swapped.p] == pytest.approx([found.p] * 2, rel=1e-6, abs=1e-9)
    assert [swapped.low, swapped.high] == pytest.approx([-found.high, -found.low])


def with_rate(rate: float) -> dict[str, Any]:
    return {"optimizer": {"_target_": "tf_keras.optimizers.Adagrad", "learning_rate": rate}}


@pytest.fixture
def compared(capfd):
    """The comparisons of `psrun report`, as JSON has them."""

    def run(*arguments: object) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert main([*map(str, arguments), "--json", "-"]) == ExitCode.DONE
        return json.loads(capfd.readouterr().out)

    return run


def sides(folder: Path) -> tuple[Path, Path]:
    """New: seeds 1 to 4 with two partitioners. Base: seeds 4 to 1, and 9, which is nobody's partner."""
    for seed in (1, 2, 3, 4):
        a_run(folder / "new" / f"a{seed}", seed=seed, auc=0.5 + 0.01 * seed**2, partitioner="fixed_shards")
        a_run(folder / "new" / f"b{seed}", seed=seed, auc=0.6 + 0.02 * seed**2, workers=4)
    for number, seed in enumerate((4, 3, 2, 1, 9)):
        a_run(folder / "base" / str(number), seed=seed, auc=0.4 + 0.01 * seed)
    return folder / "new", folder / "base"


def test_runs_are_paired_by_seed_and_each_configuration_is_compared(tmp_path, compared):
    new, base = sides(tmp_path)
    found = compared(new, "--against", base, "--metric", "val_auc", "--metric", "val_loss")
    assert [(each["configuration"], each["metric"]) for each in found] == [
        ("partitioner=fixed_shards", "val_auc"), ("partitioner=fixed_shards", "val_loss"),
        ("num_workers=4", "val_auc"), ("num_workers=4", "val_loss"),
    ]  # fmt: skip
    against = [0.4 + 0.01 * seed for seed in (1, 2, 3, 4)]
    p_values = []
    for each, sample in ((found[0], [0.51, 0.54, 0.59, 0.66]), (found[2], [0.62, 0.68, 0.78, 0.92])):
        expected = stats.ttest_rel(sample, against)
        low, high = expected.confidence_interval(0.95)
        assert each["number"] == 4
        assert each["mean_against"] == pytest.approx(0.425)
        numbers = [each[name] for name in ("difference", "low", "high", "p")]
        difference = sum(sample) / 4 - 0.425
        assert numbers == pytest.approx([difference, low, high, expected.pvalue])
        p_values.append(expected.pvalue)
    least, most = sorted(p_values)
    adjusted = sorted(each["adjusted"] for each in found if each["p"] is not None)
    assert adjusted == pytest.approx([2 * least, max(2 * least, most)])
    # The loss of all runs is the same: there is nothing to test.
    assert {(each["p"], each["difference"]) for each in (found[1], found[3])} == {(None, 0.0)}
    assert "no test" in found[1]["reason"]


def test_other_keys_that_vary_on_both_sides_make_rows(tmp_path, compared, capfd):
    """Runs of two learning rates with the same seed are not independent pairs."""
    values = {(0.1, 1): 0.6, (0.1, 2): 0.63, (0.2, 1): 0.7, (0.2, 2): 0.76}
    for (rate, seed), auc in values.items():
        name = f"{rate}-{seed}"
        a_run(tmp_path / "new" / name, seed=seed, auc=auc, config=with_rate(rate), partitioner="fixed_shards")
        a_run(tmp_path / "base" / name, seed=seed, auc=auc - 0.01 * seed, config=with_rate(rate))
    found = compared(tmp_path / "new", "--against", tmp_path / "base", *AUC)
    names = [f"partitioner=fixed_shards, learning_rate={rate}" for rate in (0.1, 0.2)]
    assert [(each["configuration"], each["number"]) for each in found] == [(name, 2) for name in names]
    assert found[0]["runs"] == ["new/0.1-1", "new/0.1-2"]
    assert found[0]["against"] == ["base/0.1-1", "base/0.1-2"]
    assert [each["mean_against"] for each in found] == pytest.approx([(0.59 + 0.61) / 2, (0.69 + 0.74) / 2])
    assert found[0]["p"] == pytest.approx(stats.ttest_1samp([0.01, 0.02], 0).pvalue)
    # Of a baseline that has more values than the others, the same are partners.
    (part,) = compared(tmp_path / "new" / "0.1-1", tmp_path / "new" / "0.1-2", "--against", tmp_path / "base", *AUC)
    assert (part["configuration"], part["number"]) == (names[0], 2)
    assert part["against"] == ["base/0.1-1", "base/0.1-2"]
    # Runs of a key and seed that were repeated count as their mean.
    a_run(tmp_path / "base" / "again", seed=1, auc=0.6, config=with_rate(0.1))
    again, _ = compared(tmp_path / "new", "--against", tmp_path / "base", *AUC)
    assert again["number"] == 2
    assert again["difference"] == pytest.approx((0.005 + 0.02) / 2)
    main([str(tmp_path / "new"), "--against", str(tmp_path / "base"), *AUC])
    assert "Paired by seed, within the same optimizer.learning_rate." in capfd.readouterr().out
    # So are they without pairs.
    apart = compared(tmp_path / "new", "--against", tmp_path / "base", *AUC, "--unpaired")
    assert [each["configuration"] for each in apart] == names


def test_a_line_says_where_sides_were_not_trained_on_equally_many_examples(tmp_path, capfd):
    """As with consistency=sync, where a step has the batches of all workers."""
    for seed in (1, 2):
        speed = {"steps_per_s": 5.0, "examples_per_s": 640.0}
        a_run(tmp_path / "new" / str(seed), seed=seed, partitioner="fixed_shards", **speed)
        a_run(tmp_path / "base" / str(seed), seed=seed, auc=0.8, **{**speed, "steps_per_s": 10.0})
    main([str(tmp_path / "new"), "--against", str(tmp_path / "base"), *AUC])
    steps = json.loads((tmp_path / "new" / "1" / "run.json").read_text())["steps"]["applied"]
    found = f"partitioner=fixed_shards on {128 * steps:,} against {64 * steps:,}"
    assert f"Not trained on equally many examples: {found}." in capfd.readouterr().out
    main([str(tmp_path / "base" / "1"), "--against", str(tmp_path / "base" / "2"), *AUC, "--unpaired"])
    assert "equally many" not in capfd.readouterr().out


def test_what_the_terminal_says_of_few_pairs_and_of_runs_that_are_left_out(tmp_path, capfd):
    for seed in (1, 2, 3):
        a_run(tmp_path / "runs" / f"new{seed}", seed=seed, partitioner="fixed_shards")
    failed = {"status": "failed", "error": {"type": "E", "message": "no"}}
    a_run(tmp_path / "runs" / "base1", seed=1, auc=0.8)
    a_run(tmp_path / "runs" / "base2", seed=2, **failed)
    # Runs of the first folder that are in --against, too, are the baseline.
    baseline = [str(tmp_path / "runs" / name) for name in ("base1", "base2")]
    main([str(tmp_path / "runs"), "--against", *baseline, "--metric", "val_auc"])
    text = " ".join(capfd.readouterr().out.split())
    assert "partitioner=fixed_shards val_auc 1 0.9 0.8 +0.1 no test" in text
    assert "A test needs two pairs or more" in text
    assert "runs without a partner (2)" in text
    assert "runs that are not completed (1)" in text
    main([str(tmp_path / "runs"), "--against", *baseline, "--metric", "val_auc", "--unpaired"])
    assert "Welch's t test" in capfd.readouterr().out


def test_the_metric_of_the_sweep_is_compared(tmp_path, compared):
    new, base = sides(tmp_path)
    record = {"arguments": [], "metric": "val_auc", "mode": "max", "jobs": []}
    (new / "sweep.json").write_text(json.dumps(record))
    assert {each["metric"] for each in compared(new, "--against", base)} == {"val_auc"}
    (new / "sweep.json").unlink()
    assert {each["metric"] for each in compared(new, "--against", base)} == {"val_loss"}
