"""What a package beside psrun offers is listed where psrun's own is: completion, help, choices and the reference."""

from __future__ import annotations

import sys

import pytest
from sources import of_docs
from support import HARNESS

from psrun import parts
from psrun.cli import command_line
from psrun.errors import ExitCode
from psrun.runs import completion


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """The package can be found."""
    monkeypatch.syspath_prepend(str(HARNESS / "outside"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as the command does
    parts.others.cache_clear()
    yield
    parts.others.cache_clear()


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("psrun gre", ["greet"]),
        ("psrun greet --lo", ["--loudly"]),
        ("psrun model=re", ["model=recipe"]),
        ("psrun cluster=mar", ["cluster=marked"]),
        ("psrun model=recipe model.wi", ["model.width="]),
    ],
)
def test_completion(monkeypatch, capfd, line, answers):
    monkeypatch.setattr(sys, "argv", ["psrun", "-sc", "query=bash"])
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert completion.main(["query=bash"]) == ExitCode.DONE
    output = capfd.readouterr()
    assert (output.out.split(), output.err) == (answers, "")


@pytest.mark.parametrize(
    ("argument", "word"),
    [("--help", "greet"), ("model=?", "model=recipe"), ("tracker=?", "tracker=lines")],
)
def test_help_and_choices(monkeypatch, capsys, argument, word):
    monkeypatch.setattr(sys, "argv", ["psrun", argument])
    assert command_line.run_experiment(0.0) == ExitCode.DONE
    assert word in capsys.readouterr().out.split()


def test_the_reference():
    pages = of_docs("pages").pages()
    assert "## psrun greet" in pages["reference/commands.md"]
    assert "## recipe" in pages["reference/groups/model.md"]
    assert "### model.width" in pages["reference/keys.md"]
    assert "### cluster.mark" in pages["reference/keys.md"]
    assert "`ndcg@K`" in pages["reference/keys.md"]
    assert "`median_error`" in pages["reference/keys.md"]
