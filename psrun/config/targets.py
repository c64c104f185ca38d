"""Callables named by `_target_` in the configuration: checked without importing them, then called.

Importing a model's module imports TensorFlow, which takes seconds; a mistyped option should be reported at once.
Therefore the parameters of a target are read from its source with `ast`. Where that is impossible (a compiled or
re-exported callable), only `call` checks them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Optional

from psrun import parts
from psrun.config import groups, schema
from psrun.errors import ConfigError, Problem, PsrunError

# Parameters that psrun provides; the configuration does not set them.
PROVIDED = frozenset(
    {"self", "source", "seed", "tell", "recorded", "label_vocabulary", "predicting", "run_folder", "list_ends"}
)

_ANNOTATIONS = {"int": int, "float": float, "str": str, "bool": bool}

RECORDED = Path("code", "recorded")  # below a run folder: used instead of modules of the current folder

# Beside a _target_, keys that hydra.utils.instantiate reads and psrun does not.
_OF_HYDRA = frozenset({"_args_", "_convert_", "_partial_", "_recursive_"})


@dataclasses.dataclass(frozen=True)
class Target:
    """A callable by name, and its options; `key` is its key in the configuration."""

    name: str
    options: Mapping[str, Any]
    key: str


def read(
    node: Any, *, key: str, problems: list[Problem], others: Iterable[str] = (), called_with: Collection[str] = ()
) -> Target | None:
    """`node` as a Target, after checking its name and options as far as possible without importing it.

    Args:
      others: further valid keys beside the options, for suggestions.
      called_with: parameters that the configuration does not set, in addition to `PROVIDED`.
    """
    if isinstance(node, str) and key in groups.ONE_CHOICE:
        problems.append(groups.problem_of_word(key, node))
        return None
    if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
        problems.append(
            Problem(key, f"is {node!r}, must have a _target_ (the dotted name of a callable) and its options")
        )
        return None
    if node["_target_"] == schema.MISSING:
        problems.append(Problem(f"{key}._target_", f"is required; set {key}._target_=..."))
        return None
    for name in _OF_HYDRA.intersection(node):
        problems.append(Problem(f"{key}.{name}", "has no meaning in psrun, which calls _target_ itself; remove it"))
    options = {name: value for name, value in node.items() if name not in ("_target_", *_OF_HYDRA)}
    target = Target(node["_target_"], options, key)
    definition = _definition(target, problems)
    parameters = None if definition is None else _options_class(definition, PROVIDED.union(called_with))
    if parameters is not None:
        schema.read(parameters, options, key=key, problems=problems, others=others)
    for name, value in options.items():
        if isinstance(value, Mapping) and "_target_" in value:
            read(value, key=f"{key}.{name}", problems=problems)
    return target


def search_modules(folder: Path | None = None) -> None:
    """Lets Python find the user's modules: in the current folder, and before that in `RECORDED` of a run folder."""
    if folder is not None and os.path.isdir(folder / RECORDED):
        sys.path.insert(0, str((folder / RECORDED).absolute()))
    sys.path.append(os.getcwd())


def find(target: Target) -> Callable[..., Any]:
    """Imports and returns the callable.

    Raises:
      ConfigError: the module or the name does not exist, cannot be imported, or is not callable.
    """
    value = _named(target)
    if not callable(value):
        raise ConfigError([Problem(f"{target.key}._target_", f"cannot call '{target.name}': it is {value!r}")])
    return value


def _named(target: Target) -> Any:
    """The object with the name of the target; raises ConfigError as `find` does."""
    module_name, _, attribute = target.name.rpartition(".")
    if problem := _hidden(target):
        raise ConfigError([problem])
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        with contextlib.suppress(ImportError, AttributeError):
            return _attribute(target.name)
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                [Problem(f"{target.key}._target_", f"{target.name} requires {error.name}: {error}")]
            ) from error
        raise ConfigError([_no_such(target, f"no module named '{error.name}'")]) from error
    except (PsrunError, MemoryError):
        raise
    except Exception as error:
        message = f"{target.name} cannot be imported: {described(error)}"
        raise ConfigError([Problem(f"{target.key}._target_", message)]) from error


def _attribute(name: str) -> Any:
    """The object of a dotted name whose parent is not a module: `tensorflow.distribute.experimental` is an attribute
    of the package, and a method is an attribute of its class.

    Raises:
      ImportError, AttributeError: the name does not exist.
    """
    top, *attributes = name.split(".")
    return functools.reduce(getattr, attributes, importlib.import_module(top))


