"""Composing: signals, YAML files of a user, the folder of a run, and that the result is what Hydra composes.

The messages about mistakes: test_messages_core.py.
"""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import signal
import sys
from typing import ClassVar

import pytest
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from psrun import files
from psrun.cli import command_line
from psrun.config import composition
from psrun.config.composition import Composer
from psrun.errors import ConfigError, ExitCode, Interrupted, RunFolderError
from psrun.roles import run_process

# Values of Hydra's grammar: numbers, texts, lists, mappings, references.
VALUES = st.sampled_from(
    ["7", "-1.5", "010", "1_000", "12:30", "null", "true", "best", "'a b.csv'", '"y,z"', "[8,4]", "{a:1,b:[x,y]}",
     "${seed}"]
)  # fmt: skip
KEYS = st.sampled_from(
    ["seed", "cluster.num_ps", "model.embedding_dim", "optimizer.learning_rate", "predict.path", "task.type",
     "data.num_train_examples", "early_stopping.patience", "hydra.job.name"]
)  # fmt: skip
CHANGED = st.tuples(KEYS, VALUES).map("=".join)
ADDED = st.tuples(st.sampled_from(["+model.extra", "++model.extra.more", "+export.more", "++seed"]), VALUES).map(
    "=".join
)
DELETED = st.sampled_from(["~trainer.prefetch_rows", "~early_stopping.min_delta", "~task.index=0", "~nope", "~seed=2"])
COMPOSER = Composer.create([])


def yaml_of(composed) -> str | None:
    """The result of composing; None if that is refused."""
    try:
        return OmegaConf.to_yaml(composed())
    except Exception:  # of several types
        return None


@settings(deadline=None, derandomize=True, max_examples=12, database=None)
@given(st.lists(st.one_of(CHANGED, ADDED, DELETED), max_size=4, unique_by=lambda each: each.partition("=")[0]))
@example(["model=dense", "cluster=local", "cluster.num_ps=3", "model.hidden_units=[8,4]", "trainer=fit"])
@example(["experiment=smoke", "optimizer.learning_rate=0.5", "++model.extra={a:1,b:[x,y]}", "~trainer.prefetch_rows"])
@example(["data=table", "data.path='a b.csv'", "data.columns={x:int,y:null}", "data.columns.x=uint"])
@example(["early_stopping={metric:val_auc,mode:max}", "early_stopping.patience=9", "~early_stopping.min_delta=0.0"])
@example(["hydra.job.env_copy=[PATH]", "+hydra.job.env_set.A=b", "seed=2", "hydra.job.chdir=true"])
@example(["hydra.job.config.override_dirname.exclude_keys=[seed]", "seed=2", "task.index=5"])
@example(["model.a.b=1"])
@example(["seed.x=1"])
def test_what_psrun_composes_is_what_hydra_composes(arguments):
    """Also what is refused."""
    by_hydra = yaml_of(lambda: COMPOSER.loader.load_configuration("config", arguments, RunMode.RUN))
    assert yaml_of(lambda: COMPOSER.compose(arguments)) == by_hydra


@pytest.mark.parametrize(
    "raised", [KeyboardInterrupt(), Interrupted(signal.SIGTERM)], ids=lambda each: type(each).__name__
)
def test_a_signal_that_comes_while_hydra_opens_a_file_is_not_hidden(monkeypatch, raised):
    """Hydra's `finally: f.close()` fails there, as there is no f yet."""
    opened = pathlib.Path.open

    def interrupted_open(path, *args, **kwargs):
        if path.suffix == ".yaml":
            raise raised
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(pathlib.Path, "open", interrupted_open)
    with pytest.raises(type(raised)) as caught:
        composition.compose([])
    assert caught.value is raised


