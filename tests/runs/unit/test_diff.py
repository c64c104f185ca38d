"""`psrun diff`: what differs between two runs, and what is said of parts that a run did not record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import a_run

from psrun.errors import ExitCode
from psrun.runs.report.diff import main


@pytest.fixture
def diff(capfd):
    """Runs `psrun diff`; the parsed JSON, and the text without its columns' spaces."""

    def run(first: Path, second: Path) -> tuple[dict[str, Any], str]:
        capfd.readouterr()
        assert main([str(first), str(second), "--json"]) == ExitCode.DONE
        parsed = json.loads(capfd.readouterr().out)
        assert main([str(first), str(second)]) == ExitCode.DONE
        return parsed, capfd.readouterr().out

    return run


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


PACKAGES = {f"package-{number}": "1.0" for number in range(30)}


def recorded(folder: Path, **changes: Any) -> Path:
    """A run with its code, environment and hashes of data, as run.json has them.

    Args:
      changes: versions, cores, commit, module (its text), changes (the text of the uncommitted ones), sha256.
    """
    module = changes.get("module", "a = 1\nb = 2\n")
    uncommitted = changes.get("changes")
    code = {
        "commit": changes.get("commit", "abc"), "branch": "main", "dirty": uncommitted is not None,
        "diff": "code/uncommitted.diff" if uncommitted is not None else None, "modules": {"mine": "code/mine.py"},
    }  # fmt: skip
    hardware = {"cpu": "A", "cores": changes.get("cores", 2), "memory_bytes": 8 * 10**9, "gpus": []}
    packages = {**PACKAGES, **changes.get("versions", {})}
    hashes = {"train.csv": {"sha256": changes.get("sha256", "0" * 64), "bytes": 3_000_000}}
    data = {"num_train_examples": 100, "num_eval_examples": 10, "hashes": hashes}
    environment = {"python": "3.11.7", "packages": packages, "hardware": hardware}
    values = {name: changes[name] for name in ("auc", "workers", "partitioner", "seed") if name in changes}
    a_run(folder, **values, code=code, environment=environment, data=data)
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text(module)
    if uncommitted is not None:
        (folder / "code" / "uncommitted.diff").write_text(uncommitted)
    return folder


def test_equal_runs_are_only_counted(tmp_path, diff):
    parsed, text = diff(recorded(tmp_path / "a"), recorded(tmp_path / "b"))
    parts = {name: part for name, part in parsed.items() if name not in ("a", "b")}
    assert list(parts) == ["configuration", "code", "environment", "data", "metrics"]
    assert all(part["differs"] == {} and part["equal"] > 0 and part["missing"] == [] for part in parts.values())
    assert parts["environment"]["equal"] == 1 + 4 + 30
    assert len(text.splitlines()) == 4  # the two folders, and a line of what is equal
    assert "environment (35)" in text


def test_each_part_shows_what_differs_and_those_with_differences_come_first(tmp_path, diff):
    first = recorded(tmp_path / "a")
    second = recorded(
        tmp_path / "b", auc=0.95, partitioner="fixed_shards", workers=4, cores=16, commit="def", sha256="1" * 64,
        module="a = 1\nb = 3\nc = 4\n", changes="+b\n", versions={"package-3": "2.0", "extra": "0.1"},
    )  # fmt: skip
    parsed, text = diff(first, second)
    assert parsed["configuration"]["differs"] == {
        "cluster.num_workers": {"a": 2, "b": 4}, "partitioner": {"a": "none", "b": "fixed_shards"},
        "partitioner.num_shards": {"a": None, "b": 2},
    }  # fmt: skip
    assert list(parsed["configuration"]["differs"])[:2] == ["cluster.num_workers", "partitioner"]  # which were chosen
    code = parsed["code"]["differs"]
    assert set(code) == {"commit", "dirty", "uncommitted changes", "module mine"}
    assert code["module mine"]["b"] == "a = 1\nb = 3\nc = 4\n"
    environment = parsed["environment"]["differs"]
    assert environment["package extra"] == {"a": None, "b": "0.1"}
    assert set(environment) == {"hardware cores", "package package-3", "package extra"}
    assert set(parsed["data"]["differs"]) == {"file train.csv"}
    lines = words(text)
    size = ["3,000,000", "bytes,", "sha256"]
    assert ["module", "mine", "2", "lines", "3", "lines", "(+2", "-1)"] in lines
    assert ["package", "extra", "-", "0.1"] in lines
    assert ["file", "train.csv", *size, "000000000000", *size, "111111111111"] in lines
    assert ["val_auc", "0.9", "0.95", "0.05"] in lines
    # A part without differences comes after those with some.
    other, _ = diff(recorded(tmp_path / "c", cores=16), recorded(tmp_path / "d"))
    assert next(name for name in other if name not in ("a", "b")) == "environment"


def test_parts_that_a_run_did_not_record_are_named(tmp_path, diff):
    old = a_run(tmp_path / "old", data={"num_train_examples": 90}, versions={"psrun": "0.0.9", "keras": "3.1"})
    new = recorded(tmp_path / "new")
    result = json.loads((new / "run.json").read_text())
    (new / "run.json").write_text(json.dumps({**result, "versions": {"psrun": "0.1.0", "keras": "3.1"}}))
    parsed, text = diff(old, new)
    assert parsed["code"]["missing"] == ["code: not recorded in a"]
    assert parsed["environment"]["missing"] == ["environment: not recorded in a"]
    assert parsed["environment"]["differs"] == {"package psrun": {"a": "0.0.9", "b": "0.1.0"}}  # which both have
    assert parsed["data"]["missing"] == ["hashes of files: not recorded in a"]
    assert parsed["data"]["differs"]["num_train_examples"] == {"a": 90, "b": 100}
    assert "environment: not recorded in a" in text
    # A run that never began.
    (old / "run.json").unlink()
    (old / "config.yaml").unlink()
    parsed, text = diff(new, old)
    assert parsed["b"]["status"] == "unknown"
    assert parsed["metrics"]["differs"]["status"] == {"a": "completed", "b": "unknown"}
    assert "no run.json" in text
    # A copy that was removed is not a copy without content.
    (new / "code" / "mine.py").unlink()
    parsed, _ = diff(new, recorded(tmp_path / "third"))
    assert "cannot be read" in parsed["code"]["differs"]["module mine"]["a"]


def test_long_parts_are_cut_for_people_only(tmp_path, diff):
    many = {name: "2.0" for name in PACKAGES}
    parsed, text = diff(recorded(tmp_path / "a"), recorded(tmp_path / "b", versions=many))
    assert len(parsed["environment"]["differs"]) == 30
    assert "and 10 more that differ (--json has all)" in text
    assert len(text.splitlines()) < 40
