"""Callables by name: checked from their source, called with options."""

from __future__ import annotations

import ast
import sys
import textwrap

import pytest

from psrun import targets
from psrun.errors import ConfigError


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        raise_on_import = None
        def model(source, *, width: int, names: list[str] = (), rate: float | None = None, free=1): return width, rate
        def open_ended(**options): return options
        class Thing:
            def __init__(self, size: int = 3): self.size = size
        alias = model
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mine"
    sys.modules.pop("mine", None)


def found(node) -> list[str]:
    problems: list = []
    targets.read(node, key="model", problems=problems)
    return [str(problem) for problem in problems]


def test_good_options_pass_without_an_import(module):
    assert found({"_target_": "mine.model", "width": 3, "names": ["a"], "rate": None, "free": "anything"}) == []
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "model.width: is missing"),
        ({"width": "x"}, "model.width: 'x' is not of type int"),
        ({"width": 1, "widht": 2}, "model.widht: no such key (value 2). Did you mean 'width'?"),
        ({"width": 1, "names": 3}, "model.names: 3 is not of type"),
        ({"width": 1, "rate": "fast"}, "model.rate: 'fast' is not of type"),
    ],
)
def test_wrong_options_are_told(module, options, said):
    assert any(said in problem for problem in found({"_target_": "mine.model", **options}))


def test_what_cannot_be_known_is_left_to_the_call(module):
    assert found({"_target_": "mine.open_ended", "anything": 1}) == []
    assert found({"_target_": "mine.alias", "widht": 1}) == []
    with pytest.raises(ConfigError, match="widht"):
        targets.call(targets.Target("mine.alias", {"width": 1, "widht": 1}, "model"), source=None)


def test_nested_targets_are_made_first(module):
    target = targets.Target("mine.open_ended", {"inner": {"_target_": "mine.Thing", "size": 5}, "n": [1]}, "model")
    made = targets.call(target)
    assert made["inner"].size == 5
    assert made["n"] == [1]


def test_names_that_are_not_there(module):
    assert "Did you mean 'model'?" in found({"_target_": "mine.modell"})[0]
    with pytest.raises(ConfigError, match="PYTHONPATH"):
        targets.find(targets.Target("nowhere.model", {}, "model"))
    with pytest.raises(ConfigError, match="has no attribute"):
        targets.find(targets.Target("mine.nothing", {}, "model"))


def test_a_source_that_python_fails_to_read_once_is_read_again(module, monkeypatch):
    """Python 3.11 does where the finalizer of some object runs meanwhile."""
    parse, failures = ast.parse, [SystemError("AST constructor recursion depth mismatch (before=153, after=171)")]

    def parsed(source: str) -> ast.Module:
        if failures:
            raise failures.pop()
        return parse(source)

    monkeypatch.setattr(ast, "parse", parsed)
    assert found({"_target_": "mine.model", "width": 3}) == []
    assert not failures
