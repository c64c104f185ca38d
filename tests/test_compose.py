"""What becomes of signals and of mistakes in YAML files while Hydra composes a configuration."""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import signal
import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from psrun import files
from psrun.cli import hydra_app
from psrun.config import compose
from psrun.errors import ConfigError, RunFolderError
from psrun.launch.sweeps.interruption import Ended


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), Ended(signal.SIGTERM)], ids=lambda each: type(each).__name__)
def test_a_signal_that_comes_while_hydra_opens_a_file_is_not_hidden(monkeypatch, raised):
    """Hydra's `finally: f.close()` fails there, as there is no f yet."""
    opened = pathlib.Path.open

    def interrupted_open(path, *args, **kwargs):
        if path.suffix == ".yaml":
            raise raised
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(pathlib.Path, "open", interrupted_open)
    monkeypatch.setattr(sys, "argv", ["psrun"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as it will be: taken back at the end
    try:
        with pytest.raises(type(raised)) as caught:
            compose.run(lambda composed: None)
    finally:
        GlobalHydra.instance().clear()
    assert caught.value is raised


def test_loggers_of_the_calling_process_stay_enabled(tmp_path, monkeypatch):
    """psrun reads the cause of a failed step from TensorFlow's."""
    logger = logging.getLogger("tensorflow")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", "hydra.run.dir=run"])
    try:
        compose.run(lambda composed: None)
    finally:
        GlobalHydra.instance().clear()
    assert not logger.disabled


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
         "model: there is no model named 'denes', which a YAML file selects. Did you mean 'dense'?"),
    ],
)  # fmt: skip
def test_mistakes_in_a_users_experiment_are_reported_with_the_fix(refused, held, message):
    assert message in refused("experiment=tried", files={"experiment/tried": held})


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
    ],
)  # fmt: skip
def test_an_unknown_choice_is_reported_with_the_next_move(refused, argument, message):
    assert message in refused(argument)


def test_a_mistyped_choice_is_not_taken_for_an_own_one(refused):
    assert refused("model=embeding") == "model: there is no model named 'embeding'. Did you mean 'embedding'?"
    assert "--config-dir" not in refused("model=line", files={"model/mine": b""})


def test_an_experiment_may_set_what_belongs_to_no_group(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "tried.yaml").write_text("# @package _global_\nseed: 7\nexport: {at_end: true}\n")
    composed = compose.compose(["--config-dir", str(tmp_path), "experiment=tried"])
    assert isinstance(composed, dict)
    assert (composed["seed"], composed["export"]) == (7, {"at_end": True, "best": False})


@pytest.mark.parametrize("folder", ["afile", "afile/run", "/proc/run"])
def test_a_run_folder_that_cannot_be_created_is_reported_by_its_key(tmp_path, refused, folder):
    (tmp_path / "afile").touch()
    path = tmp_path / folder
    assert refused(f"hydra.run.dir={folder}").startswith(f"hydra.run.dir: {path} cannot be created or written to: ")


def test_a_disk_that_is_full_before_the_run_begins_is_reported_with_the_folder(tmp_path, monkeypatch):
    """`test_checkpoint_schedule` has a disk that is really full."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_atomic", full)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    monkeypatch.setattr(sys, "argv", ["psrun", f"hydra.run.dir={tmp_path / 'run'}"])
    with pytest.raises(RunFolderError, match=rf"run folder {tmp_path}/run cannot be written to: No space left"):
        hydra_app.run(0.0)
