"""What Optuna proposes for a search, and what it is told."""

from __future__ import annotations

import pytest

from psrun.runs.sweeps.proposals import OptunaProposals, Parameter, num_combinations

optuna = pytest.importorskip("optuna", minversion="5", reason="the extra psrun[optuna] is missing")
pytestmark = pytest.mark.thorough  # the test extra has no Optuna
WORDS = Parameter("model", ("cnn", "dense"))
RATE = Parameter("optimizer.learning_rate", low=0.001, high=1.0, is_log=True)
SIZE = Parameter("batch", low=32, high=128, step=32, is_integer=True)


def proposals(folder, method, *space, seed=1):
    return OptunaProposals(folder, method, space, maximize=False, seed=seed)


def states(study):
    return [trial.state.name for trial in study._study.trials]


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_the_same_seed_proposes_the_same_within_the_ranges(tmp_path, method):
    both = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        study = proposals(tmp_path / name, method, WORDS, RATE, SIZE)
        for _ in range(12):
            number = study.ask()
            study.tell(number, float(number % 5))
        both.append([study.overrides(number) for number in study.numbers])
    assert both[0] == both[1]
    rates = [float(each[1].partition("=")[2]) for each in both[0]]
    assert min(rates) >= 0.001
    assert max(rates) <= 1
    assert sum(rate < 0.03 for rate in rates) >= 2  # half of a logarithmic range
    assert {each[2] for each in both[0]} <= {"batch=32", "batch=64", "batch=96", "batch=128"}
    other = tmp_path / "other"
    other.mkdir()
    assert proposals(other, method, WORDS, RATE, SIZE, seed=2).ask() == 0


@pytest.mark.parametrize("method", ["tpe", "random"])
@pytest.mark.parametrize(("low", "step"), [(0.1, 0.1), (1e6, 1.0), (0.0, 1e-7)])
def test_no_float_of_a_range_with_steps_is_proposed_twice(tmp_path, method, low, step):
    study = proposals(tmp_path, method, Parameter("rate", low=low, high=low + 4 * step, step=step))
    seen = []
    while (number := study.ask()) is not None:
        seen += study.overrides(number)
        study.tell(number, 1.0)
    assert sorted(float(each.partition("=")[2]) for each in seen) == pytest.approx([low + i * step for i in range(5)])
    assert len({*seen}) == 5


@pytest.mark.parametrize("method", ["tpe", "random", "grid"])
def test_no_combination_is_proposed_twice(tmp_path, method):
    study = proposals(tmp_path, method, WORDS, SIZE)
    assert num_combinations([WORDS, SIZE]) == 8
    seen = []
    while (number := study.ask()) is not None:
        seen.append(tuple(study.overrides(number)))
        study.tell(number, 1.0)
    assert len(seen) == len({*seen}) == 8
    if method == "grid":
        assert [*map(list, seen)] == study.all_overrides()


def test_a_trial_whose_job_is_gone_has_failed_and_its_number_is_used_again(tmp_path):
    study = proposals(tmp_path, "random", RATE)
    kept = [study.overrides(study.ask()) for _ in range(3)][:2]
    study.report(1, 0, 0.25)
    (tmp_path / "search.journal.lock").symlink_to("nowhere")  # as a killed process leaves it
    with (tmp_path / "search.journal").open("ab") as journal:
        journal.write(b'{"op_code": 6, "wor')  # as a full disk leaves it
    study = proposals(tmp_path, "random", RATE)
    study.keep({0, 1})
    assert [study.overrides(number) for number in study.numbers] == kept
    assert states(study) == ["RUNNING", "RUNNING", "FAIL"]
    assert study.ask() == 2
    assert study.overrides(2) not in kept
    study.tell(0, 0.5)
    study.tell(0, 0.5)
    study.tell(2, float("inf"))
    study.prune([1])
    assert states(study) == ["COMPLETE", "PRUNED", "FAIL", "FAIL"]
    assert study._study.trials[1].value == 0.25
    assert study._study.best_value == 0.5


def test_a_grid_keeps_its_order_after_a_process_that_ended_while_it_asked(tmp_path):
    study = proposals(tmp_path, "grid", WORDS, SIZE, seed=2)
    study.ask()
    study._study.enqueue_trial({"model": "cnn", "batch": 64})  # and was killed before it asked for this trial
    study = proposals(tmp_path, "grid", WORDS, SIZE, seed=2)
    study.keep({0})
    rest = [study.overrides(study.ask()) for _ in range(7)]
    assert rest == study.all_overrides()[1:]
    study.keep({5})  # the others were removed
    assert [study.ask() for _ in range(7)] == [0, 1, 2, 3, 4, 6, 7]
    assert [study.overrides(number) for number in study.numbers] == study.all_overrides()
