"""What psrun says about arguments before it composes a configuration of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from psrun.cli import hydra_app
from psrun.config import compose, groups, overrides, parse
from psrun.config.arguments import split
from psrun.errors import ConfigError, ExitCode

# An integer, a number, null, a boolean, lists, a mapping, no text.
NO_CHOICES = ("2", "1.5", "null", "true", "[a,b]", "[]", "{a:1}", "", "''")


def problem_of(*given: str, sweeps: bool = False) -> str:
    return "\n".join(map(str, overrides.problems(given, sweeps=sweeps).values()))


@pytest.mark.parametrize("group", [*parse.GROUPS, "experiment", "hydra/launcher", "hydra"])
def test_a_group_takes_the_name_of_a_choice(group):
    for value in NO_CHOICES:
        text = problem_of(f"{group}={value}")
        assert text.startswith(f"{group}: is "), value
        assert "must be the name of a choice" in text or "must be a single choice" in text
    assert problem_of(f"{group}=2,none", sweeps=True).startswith(f"{group}: is 2, must be the name of a choice")
    choice = next(iter(groups.choices([]).get(group, ["none"])))
    assert problem_of(f"{group}={choice}") == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("optimizer.learning_rate=0.1,0.2", "optimizer.learning_rate: has several values, 0.1,0.2; to sweep over them, "
                                            "add -m"),
        ("model=dense,cnn", "model: has several values, dense,cnn; to sweep over them, add -m"),
        ("seed=range(1,3)", "seed: has several values, range(1,3); to sweep over them, add -m"),
        ("data.path=a,b.csv", "data.path: has several values, a,b.csv; to sweep over them, add -m; for one text with "
                              "commas, quote it: 'data.path=\"a,b.csv\"'"),
        ("data.path=a b=c", "data.path: contains characters with a special meaning; quote the value: "
                            "'data.path=\"a b=c\"'"),
        ("seed=[1", "seed: has the value [1, which cannot be read at '[1': close each bracket and quote, and quote "
                    "text"),
        ("seed", "seed: is neither GROUP=NAME nor KEY=VALUE; to set a key, write seed=VALUE"),
        ("=3", "=3: is neither GROUP=NAME nor KEY=VALUE: there is no name before ="),
        ("experiment=[a,b]", "experiment: is [a,b], must be a single choice; to run each of them, add -m and write "
                             "experiment=a,b"),
        ("model=[dense]", "model: is [dense], must be a single choice; write model=dense"),
        ("+experiment=smoke", "experiment: has a choice already; write experiment=smoke without +"),
        ("+model=dense", "model: has a choice already; write model=dense without +"),
        ("++model=dense", "model: has a choice already; write model=dense without +"),
        ("model@x=dense", "model: has a fixed place in the configuration; write model=NAME without @"),
        ("~tracker", "tracker: cannot be left out; choose one of mlflow, none, tensorboard"),
        ("data=csv", "data: there is no 'csv': data=table reads such files: data=table data.path=FILE data.label=COLUMN"
                     ". Choose one of criteo, fashion_mnist, features, flights, regression, table."),
        ("hydra.searchpath=[file://own]", "hydra.searchpath: would be searched after psrun's own files; use "
                                          "--config-dir FOLDER"),
        ("hydra.run.dir=", "hydra.run.dir: is empty, must be a folder, such as hydra.run.dir=runs/NAME"),
    ],
)  # fmt: skip
def test_an_argument_is_refused_with_the_next_move(given, message):
    assert problem_of(given) == message


def test_a_group_is_chosen_once():
    given = ("model=two_tower", "seed=1", "model=wide_deep", "seed=2")
    assert problem_of(*given) == "model: is chosen twice, as two_tower and as wide_deep; keep one of them"


def test_values_of_a_sweep_are_choices():
    good = (
        "model=dense,cnn",
        "cluster=choice(none,local)",
        "seed=range(1,4)",
        "optimizer=glob(*)",
        "trainer='fit',fit",
    )
    assert problem_of(*good, sweeps=True) == ""


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
    assert hydra_app.run(0.0) == ExitCode.DONE
    lines = dict(line.partition("  ")[::2] for line in capsys.readouterr().out.splitlines())
    assert lines["model=tiny"].strip() == "Ten weights."
    assert lines["model=dense"].strip() == "A multilayer perceptron on float features."
    assert lines["model=cnn"] == ""  # the user's
    monkeypatch.setattr("sys.argv", ["psrun", "modle=?"])
    with pytest.raises(ConfigError, match=r"^modle: is no group\. Did you mean 'model'"):
        hydra_app.run(0.0)


def test_the_files_of_a_user_come_before_psruns(own, tmp_path):
    given = own(
        first={"model/dense": "a: 1\n", "experiment/smoke": "b: 1\n"},
        second={"model/dense": "c: 1\n", "model/other": "d: 1\n"},
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


def test_a_key_whose_value_cannot_be_read_is_not_called_missing():
    given = ["data=table", "data.path=a[1].csv", "data.label=y"]
    assert [problem.key for problem in compose.all_problems(given)] == ["data.path"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--multrun seed=1", "--multrun is no option of psrun. Did you mean '--multirun'? See psrun --help"),
        ("--config-dir", "--config-dir has no value; write --config-dir VALUE"),
        ("-m --config-dir -r seed=1,2", "--config-dir has no value; write --config-dir VALUE"),
        ("--resolve", "--resolve is an option of --cfg: add --cfg job"),
        ("--config-path own", "--config-path would replace psrun's own files; use --config-dir FOLDER"),
        ("-m trainer.epochs", "trainer.epochs: is neither GROUP=NAME nor KEY=VALUE; to set a key, write trainer.epochs="
                              "VALUE"),
    ],
)  # fmt: skip
def test_an_option_that_a_run_does_not_have_starts_none(monkeypatch, given, message):
    monkeypatch.setattr("sys.argv", ["psrun", *given.split()])
    with pytest.raises(ConfigError) as refused:
        hydra_app.run(0.0)
    assert str(refused.value) == message


@pytest.mark.parametrize("given", ["-m --help", "--help -m seed=2"])
def test_what_prints_starts_no_sweep(monkeypatch, capsys, given):
    monkeypatch.setattr("sys.argv", ["psrun", *given.split()])
    with contextlib.suppress(SystemExit):
        hydra_app.run(0.0)
    assert "Choose pieces" in capsys.readouterr().out


def test_a_sweep_prints_no_configuration(monkeypatch):
    monkeypatch.setattr("sys.argv", ["psrun", "-m", "seed=1,2", "--cfg", "job"])
    with pytest.raises(ConfigError, match="Only one of --run, --multirun, --cfg"):
        hydra_app.run(0.0)


def test_an_argument_after_an_option_without_a_value_is_no_value():
    assert split(["-m", "~seed", "--config-dir", "own", "model=dense"]) == (
        ["-m", "--config-dir", "own"],
        ["~seed", "model=dense"],
    )
