"""What a word on the command line means: a folder, a name, or the end of a folder's name below runs/."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_runs import a_recorded_sweep, a_run

from psrun.errors import ConfigError
from psrun.results import run_folder, run_state


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("2026-01-01-dense-ab12", "2026-01-02-dense-cd12", "plain"):
        a_run(tmp_path / "runs" / name)
    a_recorded_sweep(tmp_path / "runs" / "2026-01-03-sweep-ef34")
    run_folder.write_name(tmp_path / "runs" / "plain", "best so far")
    for inner in ("", "0", "1"):  # as `psrun -m run.name=rates` names them
        run_folder.write_name(tmp_path / "runs" / "2026-01-03-sweep-ef34" / inner, "rates")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("word", "folder"),
    [
        ("runs/plain", "plain"),
        ("plain", "plain"),
        ("best so far", "plain"),
        ("ab12", "2026-01-01-dense-ab12"),
        ("dense-cd12/", "2026-01-02-dense-cd12"),
        ("ef34", "2026-01-03-sweep-ef34"),
        ("rates", "2026-01-03-sweep-ef34"),
        ("rates/0", "2026-01-03-sweep-ef34/0"),
        ("ef34/1", "2026-01-03-sweep-ef34/1"),
        ("1", "2026-01-03-sweep-ef34/1"),
    ],
)
def test_what_a_word_means(word, folder):
    assert run_state.resolve_run(word) == Path("runs", folder)


@pytest.mark.parametrize("word", ["12", "nothing", "plian", "", "/", "rates/7", "12/1"])
def test_a_word_that_means_no_run_or_several(word):
    with pytest.raises(ConfigError):
        run_state.resolve_run(word)


def test_a_name_of_its_own_comes_before_the_end_of_another(runs):
    a_run(runs / "12")
    assert run_state.resolve("12") == Path("runs/12")


def test_what_is_being_removed_or_hidden_is_not_found(runs):
    (runs / "plain").rename(runs / ".removed-plain")
    assert {Path(path).name for path, _ in run_state.walk("runs")} == {
        "2026-01-01-dense-ab12", "2026-01-02-dense-cd12", "2026-01-03-sweep-ef34", "0", "1", "2",
    }  # fmt: skip
