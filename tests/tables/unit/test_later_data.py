"""How later rows of a table differ from those that a run was trained on: counts, and warnings with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_files

from psrun.tables.table import Table
from psrun.tables.table_source import TableSource

pytestmark = pytest.mark.tensorflow

NUM_ROWS = 400
FEATURES = {
    "plan": {"dtype": "string", "vocabulary": ["bronze", "gold", "silver"]},
    "zone": {"dtype": "int64", "vocabulary": [1, 2, 3]},
    "share": {"nullable": True, "bins": 8},
    "tags": {"dtype": "string", "vocabulary": ["new", "old"], "max_values": 3},
}


def rows(count: int = NUM_ROWS, **changed: Any) -> dict[str, Any]:
    """Columns; the share is uniform from 0 to 100."""
    rng = np.random.default_rng(count)
    columns = {
        "plan": rng.choice(["bronze", "gold", "silver"], count).tolist(),
        "zone": rng.integers(1, 4, count).tolist(),
        "share": [0.0, 100.0, *rng.uniform(0, 100, count - 2).tolist()],
        "tags": [["new", "old"][: number % 3] for number in range(count)],
        "label": rng.integers(0, 2, count).tolist(),
    }
    for name, change in changed.items():
        columns[name] = [change(value) for value in columns[name]]
    return columns


def table(folder: Path, recorded: Any = None, **options: Any) -> TableSource:
    given = {"label": "label", "features": FEATURES, "task": "multiclass", "num_classes": 3, **options}
    return Table(path=str(folder / "train.parquet"), cache=str(folder / "cache"), recorded=recorded, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, TableSource]:
    folder = tmp_path_factory.mktemp("trained")
    table_files.write(folder / "train.parquet", rows())
    return folder, table(folder)


def later(trained: tuple[Path, TableSource], name: str, columns: dict[str, Any], **options: Any) -> TableSource:
    folder, source = trained
    path = table_files.write(folder / f"{name}.parquet", columns)
    return table(folder, source.facts, eval_path=str(path), **options)


@pytest.mark.parametrize(
    ("name", "changed", "kind", "count", "expected"),
    [
        ("case", {"plan": str.upper}, "unknown_words", 400, "such as '{}' for '{}': they differ in case or blanks"),
        ("blanks", {"plan": lambda word: f" {word} "}, "unknown_words", 400, "they differ in case or blanks"),
        ("words", {"plan": lambda word: "basic"}, "unknown_words", 400, "plan: 400 of 400 values (100%) are not among"),
        ("ids", {"zone": lambda zone: zone + 7}, "unknown_words", 400, "zone: 400 of 400 values (100%) are not among"),
        ("lists", {"tags": lambda tags: ["older"] * len(tags)}, "unknown_words", 399, "such as 'older'"),
        ("unit", {"share": lambda share: share * 100}, "outside_of_range", None, "multiplied by 0.01"),
        ("range", {"share": lambda share: -share - 1}, "outside_of_range", 400, "range from 0 to 100, such as -1"),
        ("fraction", {"share": lambda share: share / 100}, "outside_of_range", 0, "multiplied by 100"),
        ("empty", {"share": lambda share: None if share > 50 else share}, "missing", None, "none was in the training"),
        ("class", {"label": lambda label: 2 * label}, "unknown_classes", None, "have the class 2, which no training"),
    ],
)
def test_rows_of_another_program_are_counted_and_named(trained, name, changed, kind, count, expected):
    source = later(trained, name, rows(**changed))
    (feature,) = changed
    counts = source.facts["compared"]["evaluation"][kind]
    if count is not None:
        assert counts[feature] == count
    else:
        assert sum(counts.values()) > 100
    (warning,) = source.differences
    assert warning.startswith("evaluation rows: ")
    for part in expected.split("{}"):
        assert part in warning
    assert warning in source.warnings


@pytest.mark.parametrize(
    ("count", "num_others", "divisor"),
    [
        (400, 0, 1),
        (50, 0, 1),
        (100, 1, 1),  # 1 %
        (50, 0, 10),  # a part of the range
    ],
)
def test_rows_as_in_the_training_give_no_warning(trained, count, num_others, divisor):
    columns = rows(count, share=lambda share: share / divisor)
    columns["plan"][:num_others] = ["other"] * num_others
    assert later(trained, f"alike-{count}-{num_others}-{divisor}", columns).differences == ()


@pytest.mark.parametrize(("count", "num_others"), [(100, 2), (2, 1)])
def test_a_few_unseen_words_of_other_files_are_named(trained, count, num_others):
    columns = rows(count)
    columns["plan"][:num_others] = ["other"] * num_others
    (warning,) = later(trained, f"few-{count}", columns).differences
    assert f"plan: {num_others} of {count} values" in warning


def test_held_out_rows_differ_by_chance_without_a_warning(tmp_path):
    table_files.write(tmp_path / "train.parquet", rows(60))
    source = table(tmp_path, split={"by": "time", "column": "share", "fraction": 0.05})
    assert source.facts["compared"]["evaluation"]["outside_of_range"]["share"] == 3
    assert source.differences == ()


def test_what_the_training_had_itself_is_usual(tmp_path):
    rare = rows()
    for number, plan in enumerate(rare["plan"]):
        if plan == "gold":
            rare["plan"][number] = f"rare {number}"
    table_files.write(tmp_path / "train.parquet", rare)
    source = table(tmp_path)
    assert 0.2 < source.facts["trained_on"]["features"]["plan"]["unknown_share"] < 0.5
    again = rows(plan=lambda plan: "rarer" if plan == "gold" else plan)
    assert later((tmp_path, source), "later", again).differences == ()
    (warning,) = later((tmp_path, source), "other", rows(plan=lambda plan: "rarer")).differences
    assert "(in the training 3" in warning


def test_more_missing_numbers_than_in_the_training_are_named(tmp_path):
    table_files.write(tmp_path / "train.parquet", rows(share=lambda share: None if 40 < share < 50 else share))
    source = table(tmp_path)
    again = rows(share=lambda share: None if 50 < share < 60 else share)
    assert later((tmp_path, source), "alike", again).differences == ()
    (warning,) = later((tmp_path, source), "fewer", rows(share=lambda share: None if share > 5 else share)).differences
    assert "are missing, and " in warning
    assert "% were in the training" in warning


def test_labels_to_regress_have_a_range(tmp_path):
    options = {"task": "regression", "num_classes": None, "label": "weight"}
    for name, factor in (("train", 1.0), ("alike", 1.0), ("grams", 1000.0)):
        weights = [0.5 + number * factor / 100 for number in range(NUM_ROWS)]
        table_files.write(tmp_path / f"{name}.parquet", {**rows(), "weight": weights})
    source = table(tmp_path, **options)
    found = {}
    for name in ("alike", "grams"):
        path = str(tmp_path / f"{name}.parquet")
        found[name] = table(tmp_path, source.facts, eval_path=path, **options).differences
    assert found["alike"] == ()
    (warning,) = found["grams"]
    assert warning.startswith("evaluation rows: weight: 399 of 400 values (100%) lie outside of the training's range")


def test_a_fraction_is_found_where_the_largest_is_rounded(tmp_path):
    table_files.write(tmp_path / "train.parquet", rows(share=lambda share: share / 10))
    source = table(tmp_path)
    (warning,) = later((tmp_path, source), "hundredths", rows(share=lambda share: share / 1000)).differences
    assert "multiplied by 100 they would fill it" in warning


def test_a_run_that_goes_on_with_other_files_compares_its_training_rows(trained, tmp_path):
    _, source = trained
    table_files.write(tmp_path / "train.parquet", rows(plan=str.upper))
    (warning,) = table(tmp_path, source.facts).differences
    assert warning.startswith("training rows: plan: 400 of 400 values")


def test_rows_to_predict_are_compared_without_their_malformed_rows(trained):
    columns = rows(plan=str.upper, share=lambda share: str(share) if share < 50 else "much")
    del columns["label"]
    source = later(trained, "predicted", columns, predicting=True)
    malformed = len(source.rows_to_predict.problems)
    assert malformed > 100
    (warning,) = source.differences
    assert warning.startswith(f"rows to predict: plan: {NUM_ROWS - malformed} of {NUM_ROWS - malformed} values")


def test_labels_of_rows_to_predict_are_not_said_to_be_alike(trained):
    columns = rows(label=lambda label: 1)
    assert any("have the label 1" in text for text in later(trained, "alike", columns).warnings)
    predicted = later(trained, "alike", columns, predicting=True)
    assert not any("have the label 1" in text for text in predicted.warnings)


def test_a_split_by_time_has_a_note_instead_of_a_warning(tmp_path):
    columns = rows()
    columns["share"] = [float(number) for number in range(NUM_ROWS)]
    table_files.write(tmp_path / "train.parquet", columns)
    source = table(tmp_path, split={"by": "time", "column": "share", "fraction": 0.2})
    assert source.facts["compared"]["evaluation"]["outside_of_range"]["share"] > 70
    assert source.differences == ()
    (note,) = [note for note in source.notes if "later" in note]
    assert note.endswith(" new in 'share': the model has learned nothing about these values")


def test_many_features_share_a_line(tmp_path):
    features = {f"word{number}": {"dtype": "string", "vocabulary": ["a", "b"]} for number in range(9)}
    for name, words in (("train", ["a", "b"]), ("later", ["c", "d"])):
        columns = {feature: words * 50 for feature in features}
        table_files.write(tmp_path / f"{name}.parquet", {**columns, "label": [0, 1] * 50})
    source = table(tmp_path, eval_path=str(tmp_path / "later.parquet"), features=features)
    assert len(source.differences) == 6
    assert "4 more features" in source.differences[-1]
