"""docs/explanation/design.md says in which function each thing happens: these functions exist."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from sources import modules, nodes
from support import REPOSITORY

PAGE = (REPOSITORY / "docs/explanation/design.md").read_text(encoding="utf-8")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAME = re.compile(r"`([\w.]+\.\w+)`")


@functools.cache
def defined() -> set[str]:
    """`module.name` and `Class.method` of everything in psrun, and both with the package before them."""
    names = set()
    for path in modules():
        module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for node in nodes(path)[0].body:
            if isinstance(node, FUNCTIONS):
                names |= {f"{path.stem}.{node.name}", f"{module}.{node.name}"}
            elif isinstance(node, ast.ClassDef):
                methods = {f"{node.name}.{each.name}" for each in node.body if isinstance(each, FUNCTIONS)}
                names |= methods | {f"{module}.{method}" for method in methods}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {f"{module}.{ast.unparse(target)}" for target in targets}
    return names


def sentences(section: str) -> list[str]:
    """The sentences of the lists of a section."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    items = re.findall(r"^(?:-|\d+\.) (.*(?:\n  .*)*)", text, flags=re.MULTILINE)
    return [each for item in items for each in re.split(r"(?<=\.) (?=[A-Z`])", " ".join(item.split()))]


@pytest.mark.parametrize("section", ["Within a step", "After an epoch"])
def test_the_functions_that_the_page_names_exist(section):
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    named = {name for name in NAME.findall(text) if not name.startswith("trainer.")}
    assert len(named) > 15
    assert sorted(named - defined()) == []


@pytest.mark.parametrize("section", ["Within a step", "After an epoch"])
def test_every_sentence_names_its_function(section):
    assert len(sentences(section)) > 20
    assert [each for each in sentences(section) if not NAME.search(each)] == []
