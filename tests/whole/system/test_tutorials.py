"""The tutorials, as written except for smaller sweeps: their commands, and the output that they show.

    pytest tests/whole/system/test_tutorials.py -m '' --snapshot-update

takes the shown output anew from the runs.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from documented import ROOT, blocks, steps, taken

TUTORIALS = ROOT / "docs" / "tutorials"


def small_sweeps(lines: str) -> str:
    """Commands as written; of sweeps, whose jobs train as single runs do, a few steps over the first axis only."""
    for second, values in (("model.embedding_dim", "4,16"), ("model.dropout", "0.0,0.3")):
        lines = lines.replace(f"{second}={values} \\\n", f"{second}={values.partition(',')[0]} \\\n")
    return lines.replace("conf -m ", "conf -m trainer.epochs=1 trainer.steps_per_epoch=5 ")


def last_metrics(runs: Path) -> dict[str, float]:
    return json.loads((runs / "run.json").read_text())["metrics"]


@pytest.fixture
def follow(shell, tmp_path, request) -> Callable[..., str]:
    """Writes the files of a tutorial, runs its commands, and compares what it shows with what they print."""

    def followed(name: str, change: Callable[[str], str] = str) -> str:
        """The output of the last commands. Output of commands that `change` alters is not compared."""
        page = TUTORIALS / name
        text = page.read_text(encoding="utf-8")
        for title, content in (*blocks(text, "python"), *blocks(text, "yaml")):
            if title:
                (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / title).write_text(content)
        folder, output = tmp_path, ""
        for lines, shown in steps(text):
            output = shell(change(lines), folder)
            for entered in re.findall(r"^cd (\S+)$", lines, flags=re.M):
                folder = folder / entered
            if not shown or change(lines) != lines:
                continue
            now = taken(shown, output)
            if request.config.option.update_snapshots:
                text = text.replace(f"```text\n{shown}```", f"```text\n{now}```")
                page.write_text(text, encoding="utf-8")
        return output

    return followed


@pytest.mark.parametrize("page", TUTORIALS.glob("*.md"), ids=lambda page: page.stem)
def test_each_tutorial_shows_what_its_commands_print(page):
    """And a test follows it."""
    assert any(shown for _, shown in steps(page.read_text(encoding="utf-8")))
    assert f'follow("{page.name}"' in Path(__file__).read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_commands_of_a_new_project_run_as_its_readme_has_them(follow, tmp_path):
    follow("own-project.md", small_sweeps)
    tutorial = "".join(lines for lines, _ in steps((TUTORIALS / "own-project.md").read_text(encoding="utf-8")))
    ((_, readme),) = blocks((tmp_path / "ratings" / "README.md").read_text(), "bash")
    _, _, *listed = tutorial.splitlines()  # after `psrun init` and `cd`
    assert [line.partition("#")[0].split() for line in listed] == [
        line.partition("#")[0].split() for line in readme.splitlines()
    ]
    (run,) = [path.parent for path in tmp_path.glob("ratings/runs/*/run.json") if "sweep" not in str(path)]
    assert last_metrics(run)["val_auc"] > 0.95


@pytest.mark.packaging
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.release)], ids=["a part", "whole"])
def test_the_commands_of_the_tutorial_run_as_written(follow, tmp_path, whole):
    """In part: a few steps of the first run, which the second one repeats with named features."""

    def small(lines: str) -> str:
        few = "hydra.run.dir=runs/first trainer.epochs=1 trainer.steps_per_epoch=5"
        return small_sweeps(lines).replace("hydra.run.dir=runs/first", few)

    compared = follow("your-csv.md", str if whole else small)
    learned = ("first", "second") if whole else ("second",)
    assert min(last_metrics(tmp_path / "runs" / run)["val_auc"] for run in learned) > 0.9
    with (tmp_path / "sexes.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    assert len(predictions) == 11
    assert list(predictions[0]) == ["Species", "Individual ID", "Sex=MALE"]
    by_model = [float(line.rpartition(" ")[2]) for line in compared.splitlines()[1:]]
    assert len(by_model) == 3
    assert min(by_model) > 0.9


@pytest.mark.release
def test_the_commands_of_the_movielens_tutorial_run_as_written(follow, tmp_path):
    follow("movielens.md")
    recall = {name: last_metrics(tmp_path / "runs" / name)["val_recall@10"] for name in ("towers", "factorization")}
    assert recall["towers"] > 0.16
    assert recall["factorization"] > 0.11
    assert list((tmp_path / "runs" / "towers" / "export").iterdir())
