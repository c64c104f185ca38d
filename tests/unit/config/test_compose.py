"""What becomes of signals and of mistakes in YAML files while Hydra composes a configuration."""

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

from psrun import files
from psrun.cli import hydra_app
from psrun.config import compose, groups
from psrun.errors import ConfigError, ExitCode, RunFolderError
from psrun.launch.sweeps.runner import SweepSignal
from psrun.roles import run_process


@pytest.mark.parametrize(
    "raised", [KeyboardInterrupt(), SweepSignal(signal.SIGTERM)], ids=lambda each: type(each).__name__
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
        compose.compose([])
    assert caught.value is raised


def test_loggers_of_the_calling_process_stay_enabled(tmp_path, monkeypatch):
    """psrun reads the cause of a failed step from TensorFlow's."""
    logger = logging.getLogger("tensorflow")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", "hydra.run.dir=run"])
    monkeypatch.setattr(run_process, "execute", lambda *arguments, **options: ExitCode.DONE)
    hydra_app.run(0.0)
    assert not logger.disabled


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
    hydra_app.run(0.0)
    assert Recorder.called == ["on_run_start", "on_job_start", "on_job_end", "on_run_end"]


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.subdir"])
def test_a_reference_to_nothing_in_a_key_of_hydra_is_a_mistake(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", f"{key}=${{nope}}"])
    with pytest.raises(ConfigError, match="nope"):
        hydra_app.run(0.0)


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """The command's message about arguments that cannot be composed; `files` by name lie under --config-dir."""

    def message_of(*arguments: str, files: dict[str, bytes] | None = None) -> str:
        for name, held in (files or {}).items():
            path = tmp_path / "own" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(held)
        own = ["--config-dir", "own"] if files else []
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
        monkeypatch.setattr(sys, "argv", ["psrun", *own, "hydra.run.dir=run", *arguments])
        with pytest.raises(ConfigError) as raised:
            hydra_app.run(0.0)
        return str(raised.value)

    return message_of


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (b"_target_: mine.line\n  width: 4: 5\n", "mine.yaml, line 2, column 8: mapping values are not allowed"),
        (b"_target_: 'mine.line\nwidth: 4\n", "found unexpected end of stream while scanning a quoted scalar (line 1)"),
        (b"width: 1\nwidth: 2\n", "own/model/mine.yaml, line 2, column 1: found duplicate key width"),
        (b"_target_: mine.line\nword: caf\xe9\n", "own/model/mine.yaml, line 2: byte 0xe9 at column 10 is not UTF-8"),
        (b"_target_: mine.line\nwidth: ${nope.x}\n", "model.width: Interpolation key 'nope.x' not found"),
        (b"_target_: tf_keras.Model\n_partial_: true\n", "model._partial_: has no meaning in psrun"),
        (b"- 1\n- 2\n", "model/mine.yaml: holds a list, must hold keys with values"),
        (b"defaults: dense\n", "own/model/mine.yaml, must be a list with items such as '- override /model: dense'"),
        (b"defaults: [nope]\n", "model: there is no model named 'nope', which model/mine.yaml selects. Valid names:"),
        (b"defaults: [override /optimizer: sgd]\n", "in model/mine.yaml at another place; write '- override "
                                                     "/optimizer@_global_.optimizer: NAME'"),
        (b"defaults: [mine]\n", "defaults: the defaults lists of configuration files select each other in a circle"),
    ],
)  # fmt: skip
def test_a_yaml_file_that_cannot_be_read_is_named_with_the_line(refused, held, message):
    text = refused("model=mine", files={"model/mine": held})
    assert message in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (b"defaults:\n  - override /model: dense\n", "tried.yaml must begin with the line '# @package _global_'"),
        (b"trainer: {epochs: 1}\n", "the experiment file must begin with the line '# @package _global_'"),
        (b"# @package _global_\ndefaults:\n  - override /model: denes\n",
         "model: there is no model named 'denes', which experiment/tried.yaml selects. Did you mean 'dense'?"),
        (b"# @package _global_\ndefaults:\n  - override model: cnn\n",
         "model: is overridden in experiment/tried.yaml at another place; write '- override /model: NAME'"),
        (b"# @package _global_\ndefaults:\n  - override /modle: cnn\n",
         "modle: there is no such group, which experiment/tried.yaml overrides. Did you mean 'model'?"),
        (b"# @package _global_\ndefaults:\n  - /model: cnn\n",
         "model: is chosen in two defaults lists; to replace a choice, write '- override /model: NAME'"),
        (b"# @package _global_\ndefaults:\n  - model: cnn\n",
         "To choose a model in a defaults list, write '- override /model: cnn'."),
        (b"# @package _global_\ndefaults:\n  - override /model: cnn\n  - override /model: dense\n",
         "defaults: has several choices of model in "),
        (b"# @package _global_\ndefaults:\n  - override /optimizer: [sgd, adagrad]\n",
         "defaults: has several choices of optimizer in "),
        (b"# @package _global_\ndefaults:\n  - override /model: 2\n", "defaults: has the item {'override /model': 2}"),
        (b"# @package _global_\nhydra: {searchpath: [x]}\n", "hydra.searchpath: is set in experiment/tried.yaml; use"),
        (b"# @package _global_\nhydra: {rnu: 1}\n", "hydra.rnu: Key 'rnu' not in 'hydra'"),
        (b"# @package _global_\nmodel: {loss_weights: [1]}\n",
         "model.loss_weights: is an argument of Keras that is no key of psrun's models: put the weights into losses"),
        (b"# @package _global_\nmodel: {weighted_metrics: [AUC]}\n", "psrun's models: use model.metrics, which psrun"),
        (b"# @package _global_\nepochs: 3\n", "epochs: no such key (value 3). Did you mean trainer.epochs?"),
        (b"# @package _global_\nexperiment: dlrm\n", "experiment: is 'dlrm' in a YAML file; choose"),
        (b"# @package _global_\nresume: runs/x\n", "resume: is read from the command line only"),
    ],
)  # fmt: skip
def test_mistakes_in_a_users_experiment_are_reported_with_the_fix(refused, held, message):
    text = refused("experiment=tried", files={"experiment/tried": held})
    assert message in text
    assert "Hydra" not in text


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("seed/2", ["seed=2"], "own/seed has the name of the key seed, which is no group; rename the folder"),
        ("hydra/job_logging/disabled", [], "own/hydra/job_logging/disabled.yaml has the name of a file that psrun's"),
        ("hydra/config", [], "own/hydra/config.yaml has the name of a file that psrun's own settings need; rename it"),
        ("conf/model/mine", ["model=mine"], "To use {own}/conf/model/mine.yaml, add --config-dir {own}/conf."),
        ("mine/a", ["mine=a"], "mine: is a group without a choice; write +mine=a"),
        ("mine/a", ["+mine=[a,b]"], "mine: there is no mine named 'b'. Valid names: a."),
        ("mine/a", ["+mine=[a,2]"], "mine: is 2, must be the name of a choice: a"),
    ],
)  # fmt: skip
def test_a_file_that_has_another_effect_than_its_place_says_is_reported(refused, tmp_path, name, arguments, message):
    assert message.format(own=tmp_path / "own") in refused(*arguments, files={name: b"metric: auc\n"})


