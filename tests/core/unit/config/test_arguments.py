"""The arguments of a command line, before a configuration is composed of them.

The messages: test_messages_core.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from psrun.cli import command_line
from psrun.config import composition, groups, parse
from psrun.config.groups import split_arguments
from psrun.errors import ExitCode

# An integer, a number, null, a boolean, lists, a mapping, no text.
NO_CHOICES = ("2", "1.5", "null", "true", "[a,b]", "[]", "{a:1}", "", "''")


def refused(*given: str, sweeps: bool = False) -> list[str]:
    """The keys of the problems of arguments."""
    return [problem.key for problem in composition.problems_of_arguments(given, sweeps=sweeps).values()]


@pytest.mark.parametrize("group", [*parse.GROUPS, "experiment", "hydra/launcher", "hydra"])
def test_a_group_takes_the_name_of_a_choice(group):
    for value in NO_CHOICES:
        assert refused(f"{group}={value}") == [group], value
    assert refused(f"{group}=2,none", sweeps=True) == [group]
    choice = next(iter(groups.choices([]).get(group, ["none"])))
    assert refused(f"{group}={choice}") == []


def test_a_group_is_chosen_once():
    assert refused("model=two_tower", "seed=1", "model=wide_deep", "seed=2") == ["model"]


def test_an_option_may_stand_for_a_key():
    for option in ("-v", "--verbose"):
        given = groups.with_keys_of_options(["model=dense", option, "-m"])
        assert given == ["model=dense", "run.verbose=true", "-m"]
        assert refused(*given[:2]) == []


def test_values_of_a_sweep_are_choices():
    good = (
        "model=dense,cnn",
        "cluster=choice(none,local)",
        "seed=range(1,4)",
        "optimizer=glob(*)",
        "trainer='fit',fit",
    )
    assert refused(*good, sweeps=True) == []


def test_a_key_that_only_an_unknown_choice_could_have_is_no_second_problem():
    assert [problem.key for problem in composition.all_problems(["model=mine", "model.width=3"])] == ["model"]


@pytest.mark.parametrize(
    ("given", "options", "others"),
    [
        (
            ["-m", "~seed", "--config-dir", "own", "model=dense"],
            ["-m", "--config-dir", "own"],
            ["~seed", "model=dense"],
        ),
        (["--config-dir", "seed=1"], ["--config-dir"], ["seed=1"]),
    ],
)
def test_an_argument_after_an_option_without_a_value_is_no_value(given, options, others):
    assert split_arguments(given) == (options, others)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Folders with files of a user; returns the arguments that name them."""
    monkeypatch.chdir(tmp_path)

    def folders(**files: dict[str, str]) -> list[str]:
        for folder, texts in files.items():
            for name, text in texts.items():
                path = Path(folder, f"{name}.yaml")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return [option for folder in files for option in ("--config-dir", folder)]

    return folders


def test_the_choices_of_a_group_are_listed_with_a_line_each(own, monkeypatch, capsys):
    given = own(folder={"model/tiny": "# Ten weights.\n_target_: mine.tiny\n", "model/cnn": "_target_: mine.cnn\n"})
    monkeypatch.setattr("sys.argv", ["psrun", *given, "model=?"])
    assert command_line.run_experiment(0.0) == ExitCode.DONE
    lines = dict(line.partition("  ")[::2] for line in capsys.readouterr().out.splitlines())
    assert lines["model=tiny"].strip() == "Ten weights."
    assert lines["model=dense"].strip() == "A multilayer perceptron on float features."
    assert lines["model=cnn"] == ""  # the user's


def test_the_description_of_a_choice_is_its_first_sentence_folded_at_the_width_of_a_terminal(own):
    comment = "# A model of words and\n# numbers (Doe et al.: Words, 2016), as\n# in a book. And more.\n"
    given = own(folder={"model/tiny": f"# @package _global_\n{comment}#\n# psrun x=y\n_target_: mine.tiny\n"})
    text = groups.description(groups.choices(given)["model"]["tiny"])
    assert text == "A model of words and numbers (Doe et al.: Words, 2016), as in a book."
    start = "model=tiny  "
    assert command_line._hanging(start, text, None) == start + text
    lines = command_line._hanging(start, text, 50).splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 50
    assert [line[: len(start)] for line in lines] == [start, " " * len(start)]
    assert command_line._hanging(start, "", 50) == "model=tiny"


def test_the_files_of_a_user_come_before_psruns(own, tmp_path):
    given = own(
        first={"model/dense": "_target_: a.b\n", "model/tiny": "_target_: c.d\n", "experiment/smoke": "seed: 1\n"},
        second={"model/dense": "_target_: e.f\n", "model/other": "_target_: g.h\n"},
    )
    found = groups.choices(given)
    assert found["model"]["dense"] == tmp_path / "second" / "model" / "dense.yaml"  # the last folder comes first
    assert found["experiment"]["smoke"] == tmp_path / "first" / "experiment" / "smoke.yaml"
    assert found["model"]["cnn"] == groups.CONF / "model" / "cnn.yaml"
    assert {str(path.relative_to(tmp_path)) for path in groups.replaced(given)} == {
        "second/model/dense.yaml",
        "first/experiment/smoke.yaml",
    }
    assert groups.replaced([]) == []
    composer = composition.Composer.create(given)
    chosen = {name: composer.compose([f"model={name}"]).model._target_ for name in ("dense", "tiny")}
    assert chosen == {"dense": "e.f", "tiny": "c.d"}


@pytest.mark.parametrize("given", ["-m --help", "--help -m seed=2"])
def test_what_prints_starts_no_sweep(monkeypatch, capsys, given):
    monkeypatch.setattr("sys.argv", ["psrun", *given.split()])
    assert command_line.run_experiment(0.0) == ExitCode.DONE
    assert "Choose pieces" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        (["seed=1,", "2"], "seed", "has a blank between its values; write seed=1,2"),
        (["seed=1,", "2,", "3", "cluster=none"], "seed", "has a blank between its values; write seed=1,2,3"),
        (["seed=1,"], "seed", "ends with a comma; add the value after it, or write seed=1"),
    ],
)
def test_values_with_blanks_after_their_commas_are_one_mistake(given, key, message):
    problems = composition.problems_of_arguments(given, sweeps=True)
    assert {(problem.key, problem.message) for problem in problems.values()} == {(key, message)}


def test_a_mapping_for_a_list_is_told_to_be_in_brackets():
    config = OmegaConf.create({"trainer": {"hooks": []}})
    OmegaConf.set_struct(config, True)
    (override,) = composition.parsed_overrides(["trainer.hooks={_target_: mine.hook, every_s: 3}"])
    problem = composition.set_key(config, override)
    assert problem is not None
    assert problem.key == "trainer.hooks"
    assert problem.message == "is a mapping, must be a list; write 'trainer.hooks=[{_target_: mine.hook, every_s: 3}]'"
