"""Private names and texts of Hydra that psrun depends on: each exists and works as psrun expects."""

from __future__ import annotations

import sys

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins
from hydra.plugins.completion_plugin import CompletionPlugin
from hydra.types import RunMode
from omegaconf import OmegaConf

from psrun import files
from psrun.config import compose, hydra_internals


def refusal(*arguments: str) -> Exception:
    """Hydra's error for arguments that it cannot compose."""
    error = compose.compose([*arguments])
    assert isinstance(error, Exception)
    return error


def test_a_key_that_cannot_be_deleted_or_added_is_read_from_the_text():
    assert hydra_internals.cannot_be_deleted(str(refusal("~seeds"))) == "seeds"
    assert hydra_internals.cannot_be_deleted(str(refusal("~data.path"))) == "data.path"
    assert hydra_internals.cannot_be_added(str(refusal("+seed=3"))) == "seed"
    assert hydra_internals.cannot_be_deleted("x") is hydra_internals.cannot_be_added("x") is None


def test_an_unknown_choice_is_read_from_the_text_with_those_offered():
    text = str(refusal("model=nope"))
    assert hydra_internals.unknown_choice(text) == ("model", "nope")
    assert {"dense", "embedding"} <= set(hydra_internals.choices_offered(text))
    assert hydra_internals.chosen_in(text) is None
    assert hydra_internals.unknown_key(text) is None
    assert hydra_internals.unknown_choice("something else") is None


@pytest.mark.parametrize(("argument", "key"), [("nope=1", "nope"), ("trainer.nope=1", "trainer.nope")])
def test_an_unknown_key_is_read_from_the_text(argument, key):
    assert hydra_internals.unknown_key(str(refusal(argument))) == key


@pytest.mark.parametrize(
    ("held", "file"),
    [
        ("defaults:\n  - override /model: dense\n", "experiment/tried.yaml"),
        ("# @package _global_\ndefaults:\n  - override /model: nope\n", None),
    ],
)
def test_the_file_with_a_mistake_is_read_from_the_text(tmp_path, held, file):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "tried.yaml").write_text(held)
    text = str(refusal("--config-dir", str(tmp_path), "experiment=tried"))
    assert hydra_internals.overrides_in_its_own_place(text) == file
    if file is None:
        assert hydra_internals.unknown_choice(text) == ("model", "nope")


def test_a_group_that_chooses_what_is_not_there_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("defaults:\n  - /optimizer: nope\n")
    assert hydra_internals.chosen_in(str(refusal("--config-dir", str(tmp_path), "model=own"))) == "model/own.yaml"


def test_an_error_of_parsing_is_about_its_argument():
    error = refusal("seed=[1", "trainer.epochs=2")
    assert hydra_internals.is_about(error, "seed=[1")
    assert not hydra_internals.is_about(error, "trainer.epochs=2")


def test_a_signal_that_an_error_hides_is_found():
    with pytest.raises(UnboundLocalError) as raised:  # noqa: PT012 - as Hydra's own code
        try:
            raise KeyboardInterrupt
        finally:
            raise UnboundLocalError
    assert isinstance(hydra_internals.signal_behind(raised.value), KeyboardInterrupt)
    assert hydra_internals.signal_behind(ValueError()) is None


def test_only_the_error_of_a_key_within_a_value_is_suppressed_in_completion():
    """With Hydra's own: `psrun seed.nonsense` in test_completion."""
    with hydra_internals.no_completion_within_a_value():
        CompletionPlugin._get_matches("a value", "x")
    with pytest.raises(AssertionError, match="a fault"), hydra_internals.no_completion_within_a_value():
        raise AssertionError("a fault")


def test_the_mode_is_that_of_the_option_in_its_context_only():
    def composes(*arguments, **options):
        composed.append(options["run_mode"])
        raise ValueError

    composed = []
    app = Hydra.__new__(Hydra)
    app.compose_config = composes
    with hydra_internals.mode_of_the_option():
        assert app.get_mode(config_name="config", overrides=["seed=1"]) is None
    assert composed == []
    assert app.get_mode(config_name="config", overrides=["seed=1"]) is None  # as where nothing sets it
    assert composed == [RunMode.MULTIRUN]