def call(target: Target, **provided: Any) -> Any:
    """Calls the target with its options (nested targets first) and with the arguments of `provided` that it accepts.

    Raises:
      ConfigError: the target does not accept its options.
    """
    function = find(target)
    options = {name: _build(value, f"{target.key}.{name}") for name, value in target.options.items()}
    parameters = inspect.signature(function).parameters
    if passed := [name for name in options if name in provided and name in parameters]:
        raise ConfigError([Problem(f"{target.key}.{name}", "is passed by psrun; remove it") for name in passed])
    options |= {name: value for name, value in provided.items() if name in parameters}
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError([Problem(target.key, f"{target.name}: {error}")]) from error
    return function(**options)


def bound(target: Target, parameters: Collection[str], others: tuple[type, ...] = ()) -> Any:
    """A callable that takes `parameters`: the target with its options bound if it takes them, else its return value.

    Args:
      others: types of which a return value need not be callable.

    Raises:
      ConfigError: the target does not accept its options, or its return value is not callable.
    """
    function = find(target)
    if not inspect.isclass(function) and set(parameters) <= set(inspect.signature(function).parameters):
        options = {name: _build(value, f"{target.key}.{name}") for name, value in target.options.items()}
        try:
            inspect.signature(function).bind_partial(**options)
        except TypeError as error:
            raise ConfigError([Problem(target.key, f"{target.name}: {error}")]) from error
        partial = functools.partial(function, **options)
        partial.__name__ = target.name.rpartition(".")[2]  # type: ignore[attr-defined]  # Keras reports this name
        return partial
    value = called(target)
    if not callable(value) and not isinstance(value, others):
        problem = f"cannot be called with {', '.join(parameters)}"
        raise ConfigError([Problem(target.key, f"{target.name} returned {value!r}, which {problem}")])
    return value


