"""Which configuration of a search runs next."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.runs.sweeps.search import Search, rungs


class Listed:
    """Proposes the configurations 0 to `count`; remembers what it is told."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = 0
        self.told: dict[int, float | None] = {}
        self.reported: list[tuple[int, int, float]] = []

    def ask(self) -> int | None:
        if self.asked == self.count:
            return None
        self.asked += 1
        return self.asked - 1

    def report(self, number: int, rung: int, value: float) -> None:
        self.reported.append((number, rung, value))

    def tell(self, number: int, value: float | None) -> None:
        assert self.told.setdefault(number, value) == value


def test_the_rungs_of_a_training():
    assert rungs(9, factor=3, min_epochs=1, num_configurations=27) == [1, 3, 9]
    assert rungs(9, factor=3, min_epochs=2, num_configurations=27) == [3, 9]
    assert rungs(20, factor=3, min_epochs=1, num_configurations=100) == [2, 6, 20]
    assert rungs(27, factor=3, min_epochs=1, num_configurations=4) == [9, 27]  # of four, one is left after one rung
    assert rungs(5, factor=2, min_epochs=1, num_configurations=1) == [5]


def run(search: Search, values: dict[int, list[float | None]], *, slots: int, seed: int) -> list[tuple[int, int]]:
    """Runs the parts of a search on so many slots, which end in any order; the parts as (configuration, rung)."""
    rng = random.Random(seed)
    running = []
    done = []
    while True:
        while len(running) < slots and (part := search.next()) is not None:
            running.append(part)
        if not running:
            return done
        part = running.pop(rng.randrange(len(running)))
        done.append((part.configuration, part.rung))
        value = values[part.configuration][part.rung]
        search.ended(part, None if value is None else value + part.replicate)


numbers = st.none() | st.floats(0, 1, allow_nan=False).map(lambda value: round(value, 2))


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=14),
    slots=st.integers(1, 5),
    seed=st.integers(0, 9),
    replicates=st.integers(1, 3),
    maximize=st.booleans(),
)
def test_halving_is_that_of_the_paper_in_any_order(values, slots, seed, replicates, maximize):
    proposals = Listed(len(values))
    search = Search(proposals, num_configurations=len(values), num_replicates=replicates, num_rungs=3, factor=3,
                    maximize=maximize)  # fmt: skip
    done = run(search, dict(enumerate(values)), slots=slots, seed=seed)
    left = list(range(len(values)))
    sign = -1 if maximize else 1
    for rung in range(3):
        for number in left:
            times = done.count((number, rung))
            assert times == replicates if values[number][rung] is not None else 1 <= times <= replicates
        assert {number for number, at in done if at == rung} == {*left}
        ranked = sorted((number for number in left if values[number][rung] is not None),
                        key=lambda number: (sign * values[number][rung], number))  # fmt: skip
        share = max(1, len(left) // 3)
        left, beaten = ranked[:share], ranked[share:]
        if rung < 2:
            assert {*beaten} == {number for number in search.paused if (number, rung + 1) not in done
                                 and (number, rung) in done}  # fmt: skip
        if not left:
            break
    assert {number for number, value in proposals.told.items() if value is None} == {
        number for number, rung in done if values[number][rung] is None
    }
    assert search.means().keys() == {number for number, value in proposals.told.items() if value is not None}


@settings(max_examples=150, deadline=None)
@given(values=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=14), slots=st.integers(1, 5),
       seed=st.integers(0, 9))  # fmt: skip
def test_without_waiting_the_best_so_far_go_on_and_the_search_ends_with_a_winner(values, slots, seed):
    proposals = Listed(len(values))
    search = Search(proposals, num_configurations=len(values), num_rungs=3, factor=3, waits=False)
    done = run(search, dict(enumerate(values)), slots=slots, seed=seed)
    assert len(done) == len({*done})
    assert {number for number, rung in done if rung == 0} == {*range(len(values))}
    for rung in (1, 2):
        below = [number for number, at in done if at == rung - 1 and values[number][rung - 1] is not None]
        best = min(below, key=lambda number: (values[number][rung - 1], number), default=None)
        assert best is None or (best, rung) in done  # the best of each rung goes on


def test_replicates_count_as_their_mean_and_one_that_fails_ends_its_configuration():
    proposals = Listed(3)
    search = Search(proposals, num_configurations=3, num_replicates=2, num_rungs=1)
    run(search, {0: [1.0], 1: [None], 2: [3.0]}, slots=1, seed=0)
    assert proposals.told == {0: 1.5, 1: None, 2: 3.5}
    assert search.means() == {0: 1.5, 2: 3.5}


@pytest.mark.parametrize("waits", [True, False])
def test_a_restored_search_goes_on_where_the_earlier_process_was(waits):
    proposals = Listed(6)
    proposals.asked = 4
    search = Search(proposals, num_configurations=6, num_replicates=2, num_rungs=2, factor=3, waits=waits)
    search.restore(0, [[0.1, 0.2], [0.1]])  # one replicate of two is at the end
    search.restore(1, [[0.5], [0.5]])  # pauses
    search.restore(2, [[0.3], [None]])  # failed
    search.restore(3, [[], []])  # had not begun
    assert proposals.told == {2: None}
    first = [search.next() for _ in range(3)]
    assert [(part.configuration, part.replicate, part.rung) for part in first] == [(0, 1, 1), (3, 0, 0), (3, 1, 0)]
    for part in first:
        search.ended(part, 0.2)
    values = {3: [0.2, 0.2], 4: [0.05, 0.06], 5: [0.9, None]}
    run(search, values, slots=2, seed=0)
    assert proposals.told.keys() >= {0, 2}
    assert 1 in search.paused


def test_a_configuration_that_had_gone_on_goes_on_again():
    proposals = Listed(0)
    search = Search(proposals, num_configurations=6, num_rungs=2, factor=3, waits=False)
    for number in range(6):
        search.restore(number, [[0.1 * number]], goes_on=number == 4)  # it was among the best of fewer
    parts = run(search, {number: [0.0, 0.0] for number in range(6)}, slots=1, seed=0)
    assert parts == [(4, 1), (0, 1), (1, 1)]


def test_a_job_that_a_person_trained_to_its_end_takes_the_place_of_none():
    search = Search(Listed(0), num_configurations=3, num_rungs=2, factor=3)
    for number in range(3):
        search.restore(number, [[0.5, 0.4]] if number == 2 else [[0.1 * number]])
    search.restore(3, [[0.9, 0.8]])  # of more configurations than there should be
    assert run(search, {0: [0.0, 0.0], 1: [0.0, 0.0]}, slots=1, seed=0) == [(0, 1)]
