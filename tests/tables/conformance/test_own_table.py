"""Somebody's own table, by path and label alone: guessed, split, trained, resumed, and predicted without labels."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import outcomes
import pytest
from pyarrow import parquet
from support import variables

from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.inprocess
BY_ITSELF = (
    "data=table",
    "data._target_=psrun.tables.table.Table",
    "data.label=Churn",
    "data.decimal_mark=.",
    "data.time_format=%d.%m.%Y",
    "model=wide_deep",
    "trainer.epochs=3",
    "evaluation.every=3",
    "cluster=none",
)


def write(path: Path, count: int, *, labeled: bool = True, seed: int = 1) -> Path:
    """Customers with words, missing values, dates, amounts and an id."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["customer", "joined", "plan", "fee", "age", *(["Churn"] if labeled else [])])
        for number in range(count):
            plan, age = rng.choice(["basic", "plus", "pro"]), int(rng.integers(18, 80))
            fee = round(float(rng.gamma(2, 700)), 2)
            left = (plan == "basic") + (age < 40) + (fee > 2000) + rng.normal() > 1.6
            joined = f"{rng.integers(1, 29):02}.{rng.integers(1, 13):02}.20{rng.integers(15, 25)}"
            shown = "NA" if number % 9 == 0 else age
            churn = "" if number % 50 == 7 else ("Yes" if left else "No")
            rows.writerow([f"C{seed}{number:05}", joined, plan, f"${fee:,.2f}", shown, *([churn] if labeled else [])])
    return path


def test_a_table_is_trained_resumed_and_predicted(train, predict, tmp_path):
    path = write(tmp_path / "customers.csv", 1500)
    given = (*BY_ITSELF, f"data.path={path}", f"data.cache={tmp_path}/cache")
    result, folder = train(*given)
    data = result["data"]
    assert data["label"] == {"task": "binary", "label_vocabulary": ["No", "Yes"]}
    assert (data["num_unlabeled_rows"], data["split"]["spec"]) == (30, {"by": "rows", "fraction": 0.1, "seed": 0})
    assert data["num_train_examples"] + data["num_eval_examples"] == 1470
    assert outcomes.events(folder, "end")[0]["next"] == {"command": "predict", "arguments": ["data.eval_path=FILE"]}
    features = data["features"]
    assert set(features) == {"joined_days", "joined_month", "joined_weekday", "plan", "fee", "age"}
    assert (features["fee"]["decimal_mark"], features["fee"]["unit"], features["age"]["nullable"]) == (".", "$", True)
    assert features["joined_days"]["time_format"] == "%d.%m.%Y"
    assert result["metrics"]["val_auc"] > 0.75
    (rate,) = [value for name, value in variables(folder).items() if "learning_rate" in name]
    assert rate == pytest.approx(0.003 * 0.0669873, rel=1e-5)  # in the third of three epochs

    write(path, 1800)  # the file grows; the model, its scales and the side of each row stay
    again, _ = train(*given, "trainer.epochs=4", into=RunFolder.resume(folder.path, completed=True))
    assert again["data"]["scales"] == data["scales"]
    assert again["data"]["features"] == features

    new = write(tmp_path / "new.csv", 60, labeled=False, seed=2)
    lines = new.read_text().splitlines()
    lines[5] = "C,too,few"
    lines[7] = lines[7].replace("$", "about ")
    _, *rows = [line.split(",") for line in lines]
    new.write_text("\n".join(lines) + "\n")
    out = tmp_path / "out.parquet"
    printed = predict(
        folder, *given, f"data.eval_path={new}", "predict.keep=[customer]", f"predict.path={out}", "cluster=inprocess"
    )
    table = parquet.read_table(out).to_pydict()
    assert list(table) == ["customer", "Churn=Yes", "problem"]
    assert table["customer"] == [row[0] if len(row) != 3 else None for row in rows]
    assert [place for place, problem in enumerate(table["problem"]) if problem] == [4, 6]
    assert [place for place, value in enumerate(table["Churn=Yes"]) if value is None] == [4, 6]
    assert "2 of 60 rows are malformed" in printed
    reordered = tmp_path / "reordered.csv"
    with new.open() as source, reordered.open("w", newline="") as target:
        for number, row in enumerate(csv.reader(source)):
            if number not in (5, 7):
                csv.writer(target).writerow([*row[::-1], "more" if number else "extra"])
    predict(folder, *given, f"data.eval_path={reordered}", "predict.path=" + str(tmp_path / "b.csv"))
    alone = [float(row["Churn=Yes"]) for row in outcomes.rows(tmp_path / "b.csv")]
    assert alone == pytest.approx([value for value in table["Churn=Yes"] if value is not None], rel=1e-4)

    predict(folder, *given, "predict.keep=[customer,Churn]", f"predict.path={tmp_path}/held.csv")
    held_out = outcomes.rows(tmp_path / "held.csv")
    assert list(held_out[0]) == ["customer", "Churn", "label", "Churn=Yes"]
    assert len(held_out) == again["data"]["num_eval_examples"]
    assert all(row["Churn"] == row["label"] for row in held_out)
