"""Each sentence of the design page about the order of things names the function it is in."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = [
    title
    for title in ("Within a step", "After an epoch")
    if f"## {title}\n" in (ROOT / "docs/explanation/design.md").read_text(encoding="utf-8")
]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def defined() -> set[str]:
    """`module.function` and `Class.method` of everything in psrun."""
    names = set()
    for path in (ROOT / "psrun").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, FUNCTIONS):
                names.add(f"{path.stem}.{node.name}")
            elif isinstance(node, ast.ClassDef):
                names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, FUNCTIONS)}
    return names


@pytest.mark.parametrize("title", SECTIONS)
def test_the_functions_that_the_design_page_names_exist(title):
    page = (ROOT / "docs/explanation/design.md").read_text(encoding="utf-8")
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+\.\w+)`", section))
    assert len(named) > 5
    assert named <= defined()
