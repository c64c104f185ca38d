"""Callables named in the configuration by `_target_`: checked without importing them, then called.

Importing a model's module imports TensorFlow, which takes seconds; a mistyped option should be told in a fraction of
one. So the parameters of a target are read from its source with `ast`. Where that is not possible (a compiled
callable, or one that another module re-exports) nothing is known before the import, and `call` checks again.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Optional

from psrun import schema
from psrun.errors import ConfigError, Problem, PsrunError

# Parameters that psrun fills in itself; the configuration does not name them.
PROVIDED = frozenset({"self", "source", "seed", "tell"})
_ANNOTATIONS = {"int": int, "float": float, "str": str, "bool": bool}


@dataclasses.dataclass(frozen=True)
class Target:
    """A callable by name and the options it is called with; `key` is where it stands in the configuration."""

    name: str
    options: Mapping[str, Any]
    key: str


def read(node: Any, *, key: str, problems: list[Problem]) -> Target | None:
    """`node` as a Target whose name exists and takes its options, as far as can be told without importing it."""
    if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
        problems.append(Problem(key, f"needs a _target_, the dotted name of a callable, and its options; is {node!r}"))
        return None
    options = {name: value for name, value in node.items() if name != "_target_"}
    target = Target(node["_target_"], options, key)
    parameters = _static_parameters(target, problems)
    if parameters is not None:
        schema.read(parameters, options, key=key, problems=problems)
    for name, value in options.items():
        if isinstance(value, Mapping) and "_target_" in value:
            read(value, key=f"{key}.{name}", problems=problems)
    return target


def find(target: Target) -> Callable[..., Any]:
    """The callable itself. Imports its module.

    Raises:
      ConfigError: there is no such module or no such name in it.
    """
    module_name, _, attribute = target.name.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                [Problem(f"{target.key}._target_", f"{target.name} needs {error.name}: {error}")]
            ) from error
        raise ConfigError([_no_such(target, f"no module named '{error.name}'")]) from error
    except AttributeError as error:
        raise ConfigError([_no_such(target, str(error))]) from error


def call(target: Target, **provided: Any) -> Any:
    """Calls the target with its options (nested targets are called first) and those of `provided` that it takes.

    Raises:
      ConfigError: the target does not take its options.
    """
    function = find(target)
    options = {name: _build(value, f"{target.key}.{name}") for name, value in target.options.items()}
    parameters = inspect.signature(function).parameters
    options |= {name: value for name, value in provided.items() if name in parameters}
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError([Problem(target.key, f"{target.name}: {error}")]) from error
    return function(**options)


def called(target: Target, **provided: Any) -> Any:
    """Calls a target; what it raises becomes a message that names the key it stands under."""
    try:
        return call(target, **provided)
    except (PsrunError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ConfigError([Problem(target.key, f"{target.name} failed: {type(error).__name__}: {error}")]) from error


def _build(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            options = {name: item for name, item in value.items() if name != "_target_"}
            return call(Target(value["_target_"], options, key))
        return {name: _build(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_build(item, f"{key}[{index}]") for index, item in enumerate(value)]
    return value


def _no_such(target: Target, reason: str) -> Problem:
    return Problem(
        f"{target.key}._target_",
        f"cannot find '{target.name}': {reason} (own modules are looked for here and on PYTHONPATH)",
    )


def _static_parameters(target: Target, problems: list[Problem]) -> type | None:
    """The options that a target takes, as a dataclass made from its source; None where they cannot be known."""
    module_name, _, attribute = target.name.rpartition(".")
    spec = _spec(module_name) if module_name else None
    if spec is None:
        # A class may stand where a module was looked for (a.b.Class.method), or names are made at run time.
        if not module_name or _spec(module_name.partition(".")[0]) is None:
            problems.append(_no_such(target, f"no module named '{module_name or target.name}'"))
        return None
    if not spec.origin or not spec.origin.endswith(".py") or spec.origin.endswith("__init__.py"):
        return None
    body = _parsed(Path(spec.origin).read_text(encoding="utf-8")).body
    definitions = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    definition = definitions.get(attribute)
    if definition is None:
        if attribute not in _other_names(body):
            guess = schema.did_you_mean(attribute, definitions)
            problems.append(_no_such(target, f"{module_name} has no '{attribute}'.{guess}"))
        return None
    return _as_dataclass(definition)


def _parsed(source: str) -> ast.Module:
    """Tried twice: Python 3.11 fails where the finalizer of some object runs meanwhile (gh-106905)."""
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)


def _other_names(body: list[ast.stmt]) -> set[str]:
    """Names that a module gets by import or assignment, at any depth."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return assigned | {alias.asname or alias.name for alias in aliases}


def _spec(module_name: str) -> ModuleSpec | None:
    """Where a module is, found without importing the packages that it is in, as `importlib.util.find_spec` would."""
    top, *rest = module_name.split(".")
    spec = importlib.util.find_spec(top)
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{name}", list(spec.submodule_search_locations))
    return spec


def _as_dataclass(definition: ast.FunctionDef | ast.ClassDef) -> type | None:
    if definition.decorator_list:
        return None
    if isinstance(definition, ast.ClassDef):
        inits = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        if not inits:
            return None
        definition = inits[0]
    arguments = definition.args
    if arguments.kwarg or arguments.vararg:
        return None
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*defaults, *arguments.defaults]), *zip(arguments.kwonlyargs, arguments.kw_defaults)]
    fields: list[tuple[str, Any, Any]] = []
    for argument, default in pairs:
        if argument.arg in PROVIDED:
            continue
        field = dataclasses.field() if default is None else dataclasses.field(default=schema.MISSING)
        fields.append((argument.arg, _annotation(argument.annotation), field))
    return dataclasses.make_dataclass("Options", fields, kw_only=True)


def _annotation(node: ast.expr | None) -> Any:
    """The type to check an option against; Any for what OmegaConf cannot check."""
    if isinstance(node, ast.Name) and node.id in _ANNOTATIONS:
        return _ANNOTATIONS[node.id]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in ("list", "Sequence"):
        inner = _annotation(node.slice)
        return Any if inner is Any else list[inner]  # type: ignore[valid-type]
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value is None:
        inner = _annotation(node.left)
        return Any if inner is Any else Optional[inner]  # noqa: UP045 - a type made at run time
    return Any
