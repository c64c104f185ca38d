"""docs/explanation/design.md says in which function each thing happens: these functions exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/explanation/design.md").read_text(encoding="utf-8")
SECTIONS = ("Within a step", "After an epoch")
NAME = re.compile(r"`(psrun(?:\.\w+)+)`")


def items(section: str) -> list[str]:
    """The items of the lists of a section, each on one line."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [" ".join(each.split()) for each in re.findall(r"^- (.*(?:\n  .*)*)", text, flags=re.MULTILINE)]


def exists(name: str) -> bool:
    """Whether a module of the package defines a function, a class, a method or a variable of this name."""
    *parts, last = name.split(".")
    names = [last]
    while not (path := REPOSITORY.joinpath(*parts).with_suffix(".py")).is_file():
        names.insert(0, parts.pop())
        if not parts:
            return False
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for each in names:
        found = [node for node in body if each in defined(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_sentence_names_a_function_that_exists(section):
    sentences = [sentence for item in items(section) for sentence in re.split(r"(?<=\.) (?=[A-Z`])", item)]
    assert len(sentences) > 5
    assert [each for each in sentences if not NAME.search(each)] == []
    assert [name for name in NAME.findall(" ".join(sentences)) if not exists(name)] == []


def test_a_name_that_is_gone_is_found():
    assert exists("psrun.closures.stages.ORDER")
    assert not exists("psrun.closures.stages.Stages.no_such")
    assert not exists("psrun.no_such.module")
