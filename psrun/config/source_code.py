"""Reads the user's Python modules without importing them, and locates errors in them."""

from __future__ import annotations

import ast
import sysconfig
import traceback
from pathlib import Path

_NOT_THEIRS = (str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def parse(path: Path) -> ast.Module:
    """Parses the module in a file, in its declared encoding.

    Raises:
      OSError, SyntaxError, ValueError: the file cannot be read or parsed.
    """
    source = path.read_bytes()
    try:
        return ast.parse(source, filename=str(path))
    except SystemError:  # Python 3.11, if a finalizer runs during the parse (gh-106905)
        return ast.parse(source, filename=str(path))


def names(module: ast.Module) -> set[str]:
    """Names that a module imports or assigns, at any depth; '*' if some names are unknown."""
    nodes = [node for statement in module.body for node in ast.walk(statement)]
    aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made_on_demand = any(getattr(statement, "name", "") == "__getattr__" for statement in module.body)
    return assigned | {alias.asname or alias.name for alias in aliases} | ({"*"} if made_on_demand else set())


def described(error: BaseException) -> str:
    """An error in one line, with the file and the line in the user's code that raised it, if any."""
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        text = f": {line}" if line and line.isprintable() else ""
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}{text}"
    theirs = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)
    ]
    where = f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""
    return f"{where}{type(error).__name__}: {error}"
