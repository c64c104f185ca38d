"""The guess about a table does not depend on the format of its file, the order of its rows, or how many there are.

And `psrun data inspect` writes what a run infers and records.
"""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import table_files
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from psrun.errors import ConfigError
from psrun.tables import commands, feature_spec, formats, header, label_guess, profiles, proposals

REPEATS = 12  # of each value: fewer, and integers of any meaning are amounts, not ids
any_table = settings(deadline=None, derandomize=True, max_examples=12)

KINDS = {
    "integers": st.integers(-(2**63) + 1, 2**63 - 2),
    "few integers": st.integers(0, 12),
    "dates as integers": st.dates().map(lambda day: int(day.strftime("19%y%m%d"))),
    "fractions": st.integers(-(2**20), 2**20).map(lambda number: number + 0.25),
    "words": st.sampled_from(["a", "b", "Yes", "no", "NA", "None", "007", "1e5x", "two words", "0x1F"]),
    "numbers as text": st.sampled_from(["$1,521.00", "12 %", "1.5", "3"]),
    "dates": st.dates().map(str),
    "times": st.datetimes().map(lambda time: f"{time:%H:%M:%S}"),
}
NAMES = ("x", "user_id", "month", "age", "item")


@st.composite
def columns(draw: Any) -> dict[str, list]:
    """Columns in which each value stands in several rows; some are missing."""
    count = draw(st.integers(2, 12))
    found = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)):
        values: st.SearchStrategy = KINDS[draw(st.sampled_from(list(KINDS)))]
        if draw(st.booleans()):
            values = st.none() | values
        found[name] = draw(st.lists(values, min_size=count, max_size=count)) * REPEATS
    return found


def guessed(columns: dict[str, list], path: Path) -> dict[str, Any]:
    """The options of each feature, and the label that each column would be; a missing text may be empty or null."""
    known = {name: pa.array(values, pa.string() if set(map(type, values)) == {type(None)} else None)
             for name, values in columns.items()}  # fmt: skip
    table_files.write(path, known)
    form = formats.detect([str(path)])
    looked = profiles.profile_files([str(path)], formats.Layout(form, formats.TEXT.get(form, ",")), cache=None)
    found: dict[str, Any] = {}
    for name, proposal in proposals.propose(looked.values(), ()).items():
        options = None if proposal.feature is None else feature_spec.options(proposal.feature)
        if options is not None and options.get("default") == "":
            del options["default"]
        found[name] = options
    for name, profile in looked.items():
        try:
            found[f"label {name}"] = label_guess.guess(profile).options
        except ConfigError as error:
            found[f"label {name}"] = error.problems[0].key
    return found


@any_table
@given(columns())
def test_every_format_gives_the_same_guess(tmp_path_factory, columns):
    folder = tmp_path_factory.mktemp("formats")
    expected = guessed(columns, folder / "rows.csv")
    for ending in ("tsv", "parquet", "arrow"):
        assert guessed(columns, folder / f"rows.{ending}") == expected, ending


@any_table
@given(columns(), st.randoms())
def test_the_order_of_rows_and_more_rows_of_the_kind_change_nothing_but_the_number_of_bins(
    tmp_path_factory, columns, rng
):
    folder = tmp_path_factory.mktemp("rows")
    before = guessed(columns, folder / "rows.parquet")
    shuffled = {name: random.Random(rng.random()).sample(values, len(values)) for name, values in columns.items()}
    assert guessed(shuffled, folder / "shuffled.parquet") == before
    after = guessed({name: values * 3 for name, values in columns.items()}, folder / "more.parquet")
    for found in (before, after):
        for options in found.values():
            if isinstance(options, dict):
                options.pop("bins", None)
    assert after == before


