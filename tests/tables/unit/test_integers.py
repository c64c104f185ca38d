"""Integers of files: none passes through a float on its way to a feature, a vocabulary, a display or a prediction."""

from __future__ import annotations

import decimal
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import table_files
from hypothesis import example, given, settings
from hypothesis import strategies as st
from table_files import converted

from psrun.tables import columns, formats, profiles, proposals, splits
from psrun.tables.columns import ColumnSpec
from psrun.tables.commands import main
from psrun.tables.rows import Rows

KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REPEATS = 20  # rows of each value: the guess takes them for ids
any_file = settings(deadline=None, derandomize=True, max_examples=15)
ENDS = {"int64": [-(2**63), -(2**63) + 1, 2**53 + 1, 2**63 - 1], "uint64": [0, 2**53 + 1, 2**63, 2**64 - 1]}


def layout_of(path: Path) -> formats.Layout:
    form = formats.detect([str(path)])
    return formats.Layout(form, formats.TEXT.get(form, ","))


@any_file
@given(
    st.sampled_from(KINDS).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(st.integers(*ends(kind)) | st.none(), min_size=2, unique=True))
    )
)
@example(("int64", [*ENDS["int64"], None]))
@example(("uint64", [*ENDS["uint64"], None]))
def test_integers_of_every_width_are_read_and_guessed_as_they_are(tmp_path_factory, written):
    kind, values = written
    folder = tmp_path_factory.mktemp("files")
    rows = pa.array(values * REPEATS, kind)
    present = sorted({value for value in values if value is not None})
    fitting = [-7 if value is None else value for value in values if value is None or value < 2**63]
    for ending in ("csv", "parquet", "feather"):
        path = table_files.write(folder / f"rows.{ending}", {"user_id": rows})
        found, bad = converted(path, "user_id", "int64", -7)
        assert (found, len(bad)) == (fitting * REPEATS, (len(values) - len(fitting)) * REPEATS)
        texts = [b"" if value is None else str(value).encode() for value in values]
        assert converted(path, "user_id", "string", "") == (texts * REPEATS, [])
        looked = profiles.profile_files([str(path)], layout_of(path), cache=None)
        (proposal,) = proposals.propose(looked.values(), ()).values()
        if len(present) == 1 and None not in values:
            continue
        assert proposal.examples == (f"{present[0]} to {present[-1]}" if len(present) > 1 else f"{present[0]}")
        assert sorted(map(int, proposal.feature.vocabulary)) == present
        default = proposal.feature.default
        assert converted(path, "user_id", proposal.feature.dtype, default)[1] == []
        assert proposal.feature.dtype == "string" or default not in present


def ends(kind: str) -> tuple[int, int]:
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)


@pytest.mark.tensorflow
def test_integers_of_records(tmp_path):
    path = table_files.write(tmp_path / "rows.tfrecord", {"x": pa.array([*ENDS["int64"], None], pa.int64())})
    assert converted(path, "x", "int64", -7) == ([*ENDS["int64"], -7], [])
    assert converted(path, "x", "string", "") == (
        [*(str(each).encode() for each in ENDS["int64"]), b""],
        [],
    )


@pytest.mark.parametrize("kinds", [("uint64", "int64"), ("int64", "uint64")])
def test_files_whose_integers_have_different_types(tmp_path, kinds):
    ids = {"int64": [-5, 2**53 + 1], "uint64": [2**53 + 1, 2**64 - 1]}
    paths = [
        table_files.write(tmp_path / f"{number}.parquet", {"user_id": pa.array(ids[kind] * REPEATS, kind)})
        for number, kind in enumerate(kinds)
    ]
    looked = profiles.profile_files([str(path) for path in paths], layout_of(paths[0]), cache=None)
    (proposal,) = proposals.propose(looked.values(), ()).values()
    assert (proposal.feature.dtype, proposal.num_values) == ("string", 3)
    assert sorted(map(int, proposal.feature.vocabulary)) == [-5, 2**53 + 1, 2**64 - 1]


