"""The tutorials and the README of a new project, as written except for smaller sweeps."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from documented import ROOT, blocks


def small_sweeps(lines: str) -> str:
    """Commands as written; of sweeps, whose jobs train as single runs do, a few steps over the first axis only."""
    for second, values in (("model.embedding_dim", "4,16"), ("model.dropout", "0.0,0.3")):
        lines = lines.replace(f"{second}={values} \\\n", f"{second}={values.partition(',')[0]} \\\n")
    return lines.replace("conf -m ", "conf -m trainer.epochs=1 trainer.steps_per_epoch=5 ")


def last_metrics(runs: Path) -> dict[str, float]:
    return json.loads((runs / "run.json").read_text())["metrics"]


@pytest.mark.thorough
def test_the_commands_of_a_new_project_run_as_its_readme_has_them(shell, tmp_path):
    folder = tmp_path / "project"
    shell(f"psrun init {folder}", tmp_path)
    ((_, lines),) = blocks((folder / "README.md").read_text(), "bash")
    assert "2 passed" in shell(small_sweeps(lines), folder)
    (run,) = [path.parent for path in folder.glob("runs/*/run.json") if "sweep" not in str(path)]
    assert last_metrics(run)["val_auc"] > 0.95


@pytest.mark.packaging
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.release)], ids=["a part", "whole"])
def test_the_commands_of_the_tutorial_run_as_written(shell, tmp_path, whole):
    """In part: a few steps of the first run, which the second one repeats with named features."""
    text = (ROOT / "docs" / "tutorials" / "your-csv.md").read_text()
    for title, content in (*blocks(text, "python"), *blocks(text, "yaml")):
        (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / title).write_text(content)
    few = "hydra.run.dir=runs/first" + (" trainer.epochs=1 trainer.steps_per_epoch=5" if not whole else "")
    written = [lines.replace("hydra.run.dir=runs/first", few) for _, lines in blocks(text, "bash")]
    shown = [shell(small_sweeps(lines), tmp_path) for lines in written]
    learned = ("first", "second") if whole else ("second",)
    assert min(last_metrics(tmp_path / "runs" / run)["val_auc"] for run in learned) > 0.9
    with (tmp_path / "sexes.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    assert len(predictions) == 11
    assert list(predictions[0]) == ["Species", "Individual ID", "prediction"]
    by_model = [float(line.rpartition(" ")[2]) for line in shown[-1].splitlines()[1:]]
    assert len(by_model) == 3
    assert min(by_model) > 0.9


@pytest.mark.release
def test_the_commands_of_the_movielens_tutorial_run_as_written(shell, tmp_path):
    text = (ROOT / "docs" / "tutorials" / "movielens.md").read_text()
    for title, content in (*blocks(text, "python"), *blocks(text, "yaml")):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(content)
    for _, lines in blocks(text, "bash"):
        shell(lines, tmp_path)
    recall = {name: last_metrics(tmp_path / "runs" / name)["val_recall@10"] for name in ("towers", "factorization")}
    assert recall["towers"] > 0.16
    assert recall["factorization"] > 0.11
    assert list((tmp_path / "runs" / "towers" / "export").iterdir())
