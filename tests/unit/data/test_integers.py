"""Integers of files: none passes through a float on its way to a feature, a vocabulary, a display or a prediction."""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from psrun.data import columns, formats, profiles, proposals
from psrun.data.columns import ColumnSpec
from psrun.data.commands import main
from psrun.data.rows import Rows

KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MISSING = {kind: f"{kind}_null_id" for kind in KINDS}
PLAIN = {kind: f"{kind}_id" for kind in KINDS}
REPEATED = 20  # rows of each value: the guess takes them for ids
ENDINGS = ("csv", "tsv", "parquet", "feather", "jsonl", "npz", pytest.param("tfrecord", marks=pytest.mark.tensorflow))


def ends(kind: str) -> list[int]:
    info = np.iinfo(kind)
    return [int(info.min), int(info.min) + 1, 5, int(info.max) - 1, int(info.max)]


def written(path: Path, rows: Mapping[str, tuple[str, Sequence[int | None]]]) -> str:
    """A file with columns of integers, by name: type and values."""
    lines = list(zip(*(values for _, values in rows.values())))
    table = {name: pa.array(values, kind) for name, (kind, values) in rows.items()}
    if path.suffix in (".csv", ".tsv"):
        delimiter = "\t" if path.suffix == ".tsv" else ","
        texts = (["" if value is None else str(value) for value in line] for line in lines)
        path.write_text("".join(delimiter.join(line) + "\n" for line in [list(rows), *texts]))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(rows, line))) + "\n" for line in lines))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(table), path)
    elif path.suffix == ".feather":
        feather.write_feather(pa.table(table), str(path))
    elif path.suffix == ".npz":
        np.savez(path, **{name: each.to_numpy() for name, each in table.items()})
    else:
        _write_records(path, [dict(zip(rows, line)) for line in lines])
    return str(path)


def _write_records(path: Path, rows: Sequence[Mapping[str, int | None]]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            example = tf.train.Example()
            for name, value in row.items():
                if value is not None:
                    example.features.feature[name].int64_list.value.append(value)
            writer.write(example.SerializeToString())


def layout_of(path: str) -> formats.Layout:
    form = formats.detect([path])
    return formats.Layout(form, formats.TEXT.get(form, ","))


def read(path: str, column: str, dtype: str, default: int | str | None = None) -> tuple[list, list]:
    """The values of a column as a prepared set has them, and the problems of rows."""
    values = []
    bad = []
    for rows in formats.rows(path, [column], layout_of(path)):
        piece = columns.convert(rows, {"x": ColumnSpec(column, dtype, default=default)})
        values += piece.batch.column("x").to_pylist()
        bad += piece.bad
    return values, bad


@pytest.mark.parametrize("ending", ENDINGS)
def test_integers_of_every_width_are_read_and_guessed_as_they_are(tmp_path, ending):
    kinds = [kind for kind in KINDS if ending != "tfrecord" or kind != "uint64"]
    rows = {PLAIN[kind]: (kind, ends(kind) * REPEATED) for kind in kinds}
    if ending != "npz":  # which has no missing integers
        holes = {kind: [None if value == 5 else value for value in ends(kind)] * REPEATED for kind in kinds}
        rows |= {MISSING[kind]: (kind, holes[kind]) for kind in kinds}
    path = written(tmp_path / f"rows.{ending}", rows)
    for name, (kind, values) in rows.items():
        default = -7 if name == MISSING[kind] else None
        wide = [value for value in values if value is not None and value >= 2**63]
        expected = [default if value is None else value for value in values if value not in wide]
        assert read(path, name, "int64", default)[0] == expected
        assert len(read(path, name, "int64", default)[1]) == len(wide)
        texts = [b"" if value is None else str(value).encode() for value in values]
        assert read(path, name, "string", None if default is None else "") == (texts, [])
    if ending == "tfrecord":  # has no schema, so that nothing is guessed
        return
    profiles.profile_files([path], layout_of(path), cache=tmp_path)
    looked = profiles.profile_files([path], layout_of(path), cache=tmp_path)  # as it was stored
    guessed = proposals.propose(looked.values(), ())
    for name, (kind, values) in rows.items():
        present = sorted({value for value in values if value is not None})
        profile = looked[name]
        assert (int(profile.least), int(profile.most)) == (present[0], present[-1])
        assert sorted(map(int, profile.values)) == present
        proposal = guessed[name]
        assert proposal.examples == f"{present[0]} to {present[-1]}"
        assert sorted(map(int, proposal.feature.vocabulary)) == present
        assert proposal.feature.dtype in ("int64", "string")
        default = proposal.feature.default
        assert read(path, name, proposal.feature.dtype, default)[1] == []
        assert proposal.feature.dtype == "string" or default not in present
        if name == MISSING[kind]:
            assert proposal.missing.split(" as ") == [str(REPEATED), *([] if default in (None, "") else [str(default)])]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"parquet": "uint64"}, {"parquet": "int64"}),
        ({"jsonl": "int64"}, {"jsonl": "uint64"}),
    ],
)
def test_files_whose_integers_have_different_types(tmp_path, one, other):
    ids = {"int64": [-5, 2**53 + 1], "uint64": [2**53 + 1, 2**64 - 1]}
    names = []
    for number, ((ending, kind),) in enumerate((one.items(), other.items())):
        names.append(written(tmp_path / f"{number}.{ending}", {"user_id": (kind, ids[kind] * REPEATED)}))
    looked = profiles.profile_files(names, layout_of(names[0]), cache=None)
    (proposal,) = proposals.propose(looked.values(), ()).values()
    assert (proposal.feature.dtype, proposal.num_values) == ("string", 3)
    assert sorted(map(int, proposal.feature.vocabulary)) == [-5, 2**53 + 1, 2**64 - 1]