def test_decimals_and_lists_hold_integers_too(tmp_path):
    ids = [2**53 + 1, 2**53, 2**63 - 1, -(2**63), None, 2**63]
    for scale in (0, 2):
        values = [None if each is None else decimal.Decimal(each) for each in ids]
        path = table_files.write(tmp_path / "rows.parquet", {"x": pa.array(values, pa.decimal128(30, scale))})
        found, bad = converted(path, "x", "int64", -1)
        assert found == [*ids[:4], -1]
        assert bad == [6]
    large = pa.array([decimal.Decimal(2**64), decimal.Decimal(2**64 + 1)], pa.decimal128(38, 0))
    label = ColumnSpec("y", "float32", is_label=True, num_classes=2, vocabulary=(str(2**64), str(2**64 + 1)))
    piece = columns.convert(Rows(pa.record_batch({"y": large}), np.arange(2)), {"y": label})
    assert (piece.batch.column("y").to_pylist(), piece.bad) == ([0, 1], [])


def test_integers_are_shown_with_all_their_digits(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ids = [2**60 + number for number in range(8)] * 50
    path = table_files.write(tmp_path / "rows.csv", {"user_id": ids, "y": [0, 1] * 200, "item_id": [None, *ids[1:]]})
    into = tmp_path / "conf" / "data" / "rows.yaml"
    main(["inspect", str(path), "--label", "y", "--write", str(into)])
    shown = {line.split(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    for name in ("user_id", "item_id"):
        assert re.search(rf" 8 .* {2**60} to {2**60 + 7}", shown[name])
    assert f"1 as {2**60 - 1}" in shown["item_id"]
    text = into.read_text()
    assert str(ids[7]) in text
    assert f"default: {2**60 - 1}" in text
    numbers = {2**60: str(2**60), 2.0**60: str(2**60), 16777217.0: "16777217", 0.5: "0.5", 1e30: "1e+30"}
    assert {value: proposals.shown(value) for value in numbers} == numbers
    label = ColumnSpec("y", "int64", is_label=True, num_classes=3)
    piece = columns.convert(Rows(pa.record_batch({"y": [0, 2**60 + 1]}), np.arange(2)), {"y": label})
    assert [(place, str(2**60 + 1) in problem) for place, problem in piece.bad] == [(1, True)]


@pytest.mark.tensorflow
@pytest.mark.parametrize("file_format", ["csv", "parquet", "tfrecord"])
def test_kept_columns_of_predictions_have_the_integers_of_the_file(tmp_path, file_format):
    from psrun.roles import checkpoint_modes

    table = {kind: pa.array([*ENDS[kind], None], kind) for kind in ENDS}
    table["decimal"] = pa.array([decimal.Decimal(2**64 + each) for each in range(5)], pa.decimal128(38, 0))
    path = tmp_path / f"predictions.{file_format}"
    with checkpoint_modes.written(path, file_format, checkpoint_modes.Layout()) as write:
        write(checkpoint_modes.Rows(pa.table(table), {}, {"prediction": np.zeros(5, np.float32)}, {}))
    for name, values in table.items():
        expected = [b"" if value is None else str(value).encode() for value in values.to_pylist()]
        assert converted(path, name, "string", "") == (expected, [])


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8()])
def test_a_dictionary_may_be_as_long_as_its_indices_can_count(kind):
    count = 128 if kind == pa.int8() else 256
    places = pa.array([count - 1, None, 0], kind)
    numbers = pa.DictionaryArray.from_arrays(places, [str(number) for number in range(count)])
    spec = ColumnSpec("x", "int64", default=-1)
    piece = columns.convert(Rows(pa.record_batch({"x": numbers}), np.arange(3)), {"x": spec})
    assert piece.batch.column("x").to_pylist() == [count - 1, -1, 0]
    encoded = pa.record_batch({"x": numbers})
    decoded = pa.record_batch({"x": numbers.dictionary_decode()})
    assert splits.hash_of_rows(encoded).tolist() == splits.hash_of_rows(decoded).tolist()
