"""Commands that stand for keys of a run, `psrun predict RUN` for `psrun mode=predict resume=RUN`, and the help.

What is refused: test_refused_configurations.py.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from psrun.cli import command_line
from psrun.config import groups
from psrun.config.run_config import MODES, RESUME, WORDS
from psrun.errors import ExitCode
from psrun.results import run_folder, run_state

# What a person types, and what it stands for. {} is the current folder.
TYPED = {
    "train model=dense": "model=dense",
    "train -m seed=1,2": "-m seed=1,2",
    "-m train seed=1,2": "-m seed=1,2",
    "plan cluster=local": "mode=plan cluster=local",
    "predict runs/oj data.eval_path=new.csv": "mode=predict resume='runs/oj' data.eval_path=new.csv",
    "predict oj": "mode=predict resume='{}/runs/oj'",
    "evaluate 'first try' ~model.loss": "mode=evaluate resume='{}/runs/named' ~model.loss",
    "evaluate resume=oj": "mode=evaluate resume=oj",
    "--config-dir own export ./runs/oj restore=best": "--config-dir own mode=export resume='runs/oj' restore=best",
    "--config-dir plan plan seed=2": "--config-dir plan mode=plan seed=2",
    "export runs/sweep/seed=1": "mode=export resume='runs/sweep/seed=1'",
    "resume runs/oj trainer.epochs=20": "resume='runs/oj' trainer.epochs=20",
    "resume oj mode=predict": "resume='{}/runs/oj' mode=predict",
    "resume sweep": "-m resume='{}/runs/sweep'",
    "resume -m sweep": "-m resume='{}/runs/sweep'",
    "resume sweep --cfg job": "--cfg job resume='{}/runs/sweep'",
    "resume nowhere": "resume='nowhere'",
    "mode=export resume=runs/oj": "mode=export resume=runs/oj",
    "resume = runs/oj": "resume = runs/oj",
    "train model = dense": "model = dense",
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with runs and a sweep; they have just begun."""
    monkeypatch.chdir(tmp_path)
    for name in ("oj", "named", "sweep/seed=1"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
    (tmp_path / "runs" / "sweep" / "sweep.json").write_text("{}")
    run_folder.write_name(tmp_path / "runs" / "named", "first try")
    return tmp_path


@pytest.mark.parametrize("line", TYPED)
def test_a_word_stands_for_keys(runs, monkeypatch, line):
    monkeypatch.setattr(command_line, "run_experiment", lambda started_s: ExitCode.DONE)
    monkeypatch.setattr(sys, "argv", ["psrun", *shlex.split(line)])
    assert command_line._dispatch(0.0) == ExitCode.DONE
    expected = [each.replace("{}", str(runs)) for each in TYPED[line].split()]
    assert sys.argv[1:] == expected


def test_each_mode_has_a_word():
    assert {*WORDS} == {*MODES, RESUME}
    assert command_line.command_words()[: len(WORDS)] == [*WORDS]


@pytest.mark.parametrize(
    ("line", "code", "shown"),
    [
        ("", ExitCode.USAGE, "Choose pieces"),
        ("-", ExitCode.USAGE, "Choose pieces"),
        ("help", ExitCode.DONE, "Choose pieces"),
        ("help predict", ExitCode.DONE, "usage: psrun predict RUN "),
        ("resume runs/nowhere --help", ExitCode.DONE, "usage: psrun resume RUN "),
        ("--config-dir own train -h", ExitCode.DONE, "usage: psrun train "),
        ("help init", ExitCode.DONE, "usage: psrun init "),
    ],
)
def test_help_runs_nothing(tmp_path, monkeypatch, capsys, line, code, shown):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", *line.split()])
    try:
        ended = command_line._dispatch(0.0)
    except SystemExit as exit_:  # of argparse
        ended = exit_.code
    assert ended == code
    assert shown in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["runs/oj", "it's", "a=b", "-x", "~x", "runs/a=b"])
def test_a_folder_in_a_message_is_read_as_the_run(runs, name):
    (runs / name).mkdir(exist_ok=True)
    (argument,) = shlex.split(groups.run_argument(Path(name)))
    assert groups.names_run(argument)
    assert Path(argument) == Path(name)


def test_the_command_that_continues_a_sweep_needs_no_option(runs):
    assert run_state.resume_command(runs / "runs" / "sweep") == "psrun resume runs/sweep"


def test_a_run_is_named_in_the_values_of_keys_too(runs):
    given = ["resume=oj", "consistency.run=oj", "consistency.run=runs/named/run.json", "data.path=oj", "resume=null"]
    folder = f"'{runs / 'runs' / 'oj'}'"
    expected = [f"resume={folder}", f"consistency.run={folder}", *given[2:]]
    assert command_line.with_resume_folder(given) == expected


def test_a_url_names_a_run():
    assert groups.names_run("s3://bucket/year=2026/run")
    assert not groups.names_run("data.path=s3://bucket/year=2026/rows.csv")
