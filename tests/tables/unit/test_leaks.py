"""Columns that decide a label by themselves, in tables of several blocks, and the line that names them."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest
import table_files

from psrun.tables import formats, leaks, profiles, proposals
from psrun.tables.rows import Layout

COUNT = 4000
RNG = random.Random(1)
COIN = [RNG.randrange(2) for _ in range(COUNT)]
WAGE = [round(RNG.lognormvariate(4, 0.3), 1) for _ in range(COUNT)]
UNIQUE = [RNG.random() for _ in range(COUNT)]
RARE = [int(RNG.random() < 0.01) for _ in range(COUNT)]
USER = [f"user {RNG.randrange(200)}" for _ in range(COUNT)]
BY_USER = [int(word.split()[1]) % 3 for word in USER]
SEVERAL = [n % 60 for n in range(COUNT)]
MOST = [value % 2 for value in SEVERAL]
ONE_ODD = [*MOST[:-1], 1 - MOST[-1]]
GAPS = [None if n % 7 == 0 else value for n, value in enumerate(SEVERAL)]
LABEL_GAPS = [None if n % 11 == 0 else value for n, value in enumerate(MOST)]


def words(values: list) -> list[str]:
    return ["NA" if value is None else str(value) for value in values]


def decides(values: list | pa.Array, labels: list | pa.Array, num_blocks: int = 4) -> bool:
    batch = pa.record_batch({"x": values, "y": labels})
    found = leaks.Leaks(batch.schema, ["y"])
    length = -(-batch.num_rows // num_blocks)
    for start in range(0, batch.num_rows, length):
        found.add(batch.slice(start, length))
    return found.labels_by_column() == {"x": ["y"]}


@pytest.mark.parametrize(
    ("values", "labels", "expected"),
    [
        ([math.log(wage) for wage in WAGE], WAGE, True),
        ([int(wage > 60) for wage in WAGE], WAGE, False),
        (WAGE, [int(wage > 60) for wage in WAGE], True),
        (USER, BY_USER, True),
        (USER, COIN, False),
        (SEVERAL, MOST, True),
        (words(SEVERAL), words(MOST), True),
        (SEVERAL, ONE_ODD, False),  # in the last row
        (pa.array(words(SEVERAL)).dictionary_encode(), MOST, True),
        (pa.array([value > 30 for value in SEVERAL]), [int(value > 30) for value in SEVERAL], True),
        # Copies.
        (COIN, COIN, True),
        (UNIQUE, UNIQUE, True),
        (UNIQUE, [*UNIQUE[:-1], 0.5], False),
        ([n / 7 for n in range(20_000)], [n / 7 for n in range(20_000)], True),  # more values than are kept
        # A value in each row tells nothing, and few rows tell little.
        (UNIQUE, COIN, False),
        (UNIQUE, sorted(UNIQUE), False),
        ([*range(20_000)] * 2, [0, 1] * 20_000, False),  # too many values
        ([1, 1, 2, 2], [0, 0, 1, 1], False),
        ([0, 1] * 10, [0, 1] * 10, False),
        ([0, 1] * 11, [0, 1] * 11, True),
        # Most rows have one label anyway.
        ([n // 2 for n in range(1000)], [0] * 990 + [1] * 10, False),
        ([n // 8 for n in range(COUNT)], [int(n >= COUNT // 2) for n in range(COUNT)], True),
        ([n // 2 for n in range(COUNT)], RARE, False),
        # Constants.
        ([1] * COUNT, COIN, False),
        (COIN, [1] * COUNT, False),
        # A missing value is a value, and a row without a label is none.
        (GAPS, [int(value is None) for value in GAPS], True),
        (GAPS, MOST, False),  # missing ones have both labels
        (SEVERAL, LABEL_GAPS, True),
        (words(SEVERAL), words(LABEL_GAPS), True),
        (SEVERAL, [math.nan if value is None else float(value) for value in LABEL_GAPS], True),
        (SEVERAL, [None] * COUNT, False),
        (SEVERAL, ["none" if value is None else str(value) for value in LABEL_GAPS], False),  # may be a class
        # What is neither number nor word.
        ([[value] for value in SEVERAL], MOST, False),
        ([{"a": value} for value in SEVERAL], MOST, False),
        (SEVERAL, [[value] for value in MOST], False),
        (pa.nulls(COUNT), COIN, False),
    ],
)  # fmt: skip
def test_a_column_decides_a_label_if_each_of_its_values_has_one_label_and_not_by_chance(values, labels, expected):
    assert decides(values, labels) is expected
    assert decides(values, labels, num_blocks=1) is expected


def notes(path, labels: tuple[str, ...], folder=None) -> list[str]:
    form = formats.detect([str(path)])
    layout = Layout(form, formats.TEXT.get(form, ","))
    looked = profiles.profile_files([str(path)], layout, cache=folder, labels=labels)
    return list(proposals.leak_warnings(proposals.propose(looked.values(), labels)))


ADVICE = (
    "decides the label by itself: each of its values has one label. If it is not known when you predict, leave it "
    "out: {}. If its values are groups, such as users, hold out whole groups: data.split.by=group data.split.column="
)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_one_line_a_label_names_the_columns_that_decide_it_and_are_features(tmp_path, ending):
    path = table_files.write(
        tmp_path / f"rows.{ending}",
        {
            "coin": COIN, "wage": WAGE, "logwage": [math.log(wage) for wage in WAGE], "a b": WAGE, "b": WAGE, "c": WAGE,
            "it is": COIN, "nr": [*range(COUNT)], "Unnamed: 0": COIN, "noise": SEVERAL,
        },
    )  # fmt: skip
    expected = {
        "wage": "label wage: each of logwage, a b, b and 1 more "
        + ADVICE.format("""'data.exclude=[logwage,"a b",b,c]'""")
        + "logwage",
        "coin": "label coin: it is " + ADVICE.format("""'data.exclude=["it is"]'""") + "'it is'",
    }
    assert notes(path, ("wage", "coin"), tmp_path / "cache") == [*expected.values()]
    assert notes(path, ("wage", "coin"), tmp_path / "cache") == [*expected.values()]  # from the cache
    assert notes(path, ("coin",), tmp_path / "cache") == [expected["coin"]]
    assert notes(path, ("noise",), tmp_path / "cache") == []
