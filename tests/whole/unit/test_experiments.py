"""Where data is missing, the error names an experiment that has some."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plain_config import choice

from psrun.config import advice, composition, groups
from psrun.config.schema import MISSING


def models_without_data() -> list[str]:
    """The models whose default data has no path."""
    found = []
    for name in groups.choices([])["model"]:
        if choice("model", name)["data"].get("path") == MISSING:
            found.append(f"model={name}")
    return found


@pytest.mark.parametrize("argument", [*models_without_data(), "data=criteo", "data=table"])
def test_the_experiment_that_is_named_has_data(tmp_path, monkeypatch, argument):
    monkeypatch.chdir(tmp_path)
    (message,) = [each.message for each in composition.all_problems([argument]) if each.key == "data.path"]
    named = re.findall(r"\b(?:experiment|model)=\w+", message)
    assert named
    missing = {each.key: each.message for each in composition.all_problems(named)}
    assert missing.keys() == {"data.path", "data.eval_path"}
    for key in missing:
        assert "to make it: psrun data synthesize" in missing[key]
        path = Path(re.findall(r"'([^']*)'", missing[key])[0].replace("*", "0"))
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert composition.all_problems(named) == []


@pytest.mark.parametrize("path", ["clicks.tsv", "clicks*"])
def test_data_that_exists_takes_no_time_to_read_experiments(tmp_path, monkeypatch, path):
    (tmp_path / "clicks.tsv").touch()
    monkeypatch.chdir(tmp_path)

    def refuse(path: str) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(advice, "command_that_makes", refuse)
    assert composition.all_problems(["model=dlrm", f"data.path={path}"]) == []
