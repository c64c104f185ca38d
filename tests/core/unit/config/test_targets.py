"""Callables by name: checked from their source, called with options."""

from __future__ import annotations

import ast
import sys
import textwrap

import pytest

from psrun.config import targets
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


def problems_in(node) -> list[str]:
    problems: list = []
    targets.read(node, key="model", problems=problems)
    return [str(problem) for problem in problems]


def test_good_options_pass_without_an_import(module):
    assert problems_in({"_target_": "mine.model", "width": 3, "names": ["a"], "rate": None, "free": "anything"}) == []
    assert "mine" not in sys.modules


def test_what_cannot_be_known_is_left_to_the_call(module):
    assert problems_in({"_target_": "mine.open_ended", "anything": 1}) == []
    assert problems_in({"_target_": "mine.alias", "widht": 1}) == []
    with pytest.raises(ConfigError, match="widht"):
        targets.call(targets.Target("mine.alias", {"width": 1, "widht": 1}, "model"), source=None)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("yaml.model", "yaml.py"),  # of a dependency that is imported
        ("random.model", "random.py"),
        ("random.shuffle", "random.py"),  # both have one
        ("sys.model", "sys.py"),
        ("json.own.model", "json/own.py"),
        ("tf_keras.model", "tf_keras/__init__.py"),
        ("psrun.own.model", "psrun/own.py"),
        ("yaml.Thing.model", "yaml.py"),
    ],
)
def test_a_module_that_an_installed_one_hides_is_named(tmp_path, monkeypatch, name, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("def model(source): ...\nclass Thing:\n    model = None\ndef shuffle(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # as the command does
    (problem,) = problems_in({"_target_": name})
    assert problem.startswith(f"model._target_: is {name}, which Python does not take from your file {path}: it finds ")
    assert problem.endswith(" first; give your module another name")
    with pytest.raises(ConfigError, match="first; give your module another name"):
        targets.find(targets.Target(name, {}, "model"))


def test_a_module_that_hides_nothing_of_the_name_is_not_in_the_way(tmp_path, monkeypatch):
    """Such as a folder psrun beside a clone, and a file that does not have what is named."""
    (tmp_path / "psrun" / "psrun").mkdir(parents=True)
    (tmp_path / "tf_keras.py").write_text("def model(source): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert problems_in({"_target_": "psrun.models.model.dense", "hidden_units": [1]}) == []
    assert problems_in({"_target_": "tf_keras.optimizers.SGD"}) == []


def test_nested_targets_are_made_first(module):
    target = targets.Target("mine.open_ended", {"inner": {"_target_": "mine.Thing", "size": 5}, "n": [1]}, "model")
    result = targets.call(target)
    assert result["inner"].size == 5
    assert result["n"] == [1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"def model(source):\n    return (\n", "theirs.py, line 2: SyntaxError: "),
        (b"def model(source):\n\tx = 1\n        y = 2\n", "theirs.py, line 3: TabError: "),
        (b"x = 1\nword = 'caf\xe9'\n", "theirs.py, line 2: SyntaxError: "),
        (b"# -*- coding: nope -*-\n", "nope"),
        (b"x = '\0'\n", "theirs.py"),
    ],
)
def test_a_module_that_python_cannot_read_is_named_with_the_line(tmp_path, monkeypatch, source, message):
    (tmp_path / "theirs.py").write_bytes(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    (problem,) = problems_in({"_target_": "theirs.model"})
    assert problem.startswith("model._target_: theirs.model cannot be imported: ")
    assert message in problem
    assert len(problem.splitlines()) == 1


def test_what_a_module_may_have_is_not_denied(tmp_path, monkeypatch):
    (tmp_path / "starred.py").write_text("from os.path import *\n")
    (tmp_path / "on_demand.py").write_text("def __getattr__(name): return print\n")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\ndef model(word: str = 'caf\xe9'): return word\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("starred.join", "on_demand.model", "latin.model"):
        assert problems_in({"_target_": name}) == []


def test_an_error_in_a_persons_own_code_is_reported_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "fails.py").write_text("def model():\n    return inner()\n\ndef inner():\n    return 1 / 0\n")
    (tmp_path / "fails_at_once.py").write_text("import math\nmath.sqrt(-1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"fails\.py, line 5: ZeroDivisionError: division by zero"):
        targets.called(targets.Target("fails.model", {}, "model"))
    with pytest.raises(ConfigError, match=r"fails_at_once\.py, line 2: ValueError: "):
        targets.call(targets.Target("fails_at_once.model", {}, "model"))


def test_a_source_that_python_fails_to_read_once_is_read_again(module, monkeypatch):
    """Python 3.11 does where the finalizer of some object runs meanwhile."""
    parse, failures = ast.parse, [SystemError("AST constructor recursion depth mismatch (before=153, after=171)")]

    def parsed(source: bytes, *others: str, **options: str) -> ast.Module:
        if failures:
            raise failures.pop()
        return parse(source, *others, **options)

    monkeypatch.setattr(ast, "parse", parsed)
    assert problems_in({"_target_": "mine.model", "width": 3}) == []
    assert not failures


def test_a_name_that_cannot_be_called_is_refused(module):
    target = targets.Target("mine.raise_on_import", {}, "partitioner")
    for use in (targets.call, lambda each: targets.bound(each, ("shape", "dtype"))):
        with pytest.raises(ConfigError, match=r"partitioner\._target_: cannot call 'mine\.raise_on_import'"):
            use(target)


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"history": "films"}, {"films": "last"}),
        ({"history": "films", "newest": "first"}, {"films": "first"}),
        ({}, {}),
    ],
)
def test_the_end_of_a_list_that_a_model_reads_is_known_without_an_import(tmp_path, monkeypatch, options, ends):
    source = 'LIST_ENDS = {"history": "newest"}\ndef model(source, *, history, newest="last"): pass\nraise OSError\n'
    (tmp_path / "reads_ends.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert targets.list_ends(targets.Target("reads_ends.model", options, "model")) == ends


def test_an_end_of_a_list_that_is_no_literal_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "computes_ends.py").write_text("LIST_ENDS = dict(history='newest')\ndef model(source): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="must be a literal"):
        targets.list_ends(targets.Target("computes_ends.model", {}, "model"))


@pytest.mark.parametrize(
    ("name", "expected"), [("Source", "mine.of_class"), ("source", "mine.of_function"), ("Unchecked", None)]
)
def test_the_function_that_checks_options_is_known_without_an_import(tmp_path, monkeypatch, name, expected):
    (tmp_path / "checked.py").write_text(
        'CHECKED_BY = "mine.of_function"\ndef source(): pass\n'
        'class Source:\n    checked_by = "mine.of_class"\nclass Unchecked: pass\nraise OSError\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert targets.checked_by(targets.Target(f"checked.{name}", {}, "data")) == expected
