"""What is said where a part of psrun is missing, and what the core still does."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from plain_config import loaded, plain_config
from support import HARNESS

from psrun import parts
from psrun.cli import command_line
from psrun.config import parse, targets
from psrun.errors import ConfigError
from psrun.results import recorded_config


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """psrun without its parts, and without those of other packages."""
    monkeypatch.setattr(parts, "_FOLDER", tmp_path)
    monkeypatch.setattr(parts, "own", tuple)
    monkeypatch.setattr(parts, "others", tuple)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-m", "seed=1,2"], "psrun/runs"),
        (["-sc", "query=bash"], "psrun/runs"),
        (["report", "runs"], "psrun/runs"),
        (["data", "inspect", "a.csv"], "psrun/tables"),
        (["submit", "slurm"], "psrun/engines"),
        (["hydra.run.dir=s3://bucket/run"], "psrun/runs"),
        (["resume=s3://bucket/run"], "psrun/runs"),
    ],
)
def test_a_command_of_a_missing_part_is_refused_with_its_name(alone, monkeypatch, arguments, named):
    monkeypatch.setattr(sys, "argv", ["psrun", *arguments])
    with pytest.raises(ConfigError) as raised:
        command_line._dispatch(time.time())
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "key", "named"),
    [
        ("tracker=mlflow", "tracker.mlflow", "psrun/runs"),
        ("model._target_=psrun.recsys.nowhere.model", "model", "psrun/recsys"),
        ("data._target_=psrun.tables.nowhere.Table", "data", "psrun/tables"),
    ],
)
def test_a_choice_of_a_missing_part_is_refused_by_its_key(alone, argument, key, named):
    with pytest.raises(ConfigError) as raised:
        loaded(argument)
    messages = {problem.key: problem.message for problem in raised.value.problems}
    assert named in messages[key]


@pytest.mark.parametrize(("message", "begin"), [("no x", "no x. Parts"), ("no x.", "no x. Parts"), ("y?", "y? Parts")])
def test_missing_parts_are_named_in_a_sentence_after_the_message(alone, message, begin):
    text = parts.with_missing(message)
    assert text.startswith(f"{begin} that are not installed: psrun/engines (")
    assert text.endswith(")")  # as all messages, without a full stop


def test_a_recorded_module_has_the_name_of_today(monkeypatch, tmp_path):
    monkeypatch.setattr(parts, "own", lambda: (parts.Part(moved={"psrun.old": "psrun.new"}),))
    file = tmp_path / "config.yaml"
    file.write_text("data: {_target_: psrun.old.Source, hooks: [{_target_: psrun.old.hook}, {_target_: mine.hook}]}")
    assert recorded_config.read(file) == {
        "data": {
            "_target_": "psrun.new.Source",
            "hooks": [{"_target_": "psrun.new.hook"}, {"_target_": "mine.hook"}],
        }
    }


@pytest.mark.parametrize(
    ("recorded", "option"),
    [
        ("psrun.data.fashion_mnist.FashionMnist", "path"),
        ("psrun.data.features.HeroFeatures", "num_train_examples"),
        ("psrun.data.regression.Regression", "noise"),
        ("psrun.models.cnn.cnn", "filters"),
        ("psrun.models.dense.dense", "hidden_units"),
        ("psrun.models.embedding.embedding", "embedding_dim"),
    ],
)
def test_a_recorded_model_or_data_source_of_the_core_is_found(recorded, option):
    assert option in targets.parameters_of(parts.name_of_today(recorded))


def test_a_cluster_whose_part_is_missing_is_the_only_problem(alone):
    with pytest.raises(ConfigError) as raised:
        parse.load(plain_config("cluster=slurm"))  # which has the node `slurm`, too
    assert [problem.key for problem in raised.value.problems] == ["cluster"]
    assert "psrun/engines (the clusters slurm, ray and kubernetes" in str(raised.value)


def test_a_run_imports_no_part_that_its_keys_do_not_name():
    code = """
import sys
from plain_config import plain_config
from psrun.config import parse
from psrun.roles import run_process
parse.load(plain_config("cluster=local", "model=embedding"))
print([name for name in sys.modules if name.startswith(("psrun.engines.", "psrun.runs.")) and name[-5:] != ".part"])
"""
    path = os.pathsep.join([str(HARNESS), str(HARNESS.parent)])  # a sweep in this process adds its plug-ins to Python's
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True
    )
    assert run.stdout == "[]\n"
