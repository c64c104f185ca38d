"""The modules of psrun, parsed once for all tests of their texts."""

from __future__ import annotations

import ast
import functools
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