@pytest.mark.tensorflow
def test_what_inspect_writes_is_what_a_run_infers(tmp_path, monkeypatch, capsys):
    from psrun.tables.table import Table

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(1)
    outcome = rng.choice(["good", "bad", ""], 1200)
    path = table_files.write(tmp_path / "rows.csv", {
        "age": rng.integers(60, size=1200), "word": rng.choice(["a", "b", "NA"], 1200),
        "rate": rng.choice(["1.5", "?", "2"], 1200), "price": [f"${n % 90}" for n in range(1200)],
        "sold": [f"2026-{n % 12 + 1:02}-03" for n in range(1200)], "user_id": rng.integers(300, size=1200),
        "outcome": outcome, "result": outcome,
    })  # fmt: skip
    commands.main(["inspect", str(path), "--label", "outcome", "--write", str(tmp_path / "data" / "mine.yaml")])
    written = yaml.safe_load((tmp_path / "data" / "mine.yaml").read_text())
    source = Table(path=str(path), label="outcome", split=0.1)
    leak = "label outcome: result decides the label by itself"
    assert leak in capsys.readouterr().out
    assert any(leak in warning for warning in source.warnings)
    inferred = source.facts
    described = feature_spec.read(written["features"])
    assert set(described) == set(inferred["features"])
    for name, recorded in feature_spec.read(inferred["features"]).items():
        vocabulary = described[name].vocabulary
        if isinstance(vocabulary, str):  # a long one, in a file
            vocabulary = feature_spec.listed(tmp_path / vocabulary, recorded.dtype)
        options = {**feature_spec.options(described[name]), "vocabulary": vocabulary, "column": None}
        assert options == {**feature_spec.options(recorded), "vocabulary": recorded.vocabulary, "column": None}
    assert {key: written[key] for key in ("task", "label_vocabulary")} == inferred["label"]
    assert inferred["label"] == {"task": "binary", "label_vocabulary": ["bad", "good"]}


def test_the_command_that_writes_the_features_reads_the_file_as_the_run_does(tmp_path, monkeypatch):
    from psrun.tables.table import Table

    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 60};{n % 7},{n % 10};caf\xe9 {n % 5};{n % 2}\n" for n in range(400)]
    Path("sales.csv").write_text("".join(["age;price;place;bought\n", *rows]), encoding="latin-1")
    source = Table(path="sales.csv", label="bought", split=0.1, delimiter=";", decimal_mark=",", encoding="latin-1")
    (line,) = [note for note in source.notes if note.startswith("to edit the features: psrun data ")]
    *arguments, _ = shlex.split(line.partition("psrun data ")[2])
    commands.main([*arguments, "conf/data/sales.yaml"])
    written = yaml.safe_load(Path("conf/data/sales.yaml").read_text(encoding="utf-8"))
    assert {*written["features"]} == {"age", "price", "place"}
    assert written["features"]["price"].get("dtype", "float32") == "float32"


def test_the_command_that_writes_the_features_of_rows_without_a_label_says_so(tmp_path):
    from psrun.tables.table import Table

    (tmp_path / "shop.csv").write_text("user,item\n" + "".join(f"u{n % 9},i{n % 7}\n" for n in range(200)))
    source = Table(path=str(tmp_path / "shop.csv"), label=None, split=0.1)
    assert "shop.csv --label null --write conf/data/NAME.yaml" in source.notes[0]


def test_excluded_columns_are_no_features_of_the_guess(tmp_path, monkeypatch, capsys):
    from psrun.tables.table import Table

    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{n % 60},{n % 7},{n % 2}\n" for n in range(400)]
    Path("rows.csv").write_text("".join(["nr,age,fee of late,late\n", *rows]))
    source = Table(path="rows.csv", label="late", split=0.1, exclude=["nr", "fee of late"])
    assert {*source.features} == {"age"}
    shown = {row["feature"]: row["note"] for row in source.guessed}
    assert shown["fee of late"] == "data.exclude names it"
    assert any("--label late --exclude 'nr,fee of late' --write" in note for note in source.notes)
    again = Table(path="rows.csv", label="late", split=0.1, exclude=["nr", "fee of late"], recorded=source.facts)
    assert {*again.features} == {"age"}
    with pytest.raises(ConfigError, match=r"data\.exclude: has 'age', which the run was trained with"):
        Table(path="rows.csv", label="late", split=0.1, exclude=["age"], recorded=source.facts)
    commands.main(["inspect", "rows.csv", "--label", "late", "--exclude", "nr,fee of late", "--write", "mine.yaml"])
    assert {*yaml.safe_load(Path("mine.yaml").read_text())["features"]} == {"age"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["aeg"]}, r"data.exclude: .*rows.csv has no column 'aeg'. Did you mean 'age'\?"),
        ({"exclude": ["late"]}, "data.exclude: 'late' is the label, which is no feature; remove it here"),
        ({"exclude": ["fee"], "features": {"age": {}}}, "data.exclude: has no effect beside data.features"),
        ({"exclude": "age"}, r"data.exclude: is 'age', must be a list of names, such as \[a,b\]"),
    ],
)
def test_a_column_that_cannot_be_excluded_is_refused_before_tensorflow_too(tmp_path, options, message):
    path = table_files.write(tmp_path / "rows.csv", {"age": [*range(60)], "fee": [*range(60)], "late": [0, 1] * 30})
    found = header.problems({"path": str(path), "label": "late", **options}, {})
    assert re.search(message, "; ".join(f"{each.key}: {each.message}" for each in found))