def test_decimals_and_lists_hold_integers_too(tmp_path):
    ids = [2**53 + 1, 2**53, 2**63 - 1, -(2**63), None, 2**63]
    for scale in (0, 2):
        path = tmp_path / "rows.parquet"
        values = [None if each is None else decimal.Decimal(each) for each in ids]
        parquet.write_table(pa.table({"x": pa.array(values, pa.decimal128(30, scale))}), path)
        got, bad = read(str(path), "x", "int64", -1)
        assert got == [*ids[:4], -1]
        assert [place for place, _ in bad] == [5]
    large = pa.array([decimal.Decimal(2**64), decimal.Decimal(2**64 + 1)], pa.decimal128(38, 0))
    label = ColumnSpec("y", "float32", is_label=True, num_classes=2, vocabulary=(str(2**64), str(2**64 + 1)))
    piece = columns.convert(Rows(pa.record_batch({"y": large}), np.arange(2)), {"y": label})
    assert (piece.batch.column("y").to_pylist(), piece.bad) == ([0, 1], [])
    path = tmp_path / "rows.jsonl"
    lists = [[2**64 - 1, 2**53 + 1], [], [2**53]]
    path.write_text("".join(json.dumps({"ids": each, "fractions": [2**63, 0.5]}) + "\n" for each in lists))
    (rows,) = formats.rows(str(path), ["ids", "fractions"], layout_of(str(path)))
    assert [[*map(int, each)] for each in rows.batch.column("ids").to_pylist()] == lists
    assert rows.batch.column("fractions").to_pylist() == [[2.0**63, 0.5]] * 3


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_integers_are_shown_with_all_their_digits(tmp_path, capsys, monkeypatch, ending):
    monkeypatch.setenv("COLUMNS", "200")
    ids = [2**60 + number for number in range(8)] * 50
    rows = {"user_id": ("int64", ids), "y": ("int64", [0, 1] * 200)}
    if ending == "csv":
        rows["item_id"] = ("int64", [None, *ids[1:]])
    path = written(tmp_path / f"rows.{ending}", rows)
    into = tmp_path / "conf" / "data" / "rows.yaml"
    main(["inspect", path, "--label", "y", "--write", str(into)])
    shown = {line.split(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    for name in rows.keys() - {"y"}:
        assert re.search(rf" 8 .* {2**60} to {2**60 + 7}", shown[name])
    text = into.read_text()
    assert f"vocabulary: [{', '.join(map(str, ids[:8]))}]" in re.sub(r"\s+-?\s*", " ", text) or str(ids[7]) in text
    if ending == "csv":
        assert f"1 as {2**60 - 1}" in shown["item_id"]
        assert f"default: {2**60 - 1}" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2**60, str(2**60)), (2.0**60, str(2**60)), (16777217.0, "16777217"), (0.5, "0.5"), (1e30, "1e+30")],
)
def test_numbers_as_shown(value, text):
    assert proposals.shown(value) == text


def test_a_label_that_is_no_class_is_told_with_all_its_digits(tmp_path):
    path = written(tmp_path / "rows.csv", {"y": ("int64", [0, 2**60 + 1])})
    (rows,) = formats.rows(path, ["y"], layout_of(path))
    piece = columns.convert(rows, {"y": ColumnSpec("y", "int64", is_label=True, num_classes=3)})
    assert piece.bad == [(1, f"column y: {2**60 + 1} is not a class from 0 to 2")]


@pytest.mark.tensorflow
@pytest.mark.parametrize("file_format", ["csv", "parquet", "tfrecord"])
def test_kept_columns_of_predictions_have_the_integers_of_the_file(tmp_path, file_format):
    from psrun.training.evaluation import prediction_files

    table = {kind: pa.array([*ends(kind), None], kind) for kind in KINDS}
    table["decimal"] = pa.array([decimal.Decimal(2**64 + each) for each in range(6)], pa.decimal128(38, 0))
    path = tmp_path / f"predictions.{file_format}"
    with prediction_files.written(path, file_format, prediction_files.Layout()) as write:
        write(prediction_files.Rows(pa.table(table), {}, {"prediction": np.zeros(6, np.float32)}, {}))
    for name, values in table.items():
        expected = [b"" if value is None else str(value).encode() for value in values.to_pylist()]
        assert read(str(path), name, "string", "") == (expected, [])
