"""The modules of psrun, parsed once for all tests of their texts, and the modules of docs/."""

from __future__ import annotations

import ast
import functools
import importlib.util
import types
from pathlib import Path

from support import REPOSITORY

PSRUN = REPOSITORY / "psrun"


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a module, the module first."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@functools.cache
def modules() -> list[Path]:
    """Without those of another project, which `psrun init` writes."""
    return [path for path in sorted(PSRUN.rglob("*.py")) if "project_template" not in path.parts]


def of_docs(name: str) -> types.ModuleType:
    """A module of docs/, which is not on Python's path."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