def bound_within(node: Any, key: str, parameters: Collection[str], others: tuple[type, ...] = ()) -> Any:
    """`node`, in which each mapping with a `_target_` is replaced by its `bound`.

    Args:
      key: of the node in the configuration.
      others: as for `bound`.

    Raises:
      ConfigError: as `bound`.
    """
    if isinstance(node, list):
        return [bound_within(item, f"{key}[{index}]", parameters, others) for index, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    if "_target_" not in node:
        return {name: bound_within(item, f"{key}.{name}", parameters, others) for name, item in node.items()}
    return bound(_target_of(node, key), parameters, others)


def called(target: Target, **provided: Any) -> Any:
    """Calls a target; converts its exception to a ConfigError with its key."""
    try:
        return call(target, **provided)
    except (PsrunError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ConfigError([Problem(target.key, f"{target.name} failed: {described(error)}")]) from error


def with_called(target: Target, option: str) -> Target:
    """The target with an option that is itself a target called already; raises ConfigError as `called`."""
    node = target.options.get(option)
    if not isinstance(node, Mapping) or "_target_" not in node:
        return target
    value = called(_target_of(node, f"{target.key}.{option}"))
    return dataclasses.replace(target, options={**target.options, option: value})


def described(error: BaseException) -> str:
    """An error in one line, with the file and the line in the user's code that raised it, if any."""
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        text = f": {line}" if line and line.isprintable() else ""
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}{text}"
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    return placed(f"{type(error).__name__}: {error}", frames)


def placed(error: str, frames: Sequence[tuple[str, int | None]]) -> str:
    """An error after the file and the line in the user's code that raised it, if any.

    Args:
      frames: file and line of each, the innermost one last.
    """
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    not_theirs = (str(Path(__file__).parents[1]), *installed)
    for file, line in reversed(frames):
        if not file.startswith(not_theirs):
            return f"{file}, line {line}: {error}"
    return error


def _build(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return call(_target_of(value, key))
        return {name: _build(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_build(item, f"{key}[{index}]") for index, item in enumerate(value)]
    return value


def _target_of(node: Mapping[str, Any], key: str) -> Target:
    """The target of a node with a `_target_`, unchecked."""
    options = {name: value for name, value in node.items() if name != "_target_"}
    return Target(node["_target_"], options, key)


def _hidden(target: Target) -> Problem | None:
    """The problem of a callable in a file of the current folder, if Python finds another module of the name."""
    parts = target.name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:size])
        file = _here(module_name)
        if file is None:
            continue
        found = _spec(module_name)
        if found is not None and parts[0] == "psrun":  # the file is of a clone that is not the installed one
            return None
        origin = (found and found.origin) or ""
        is_found = Path(origin).is_file() and file.samefile(origin)
        if is_found or f"/{RECORDED}/" in origin or not _may_have(file, parts[size]):
            return None
        top = _spec(parts[0])
        place = origin or (top and top.origin) or parts[0]
        message = f"is {target.name}, which Python does not take from your file {file}: it finds {place} first"
        return Problem(f"{target.key}._target_", f"{message}; give your module another name")
    return None


def _here(module_name: str) -> Path | None:
    """The file of the current folder that a module of this name would be read from."""
    path = Path.cwd().joinpath(*module_name.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _may_have(file: Path, name: str) -> bool:
    """Whether a module may define a name."""
    try:
        module = _parsed(file)
    except (OSError, SyntaxError, ValueError):
        return True
    return not {name, "*"}.isdisjoint(_definitions(module).keys() | _names(module))


def _no_such(target: Target, reason: str) -> Problem:
    if target.name.isidentifier() and _spec(target.name) is not None:
        reason = f"it is a module; name a callable in it, such as {target.name}.NAME"
        return Problem(f"{target.key}._target_", f"cannot call '{target.name}': {reason}")
    if parts.is_missing(target.name):
        return Problem(target.key, parts.with_missing(f"needs {target.name}"))
    return Problem(
        f"{target.key}._target_",
        f"cannot find '{target.name}': {reason} (psrun searches the current folder and PYTHONPATH)",
    )


def parameters_of(name: str) -> dict[str, bool]:
    """The parameters of a callable: name to whether it is required; empty if its source is not available."""
    definition = _definition(Target(name, {}, ""), [])
    function = None if definition is None else _function_of(definition)
    if function is None:
        return {}
    return {argument.arg: default is None for argument, default in _arguments(function)}


def may_take_more(name: str) -> bool:
    """Whether a callable may take arguments beside `parameters_of`: its source is not available, or says so."""
    definition = _definition(Target(name, {}, ""), [])
    function = None if definition is None else _function_of(definition)
    return function is None or function.args.kwarg is not None


def checked_by(target: Target) -> str | None:
    """The dotted name in `checked_by` of a class, or in `CHECKED_BY` beside a function; None without one.

    It is read from the source: nothing is imported.
    """
    definition = _definition(target, [])
    if isinstance(definition, ast.FunctionDef):
        return _literal(target, "CHECKED_BY", None)
    if not isinstance(definition, ast.ClassDef):
        return None
    value = _assigned(definition.body, "checked_by")
    return str(value.value) if isinstance(value, ast.Constant) else None


def list_ends(target: Target) -> dict[str, Any]:
    """The end, first or last, that a model function reads of each list feature whose longer lists are truncated.

    The module of the function says it, as in `LIST_ENDS = {"history": "newest"}`: the argument that names the feature,
    and the argument that is the end. It is read from the source: the data is loaded before the model is imported.
    """
    definition = _definition(target, [])
    if not isinstance(definition, ast.FunctionDef):
        return {}
    options: dict[str, Any] = {}
    for argument, default in _arguments(definition):
        if isinstance(default, ast.Constant):
            options[argument.arg] = default.value
    options |= target.options
    ends = {}
    for list_argument, end_argument in _literal(target, "LIST_ENDS", {}).items():
        if list_argument in options:
            ends[options[list_argument]] = options.get(end_argument)
    return ends


def _literal(target: Target, name: str, default: Any) -> Any:
    """The literal that the module of the target assigns to a name; `default` if it assigns none.

    Raises:
      ConfigError: it is no literal.
    """
    spec = _spec(target.name.rpartition(".")[0])
    if spec is None or spec.origin is None:
        return default
    value = _assigned(_parsed(Path(spec.origin)).body, name)
    if value is None:
        return default
    try:
        return ast.literal_eval(value)
    except ValueError as error:
        message = f"{target.name}: {name} of its module must be a literal, which psrun reads without an import"
        raise ConfigError([Problem(f"{target.key}._target_", message)]) from error


def _assigned(statements: list[ast.stmt], name: str) -> ast.expr | None:
    """The expression that the first assignment among statements gives a name; None without one."""
    for statement in statements:
        if not isinstance(statement, ast.Assign):
            continue
        names = [each.id for each in statement.targets if isinstance(each, ast.Name)]
        if name in names:
            return statement.value
    return None


def names_in(module_name: str) -> frozenset[str]:
    """The names that a module imports or assigns; does not import the module."""
    spec = _spec(module_name)
    if spec is None or not spec.origin:
        return frozenset()
    return frozenset(_names(_parsed(Path(spec.origin))))


def _definition(target: Target, problems: list[Problem]) -> ast.FunctionDef | ast.ClassDef | None:
    """The definition of the target in its source; None if there is none; adds a problem if the name cannot exist."""
    module_name, _, attribute = target.name.rpartition(".")
    key = f"{target.key}._target_"
    if not all(part.isidentifier() for part in target.name.split(".")):
        problems.append(Problem(key, f"is '{target.name}', must be the dotted name of a callable, such as mine.model"))
        return None
    if problem := _hidden(target):
        problems.append(problem)
        return None
    spec = _spec(module_name) if module_name else None
    if spec is None:
        # The parent may be a class (a.b.Class.method), or the name may be created at run time.
        is_unknown = not module_name or _spec(module_name.partition(".")[0]) is None
        if is_unknown or parts.is_missing(module_name):
            problems.append(_no_such(target, f"no module named '{module_name or target.name}'"))
        return None
    if not spec.origin or not spec.origin.endswith(".py") or spec.origin.endswith("__init__.py"):
        return None
    try:
        module = _parsed(Path(spec.origin))
    except (OSError, SyntaxError, ValueError) as error:
        where = "" if getattr(error, "filename", None) else f"{spec.origin}: "
        problems.append(Problem(key, f"{target.name} cannot be imported: {where}{described(error)}"))
        return None
    definitions = _definitions(module)
    if attribute not in definitions and {attribute, "*"}.isdisjoint(_names(module)):
        guess = schema.did_you_mean(attribute, definitions)
        problems.append(Problem(key, f"there is no '{attribute}' in {spec.origin}.{guess}"))
    return definitions.get(attribute)


def _spec(module_name: str) -> ModuleSpec | None:
    """The spec of a module, without importing its parent packages as `importlib.util.find_spec` does."""
    top, *rest = module_name.split(".")
    found = importlib.util.find_spec(top)
    for name in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        found = PathFinder.find_spec(f"{found.name}.{name}", list(found.submodule_search_locations))
    return found


def _parsed(path: Path) -> ast.Module:
    """The module in a file, in its declared encoding. Raises OSError, SyntaxError or ValueError."""
    return _parsed_source(path.read_bytes(), str(path))


@functools.lru_cache(maxsize=64)
def _parsed_source(source: bytes, filename: str) -> ast.Module:
    try:
        return ast.parse(source, filename=filename)
    except SystemError:  # Python 3.11, if a finalizer runs during the parse (gh-106905)
        return ast.parse(source, filename=filename)


def _definitions(module: ast.Module) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _names(module: ast.Module) -> set[str]:
    """Names that a module imports or assigns, at any depth; '*' if some names are unknown."""
    nodes = [node for statement in module.body for node in ast.walk(statement)]
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    if any(getattr(statement, "name", "") == "__getattr__" for statement in module.body):
        names.add("*")  # made on demand
    return names


def _function_of(definition: ast.FunctionDef | ast.ClassDef) -> ast.FunctionDef | None:
    """The function that is called: the function itself, or __init__ of a class; None if the class inherits it."""
    if isinstance(definition, ast.FunctionDef):
        return definition
    inits = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return inits[0] if inits else None


def _arguments(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters with their defaults; None without a default."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    arguments = [*positional, *given.kwonlyargs]
    return [*zip(arguments, [*defaults, *given.defaults, *given.kw_defaults])]


def _options_class(definition: ast.FunctionDef | ast.ClassDef, provided: Collection[str]) -> type | None:
    """The parameters of a definition but the `provided` ones, as fields of a dataclass; None if they are unknown."""
    function = None if definition.decorator_list else _function_of(definition)
    if function is None or function.args.kwarg or function.args.vararg:
        return None
    fields: list[tuple[str, Any, Any]] = []
    for argument, default in _arguments(function):
        if argument.arg in provided:
            continue
        field = dataclasses.field()
        if default is not None:
            field = dataclasses.field(default=schema.MISSING)
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