def test_a_file_that_is_not_read_is_named(refused, tmp_path):
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text("_target_: mine.model\n")
    assert refused("model=mine").endswith("To use conf/model/mine.yaml, add --config-dir conf.")
    own = tmp_path / "own" / "model" / "other.yml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: mine.model\n")
    text = refused("model=other", files={"model/mine": b"_target_: mine.model\n"})
    assert text.endswith(f"{own} is not read; name it other.yaml.")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("model=mine", "no model named 'mine'. Valid names: cnn, dense, din, dlrm, embedding, two_tower, wide_deep. "
                       "For your own choices, add --config-dir FOLDER."),
        ("cluster=tpu", "TPUStrategy is synchronous, without parameter servers"),
        ("cluster=tpu", "Choose one of central_storage, inprocess,"),
        ("modle=dense", "modle: no such key or group (value 'dense'). Did you mean 'model'?"),
        ("partitioner.num_shards=3", "no such key or group (value '3'). It is a key of partitioner=fixed_shards."),
        ("trainer._target_=mine.loop", "To use your own callable, set trainer=own_loop."),
        ("learning_rate=0.1", "no such key or group (value '0.1'). Did you mean optimizer.learning_rate?"),
        ("optimizer.lr=0.1", "optimizer.lr: no such key or group (value '0.1'). Did you mean 'learning_rate'?"),
        ("metric=auc", "Did you mean early_stopping.metric or reduce_lr.metric or sweep.metric?"),
        ("data.path=x.csv data.label=y", "data.path: no such key or group (value 'x.csv'). It is a key of data=table.\n"
                                         "data.label: no such key or group (value 'y'). It is a key of data=table."),
        ("model=1 model.nope=2 seed=x", "seed: is 'x', must be an integer"),
        ("mode=predicts resume=/nowhere", "mode: is 'predicts', must be one of train"),
        ("resume=/nowhere seed=x predict.formt=csv model=denes model.width=3",
         "remove hydra.run.dir\nmodel: there is no model named 'denes'. Did you mean 'dense'?\n"
         "predict.formt: no such key or group (value 'csv'). Did you mean 'format'?\nseed: is 'x', must be an integer"),
        ("model=two_tower model=wide_deep",
         "model: is chosen twice, as two_tower and as wide_deep; keep one of them"),
        ("early_stopping.mode=maximum", "early_stopping.mode: is 'maximum', must be one of max, min, null"),
        ("trainer.hooks=3 seed=null", "trainer.hooks: is 3, must be a list\nseed: is null; set seed=... (an integer)"),
        ("model.loss_weights=[1]", "model.loss_weights: is an argument of Keras that is no key of psrun's models: put"),
        ("~model.loss", "model.loss: is not set; remove the argument with ~"),
        ("~seeds", "seeds: there is no such key to delete (~). Did you mean 'seed'?"),
        ("+seed=3", "seed: exists already; write seed=3 without +"),
        ("hydra.run.dir=[a]", "hydra.run.dir: cannot be set by hydra.run.dir=[a]: Cannot convert 'list' to string"),
        ("++resume=run", "resume: is read from the command line only, as resume=RUN_FOLDER without +"),
    ],
)  # fmt: skip
def test_what_cannot_be_composed_is_reported_with_the_next_move(refused, argument, message):
    text = refused(*argument.split())
    assert message in text
    assert "Hydra" not in text


