"""What a search varies, as its arguments say it in Hydra's sweep syntax."""

from __future__ import annotations

from psrun.config import composition
from psrun.errors import Problem
from psrun.runs.sweeps.hydra_search import Space
from psrun.runs.sweeps.proposals import num_combinations, problems


def space(*arguments: str, method: str = "random") -> Space:
    return Space.of(arguments, method, None)


def found(*arguments: str, method: str = "random") -> list[str]:
    return [f"{each.key}: {each.message}" for each in problems(method, space(*arguments, method=method).parameters)]


def test_values_count_once_and_in_an_order_that_is_found_again():
    twice = [space("optimizer.learning_rate=shuffle(0.3,0.1,0.2,0.1)", "seed=shuffle(3,1,2,1)") for _ in range(2)]
    assert twice[0] == twice[1]
    assert twice[0].parameters[0].values == ("0.3", "0.1", "0.2")
    assert twice[0].replicates == ("seed=3", "seed=1", "seed=2")


def test_a_range_is_sampled_as_optuna_can_or_is_a_list():
    (steps,) = space("a=range(32,129,32)").parameters
    assert (steps.low, steps.high, steps.step, steps.is_integer, steps.values) == (32, 128, 32, True, None)
    (backwards,) = space("a=range(10,1,-3)").parameters
    assert (backwards.low, backwards.high, backwards.step) == (4, 10, 3)
    (listed,) = space("a=tag(log,range(1.0,4.0))").parameters  # Optuna has no logarithmic range of floats with steps
    assert listed.values == ("1.0", "2.0", "3.0")
    (integers,) = space("a=int(interval(1000000,2000000000))").parameters
    assert integers.samples == ["1000000", "2000000000"]  # not 1e+06, which is no integer
    assert num_combinations([integers]) == 1_999_000_001


def test_ranges_that_have_no_numbers_or_no_end_are_problems():
    assert "without numbers" in found("a=range(5,1)")[0]
    assert "finite" in found("a=interval(1,inf)")[0]
    assert "finite" in found("a=interval(nan,1)")[0]
    assert "first must be smaller" in found("a=interval(1,1)")[0]
    assert "100,000 combinations" in found("a=int(interval(1,1000000))", method="grid")[0]


def test_arguments_with_plus_signs_are_those_without():
    given = space("++seed=1,2", "++sweep.num_trials=2", "++a=1,2")
    assert given.replicates == ("++seed=1", "++seed=2")
    assert given.of_sweep == ("++sweep.num_trials=2",)
    assert [each.key for each in given.parameters] == ["++a"]


def test_a_key_that_is_varied_twice_is_a_problem():
    assert found("a=1,2", "b=1,2", "a=3,4") == ["a: is varied twice; keep one of the arguments"]


def test_a_key_of_the_sweep_has_one_value():
    argument = "sweep.num_trials=2,3"
    assert composition.problems_of_arguments([argument], sweeps=True)[argument].key == "sweep.num_trials"


def test_the_examples_that_are_checked_have_each_value_once():
    given = space("sweep.num_trials=2", "model=cnn,dense", "a=interval(0,1)", "b=1,2,3", "seed=4,5")
    rest = "sweep.num_trials=2", "seed=4"
    assert [{*each} - {*rest} for each in given.examples()] == [
        {"model=cnn", "a=0.001", "b=1"},
        {"model=dense", "a=0.001", "b=1"},
        {"model=cnn", "a=0.31831", "b=1"},
        {"model=cnn", "a=0.999", "b=1"},
        {"model=cnn", "a=0.001", "b=2"},
        {"model=cnn", "a=0.001", "b=3"},
    ]
    assert len([*space(f"b={','.join(map(str, range(1000)))}").examples()]) == 20


def test_a_range_of_fractions_for_an_integer_is_explained_once():
    given = space("++a=interval(4,9)", "b=tag(log,interval(1,9))", "c=interval(0.5,2)", "d=1,2")
    problems = [Problem(key, f"is {value}, must be an integer") for value in (4.5, 6.5) for key in "abcd"]
    assert [(each.key, each.message) for each in given.explained(problems)] == [
        ("a", "is 4.5, must be an integer; the integers of the range are int(interval(4,9))"),
        ("b", "is 4.5, must be an integer; the integers of the range are tag(log,int(interval(1,9)))"),
        ("c", "is 4.5, must be an integer"),
        ("d", "is 4.5, must be an integer"),
        ("d", "is 6.5, must be an integer"),
    ]