def test_loggers_of_the_calling_process_stay_enabled(tmp_path, monkeypatch):
    """psrun reads the cause of a failed step from TensorFlow's."""
    logger = logging.getLogger("tensorflow")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", "hydra.run.dir=run"])
    monkeypatch.setattr(run_process, "execute", lambda *arguments, **options: ExitCode.DONE)
    command_line.run_experiment(0.0)
    assert not logger.disabled
    assert logger.isEnabledFor(logging.WARNING)  # what a model warns of is in the log


class Recorder(Callback):
    """A callback of `hydra.callbacks`."""

    called: ClassVar[list[str]] = []

    def on_run_start(self, config, **kwargs):
        self.called.append("on_run_start")

    def on_job_start(self, config, **kwargs):
        self.called.append("on_job_start")

    def on_job_end(self, config, job_return, **kwargs):
        self.called.append("on_job_end")

    def on_run_end(self, config, **kwargs):
        self.called.append("on_run_end")


def test_callbacks_of_hydra_are_called_in_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = f"+hydra.callbacks.recorder={{_target_: {__name__}.Recorder}}"
    monkeypatch.setattr(sys, "argv", ["psrun", "hydra.run.dir=run", recorder])
    monkeypatch.setattr(run_process, "execute", lambda *arguments, **options: ExitCode.DONE)
    command_line.run_experiment(0.0)
    assert Recorder.called == ["on_run_start", "on_job_start", "on_job_end", "on_run_end"]


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.subdir"])
def test_a_reference_to_nothing_in_a_key_of_hydra_is_a_mistake(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", f"{key}=${{nope}}"])
    with pytest.raises(ConfigError, match="nope"):
        command_line.run_experiment(0.0)


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """The error of the command about its arguments; `files` by name lie under --config-dir."""

    def error_of(*arguments: str, files: dict[str, str] | None = None) -> ConfigError:
        for name, held in (files or {}).items():
            path = tmp_path / "own" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(held)
        own = ["--config-dir", "own"] if files else []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
        monkeypatch.setattr(sys, "argv", ["psrun", *own, "hydra.run.dir=run", *arguments])
        with pytest.raises(ConfigError) as raised:
            command_line.run_experiment(0.0)
        return raised.value

    return error_of


@pytest.mark.parametrize(
    ("held", "part"),
    [
        ("_target_: mine.line\n  width: 4: 5\n", "mine.yaml, line 2, column 8: "),
        ("_target_: 'mine.line\nwidth: 4\n", "(line 1)"),
        ("width: 1\nwidth: 2\n", "own/model/mine.yaml, line 2, column 1: "),
        ("_target_: mine.line\nwidth: ${nope.x}\n", "model.width: "),
        ("defaults: [mine]\n", "defaults: "),
    ],
)
def test_a_yaml_file_that_hydra_cannot_read_is_named_with_the_place(refused, held, part):
    text = str(refused("model=mine", files={"model/mine": held}))
    assert part in text
    assert len(text.splitlines()) == 1


def test_mistakes_in_an_experiment_of_a_user_are_reported_together(refused):
    held = "# @package _global_\nmodel: {loss_weights: [1]}\nepochs: 3\nexperiment: dlrm\nhydra: {rnu: 1}\n"
    assert [problem.key for problem in refused("experiment=tried", files={"experiment/tried": held}).problems] == [
        "hydra.rnu"
    ]
    held = held.replace("hydra: {rnu: 1}\n", "")
    keys = {problem.key for problem in refused("experiment=tried", files={"experiment/tried": held}).problems}
    assert keys == {"model.loss_weights", "epochs", "experiment"}


def test_a_key_that_an_experiment_sets_for_another_model_can_be_removed(tmp_path):
    (tmp_path / "experiment").mkdir()
    held = "# @package _global_\ndefaults: [override /model: dense]\nmodel: {hidden_units: [8]}\n"
    (tmp_path / "experiment" / "tried.yaml").write_text(held)
    arguments = ["--config-dir", str(tmp_path), "experiment=tried", "data=regression", "model=cnn"]
    assert composition.all_problems(arguments) == []
    arguments[-1] = "model=embedding"
    (problem,) = composition.all_problems(arguments)
    assert problem.key == "model.hidden_units"
    assert problem.message.endswith(" experiment=tried sets it; to remove it, add '~model.hidden_units'")
    assert composition.all_problems([*arguments, "~model.hidden_units"]) == []
    (typed,) = composition.all_problems([*arguments, "model.hidden_units=[4]"])
    assert "experiment=tried" not in typed.message


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("model.width=16", "write +model.width=16, or add width to own/model/mine.yaml"),
        ("model.witdh=16", "Did you mean +model.width? mine_of_arguments.line takes width"),
        ("model.lss=mse", "Did you mean 'loss'?"),
        ("model.source=x", "Valid names: class_weight, from_logits, loss, metrics."),
    ],
)
def test_a_parameter_of_the_model_function_that_no_file_sets_is_told(refused, tmp_path, monkeypatch, argument, part):
    (tmp_path / "mine_of_arguments.py").write_text("def line(source, *, width=8): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = refused("model=mine", argument, files={"model/mine": "_target_: mine_of_arguments.line\n"})
    (problem,) = [each for each in error.problems if each.key == argument.partition("=")[0]]
    assert problem.message.endswith(part)


@pytest.mark.parametrize("options", [["--help"], ["--cfg", "hydra"], []])
def test_mistakes_are_reported_whatever_the_options_with_one_composition(refused, compositions, options):
    error = refused(*options, "trainer.epoch=2", "seeed=1", "trainer.steps_per_epoch=-1")
    assert {problem.key for problem in error.problems} == {"trainer.epoch", "seeed", "trainer.steps_per_epoch"}
    assert len(compositions) == (2 if "--cfg" in options else 1)  # Hydra's own, too


def test_a_file_with_the_name_of_psruns_is_used_and_told(tmp_path, capsys):
    """Psrun's has no key `width`."""
    path = tmp_path / "model" / "dense.yaml"
    path.parent.mkdir()
    path.write_text("_target_: nowhere.line\nwidth: 1\n")
    arguments = ["--config-dir", str(tmp_path), "model=dense", "model.width=2"]
    model = composition.compose(arguments).model
    assert (model._target_, model.width) == ("nowhere.line", 2)
    command_line.note_replaced(arguments)
    assert f"model=dense ({path})" in capsys.readouterr().err


def test_an_experiment_may_set_what_belongs_to_no_group(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "tried.yaml").write_text("# @package _global_\nseed: 7\nexport: {at_end: true}\n")
    composed = composition.values(composition.compose(["--config-dir", str(tmp_path), "experiment=tried"]))
    assert (composed["seed"], composed["export"]) == (
        7,
        {"at_end": True, "best": False, "tables": "whole", "top_k": None},
    )


def test_a_disk_that_is_full_before_the_run_begins_is_reported_with_the_folder(tmp_path, monkeypatch):
    """`test_continued_trainings` has a disk that is really full."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_atomic", full)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    monkeypatch.setattr(sys, "argv", ["psrun", f"hydra.run.dir={tmp_path / 'run'}"])
    with pytest.raises(RunFolderError) as raised:
        command_line.run_experiment(0.0)
    assert str(tmp_path / "run") in str(raised.value)


def test_fields_of_hydra_in_the_help_are_filled(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["psrun", "--help", "hydra.help.template=$APP_CONFIG_GROUPS"])
    with pytest.raises(SystemExit):
        command_line.run_experiment(0.0)
    assert "model: cnn," in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["hydra.run.dir=gs:/bucket/run"], "hydra.run.dir"),
        (["hydra.run.dir='C:\\run'"], "hydra.run.dir"),
        (["init", "file:///tmp/project"], "folder"),
    ],
)
def test_a_path_with_a_scheme_is_refused_where_psrun_writes(refuses_to_write, command, key):
    refuses_to_write(command, key)