@pytest.mark.parametrize("options", [["--help"], ["--cfg", "hydra"], ["--info", "config"], []])
def test_mistakes_are_reported_whatever_the_options_with_one_composition(refused, compositions, options):
    text = refused(*options, "trainer.epoch=2", "seeed=1", "trainer.steps_per_epoch=-1")
    assert all(key in text for key in ("trainer.epoch:", "seeed:", "trainer.steps_per_epoch:"))
    assert len(compositions) == (2 if {"--cfg", "--info"} & {*options} else 1)  # Hydra's own, too


def test_a_mistyped_choice_is_not_taken_for_an_own_one(refused):
    assert refused("model=embeding") == "model: there is no model named 'embeding'. Did you mean 'embedding'?"
    assert "--config-dir" not in refused("model=line", files={"model/mine": b""})


def test_a_file_with_the_name_of_psruns_is_used_and_told(refused, tmp_path, capsys):
    """Psrun's has no key `width`. A whole configuration of the user's is refused instead."""
    text = refused("model=dense", "model.width=2", files={"model/dense": b"_target_: nowhere.line\nwidth: 1\n"})
    assert text.startswith("model._target_: cannot find 'nowhere.line': no module named 'nowhere'")
    assert (
        capsys.readouterr().err == f"note: used instead of psrun's own: model=dense ({tmp_path}/own/model/dense.yaml)\n"
    )
    text = refused("model=cnn", files={"config": b"seed: 3\n"})
    assert text.startswith(
        f"--config-dir: {tmp_path}/own/config.yaml has the name of psrun's {groups.CONF}/config.yaml"
    )
    assert f"move its keys to {tmp_path}/own/experiment/NAME.yaml" in text


def test_an_experiment_may_set_what_belongs_to_no_group(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "tried.yaml").write_text("# @package _global_\nseed: 7\nexport: {at_end: true}\n")
    composed = compose.values(compose.compose(["--config-dir", str(tmp_path), "experiment=tried"]))
    assert (composed["seed"], composed["export"]) == (7, {"at_end": True, "best": False})


@pytest.mark.parametrize("folder", ["afile", "afile/run", "/proc/run"])
def test_a_run_folder_that_cannot_be_created_is_reported_by_its_key(tmp_path, refused, folder):
    (tmp_path / "afile").touch()
    path = tmp_path / folder
    assert refused(f"hydra.run.dir={folder}").startswith(f"hydra.run.dir: {path} cannot be created or written to: ")


def test_a_disk_that_is_full_before_the_run_begins_is_reported_with_the_folder(tmp_path, monkeypatch):
    """`test_continued_trainings` has a disk that is really full."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_atomic", full)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    monkeypatch.setattr(sys, "argv", ["psrun", f"hydra.run.dir={tmp_path / 'run'}"])
    with pytest.raises(RunFolderError, match=rf"run folder {tmp_path}/run cannot be written to: No space left"):
        hydra_app.run(0.0)


def test_fields_of_hydra_in_the_help_are_filled(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["psrun", "--help", "hydra.help.template=$APP_CONFIG_GROUPS"])
    with pytest.raises(SystemExit):
        hydra_app.run(0.0)
    assert "model: cnn," in capsys.readouterr().out
