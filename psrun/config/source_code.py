"""A person's own Python modules, read without importing them, and where in them an error is."""

from __future__ import annotations

import ast
import sysconfig
import traceback
from pathlib import Path

_NOT_THEIRS = (str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def parse(path: Path) -> ast.Module:
    """The module in a file, in the encoding that it declares.

    Raises:
      OSError, SyntaxError, ValueError: it cannot be read.
    """
    source = path.read_bytes()
    try:
        return ast.parse(source, filename=str(path))
    except SystemError:  # Python 3.11, where the finalizer of some object runs meanwhile (gh-106905)
        return ast.parse(source, filename=str(path))


def names(module: ast.Module) -> set[str]:
    """Names that a module gets by import or assignment, at any depth; '*' for those that cannot be known."""
    nodes = [node for statement in module.body for node in ast.walk(statement)]
    aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made_on_demand = any(getattr(statement, "name", "") == "__getattr__" for statement in module.body)
    return assigned | {alias.asname or alias.name for alias in aliases} | ({"*"} if made_on_demand else set())


def described(error: BaseException) -> str:
    """An error in one line, with the file and the line of a person's own code that it comes from, if any."""
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        text = f": {line}" if line and line.isprintable() else ""
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}{text}"
    theirs = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)
    ]
    where = f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""
    return f"{where}{type(error).__name__}: {error}"