def test_the_groups_are_listed_only_where_the_help_shows_them(monkeypatch, capsys):
    def counted(*arguments):
        listed.append(arguments)
        return list_all(*arguments)

    listed = []
    list_all = Hydra.list_all_config_groups
    monkeypatch.setattr(Hydra, "list_all_config_groups", counted)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for argument, expected in [("seed=1", "psrun resume="), ("hydra.help.template=$APP_CONFIG_GROUPS", "model: cnn,")]:
        assert listed == []
        monkeypatch.setattr(sys, "argv", ["psrun", "--help", argument])
        with pytest.raises(SystemExit):
            compose.run(lambda composed: None)
        assert expected in capsys.readouterr().out
    assert listed


def test_a_file_is_read_once_for_several_compositions_and_anew_afterwards(tmp_path, monkeypatch):
    def counted(file):
        read.append(file.name)
        return load(file)

    read = []
    load = OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", counted)
    own = tmp_path / "model" / "own.yaml"
    own.parent.mkdir()
    own.write_text("_target_: mine.model\nwidth: 4\nof: ${seed}\n")
    arguments = ["--config-dir", str(tmp_path), "model=own"]
    with hydra_internals.files_read_once():
        for seed in (1, 2):
            composed = compose.compose([*arguments, f"seed={seed}"])
            assert (composed["model"]["width"], composed["model"]["of"], composed["seed"]) == (4, seed, seed)
        assert len(read) == len(set(read)) > 10
        assert compose.compose(["model=dense"])["model"]["hidden_units"] == [64, 32]
    own.write_text("_target_: mine.model\nwidth: 5\n")
    assert compose.compose(arguments)["model"]["width"] == 5


def test_the_files_of_a_job_are_written_by_what_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["psrun", "hydra.run.dir=run"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    written = []
    monkeypatch.setattr(files, "write_atomic", lambda path, text: written.append((path.name, text)))
    compose.run(lambda composed: None)
    assert [name for name, _ in written] == ["config.yaml", "hydra.yaml", "overrides.yaml"]
    assert "trainer:" in written[0][1]
    assert list((tmp_path / "run" / ".hydra").iterdir()) == []


def test_hydras_own_plugins_are_known_by_name():
    composed = compose.compose([])
    assert isinstance(composed, dict)
    names = hydra_internals.BasicLauncher, hydra_internals.BasicSweeper
    targets = [f"{each.__module__}.{each.__name__}" for each in names]
    assert hydra_internals.is_basic_launcher(targets[0])
    assert hydra_internals.is_basic_sweeper(targets[1])
    assert not hydra_internals.is_basic_launcher("hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher")


def test_a_sweep_is_split_in_jobs():
    jobs = hydra_internals.jobs_of(["a=1,2", "b=choice(3,4)", "c=5", "d=interval(0,1)"])
    assert [sorted(each) for each in jobs] == [
        ["a=1", "b=3", "c=5"], ["a=1", "b=4", "c=5"], ["a=2", "b=3", "c=5"], ["a=2", "b=4", "c=5"],
    ]  # fmt: skip


def test_plugins_are_made_by_what_is_given_and_by_hydra_again_afterwards():
    before = Plugins.instantiate_sweeper, Plugins.instantiate_launcher
    given = []

    def replaced(make):
        given.append(make)
        return lambda *arguments, **options: "replacement"

    with hydra_internals.plugins_made_by(replaced, replaced):
        assert Plugins.instance().instantiate_sweeper() == Plugins.instance().instantiate_launcher() == "replacement"
    assert given == [*before]
    assert (Plugins.instantiate_sweeper, Plugins.instantiate_launcher) == before


@pytest.mark.thorough
def test_the_options_of_joblib_are_those_that_its_launcher_passes_on():
    module = pytest.importorskip("hydra_plugins.hydra_joblib_launcher.joblib_launcher", reason="pip install -e '.[ci]'")
    options = hydra_internals.joblib_options(module.JoblibLauncher(n_jobs=2))
    assert options is not None
    assert options["n_jobs"] == 2
    assert hydra_internals.joblib_options(hydra_internals.BasicLauncher()) is None
