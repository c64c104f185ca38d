"""Paths of tables: what is missing, and where commands on data write."""

from __future__ import annotations

from typing import Any

import pytest
from plain_config import keys_of_problems, plain_config

from psrun.config import composition, parse


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["data", "synthesize", "gs://bucket/data"], "folder"),
        (["data", "inspect", "a.csv", "--write", "gs://bucket/a.yaml"], "--write"),
    ],
)
def test_a_path_with_a_scheme_is_refused(refuses_to_write, command, key):
    refuses_to_write(command, key)


def test_data_files_that_are_missing_are_reported_together(tmp_path):
    """Before TensorFlow is imported, patterns too; files of other file systems are not looked for."""
    (tmp_path / "rows.csv").touch()
    (tmp_path / "rows[1].csv").touch()

    def table(path: str, eval_path: str) -> dict[str, Any]:
        paths = (f"data.path='{path}'", f"data.eval_path='{eval_path}'")
        return plain_config("data=table", "data.label=label", "evaluation=none", *paths)

    assert keys_of_problems(table(f"{tmp_path}/train-*.csv", f"{tmp_path}/eval.csv")) == {"data.path", "data.eval_path"}
    assert keys_of_problems(table(f"{tmp_path}/rows[1].csv", f"{tmp_path}/eval.csv")) == {"data.eval_path"}
    assert keys_of_problems(table("gs://rows/train-*.csv", f"{tmp_path}/?.csv")) == {"data.eval_path"}
    parse.load(table(f"{tmp_path}/ro*.csv", str(tmp_path)))


def test_a_path_that_hydra_cannot_parse_is_one_problem():
    given = ["data=table", "data.path=a[1].csv", "data.label=y"]
    assert [problem.key for problem in composition.all_problems(given)] == ["data.path"]
