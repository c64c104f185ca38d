"""Reads the user's Python modules without importing them, and locates errors in them."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import sysconfig
import traceback
from collections.abc import Collection
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Optional

from psrun.config import schema

_ANNOTATIONS = {"int": int, "float": float, "str": str, "bool": bool}


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
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    not_theirs = (str(Path(__file__).parents[1]), *installed)
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(not_theirs)]
    where = f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""
    return f"{where}{type(error).__name__}: {error}"


def spec(module_name: str) -> ModuleSpec | None:
    """The spec of a module, without importing its parent packages as `importlib.util.find_spec` does."""
    top, *rest = module_name.split(".")
    found = importlib.util.find_spec(top)
    for name in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        found = PathFinder.find_spec(f"{found.name}.{name}", list(found.submodule_search_locations))
    return found


@dataclasses.dataclass(frozen=True)
class Hidden:
    """A file of the current folder that has a name, and the place where Python finds another module of the name."""

    file: Path
    found: str


def hidden(name: str) -> Hidden | None:
    """What is in the current folder under the dotted name of a callable, but is not what Python finds; or None."""
    parts = name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:size])
        file = _here(module_name)
        if file is None:
            continue
        found = spec(module_name)
        origin = (found and found.origin) or ""
        is_psruns = found is not None and parts[0] == "psrun"  # of a clone that is not the installed one
        if is_psruns or (Path(origin).is_file() and file.samefile(origin)) or not _may_have(file, parts[size]):
            return None
        top = spec(parts[0])
        return Hidden(file, origin or (top and top.origin) or parts[0])
    return None


def _here(module_name: str) -> Path | None:
    """The file of the current folder that a module of this name would be read from."""
    path = Path.cwd().joinpath(*module_name.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _may_have(file: Path, name: str) -> bool:
    """Whether a module may define a name."""
    try:
        module = parse(file)
    except (OSError, SyntaxError, ValueError):
        return True
    defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return bool({name, "*"} & (defined | names(module)))


def function_of(definition: ast.FunctionDef | ast.ClassDef) -> ast.FunctionDef | None:
    """The function that is called: the function itself, or __init__ of a class; None if the class inherits it."""
    if isinstance(definition, ast.FunctionDef):
        return definition
    inits = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return inits[0] if inits else None


def arguments(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters with their defaults; None without a default."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    return [*zip(positional, [*defaults, *given.defaults]), *zip(given.kwonlyargs, given.kw_defaults)]


def options_class(definition: ast.FunctionDef | ast.ClassDef, provided: Collection[str]) -> type | None:
    """The parameters of a definition but the `provided` ones, as fields of a dataclass; None if they are unknown."""
    function = None if definition.decorator_list else function_of(definition)
    if function is None or function.args.kwarg or function.args.vararg:
        return None
    fields: list[tuple[str, Any, Any]] = []
    for argument, default in arguments(function):
        if argument.arg in provided:
            continue
        field = dataclasses.field() if default is None else dataclasses.field(default=schema.MISSING)
        fields.append((argument.arg, _annotation(argument.annotation), field))
    return dataclasses.make_dataclass("Options", fields, kw_only=True)


def _annotation(node: ast.expr | None) -> Any:
    """The type to check an option against; Any if OmegaConf cannot check it."""
    if isinstance(node, ast.Name) and node.id in _ANNOTATIONS:
        return _ANNOTATIONS[node.id]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in ("list", "Sequence"):
        inner = _annotation(node.slice)
        return Any if inner is Any else list[inner]  # type: ignore[valid-type]
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value is None:
        inner = _annotation(node.left)
        return Any if inner is Any else Optional[inner]  # noqa: UP045 - a type made at run time
    return Any
