"""Composes a configuration with Hydra, and translates Hydra's errors into problems by key."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun import files
from psrun.config import choices, hydra_internals, parse, resolvers, schema
from psrun.errors import ConfigError, Problem

_NESTED = ("[", "{", "'", '"', "$")  # values with their own grammar, which quoting would turn into plain text
_CONFIG_DIR = ("--config-dir", "-cd")
_MAY_SET_THE_MODE = ("--config", "-c", "hydra=", "hydra.mode", "hydra.searchpath")  # files of a user, or an override
_OWN_CHOICES = {"partitioner": "custom", "trainer": "own_loop"}  # choices that take a _target_
_NOT_OFFERED = {
    ("cluster", "tpu"): "TensorFlow's TPUStrategy is synchronous, without parameter servers and coordinator; psrun "
    "does not support it",
}
resolvers.register()
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def run(work: Any) -> None:
    """Runs Hydra on `sys.argv`: prints help, or calls `work` with the composed configuration.

    Raises:
      ConfigError: a YAML file cannot be read; names the file and the line.
      HYDRA_ERRORS: the arguments cannot be composed.
      KeyboardInterrupt: or another BaseException of a signal handler, even if Hydra hides it: a signal while Hydra
        opens a file makes its `finally: f.close()` fail with another error, which replaces the original.
    """

    def job(composed: DictConfig) -> None:
        work(composed)

    for folder in config_dirs(sys.argv[1:]):
        if not folder.is_dir():
            raise ConfigError([Problem("--config-dir", f"there is no folder {folder}")])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and exiting with 1
    may_set_the_mode = any(each.lstrip("+~").startswith(_MAY_SET_THE_MODE) for each in sys.argv[1:])
    mode = contextlib.nullcontext() if may_set_the_mode else hydra_internals.mode_of_the_option()
    try:
        with mode, hydra_internals.files_written_by(files.write_atomic):
            hydra.main(version_base="1.3", config_path="pkg://psrun.conf", config_name="config")(job)()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([_unreadable_file(error)]) from error
    except Exception as error:
        signalled = hydra_internals.signal_behind(error)
        if signalled is None:
            raise
        raise signalled from None


def _unreadable_file(error: yaml.YAMLError | UnicodeDecodeError) -> Problem:
    """The reason why Hydra cannot read a YAML file of the configuration."""
    if isinstance(error, UnicodeDecodeError):
        return _not_utf8(sys.argv[1:]) or Problem("", f"a configuration file is not UTF-8: {error}")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Problem("", f"a configuration file cannot be read: {_one_line(str(error))}")
    mark, began = error.problem_mark, error.context_mark
    context = f" {error.context} (line {began.line + 1})" if began is not None and error.context else ""
    return Problem("", f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {error.problem}{context}")


def _not_utf8(arguments: list[str]) -> Problem | None:
    """The first line in the user's YAML files that is not UTF-8; UnicodeDecodeError does not name the file."""
    for folder in config_dirs(arguments):
        for path in sorted(folder.rglob("*.yaml")):
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                    return Problem("", f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8")
    return None


def config_dirs(arguments: list[str]) -> list[Path]:
    """The --config-dir folders in `arguments`."""
    folders = [after for option, after in itertools.pairwise(arguments) if option in _CONFIG_DIR]
    folders += [each.partition("=")[2] for each in arguments if each.startswith(f"{_CONFIG_DIR[0]}=")]
    return [Path(each).absolute() for each in folders]


def options_first(arguments: list[str]) -> list[str]:
    """Moves options, such as --config-dir FOLDER, before all KEY=VALUE, as Hydra's parser requires."""
    options: list[str] = []
    others: list[str] = []
    value = False
    for argument in arguments:
        option = argument.startswith("-")
        (options if option or (value and "=" not in argument) else others).append(argument)
        value = option
    return options + others


def plain(composed: DictConfig) -> dict[str, Any]:
    """Plain values with interpolations resolved; missing values are '???'. Raises ConfigError for a bad reference."""
    try:
        values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        if isinstance(own := _cause(error), ConfigError):
            raise own from None
        raise ConfigError([Problem(str(error.full_key or ""), str(error).splitlines()[0])]) from error
    return resolvers.completed(values)


def _cause(error: BaseException) -> BaseException:
    """The ConfigError of a resolver, which OmegaConf wraps, if there is one."""
    while not isinstance(error, ConfigError) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error


def all_problems(first: Exception, arguments: list[str]) -> list[Problem]:
    """All problems of `arguments`. Hydra reports only the first: drop the argument that it names, compose again."""
    arguments, problems, error = [*arguments], [], first
    for _ in range(len(arguments) + 1):
        culprit, problem = blame(error, arguments)
        problems.append(problem)
        if culprit is None:
            return problems
        arguments.remove(culprit)
        composed = compose(arguments)
        if isinstance(composed, dict):
            problems = [_with_guess(problem, composed) for problem in problems]
            with contextlib.suppress(OmegaConfBaseException):
                try:
                    parse.load(composed)
                except ConfigError as more:
                    problems += more.problems
            return problems
        error = composed
    return problems


def compose(arguments: list[str]) -> dict[str, Any] | Exception:
    """The configuration that Hydra composes from `arguments`, or its error."""
    argv, printed = sys.argv, io.StringIO()
    sys.argv = [argv[0], *(a for a in arguments if a not in ("-m", "--multirun")), "--cfg", "job"]
    GlobalHydra.instance().clear()
    try:
        with contextlib.redirect_stdout(printed):
            run(lambda composed: None)
        composed = OmegaConf.create(printed.getvalue())
        try:
            values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
        except OmegaConfBaseException:  # some references are known only to a run
            values = OmegaConf.to_container(composed, throw_on_missing=False)
        return values
    except HYDRA_ERRORS as error:
        return error
    finally:
        sys.argv = argv


def missing_choice(error: Exception) -> tuple[str, str] | None:
    """The group and the choice that Hydra's error reports as missing; None for other errors."""
    return hydra_internals.unknown_choice(str(error))


def blame(error: Exception, arguments: list[str]) -> tuple[str | None, Problem]:
    """The argument that Hydra's error is about (None: unknown) and the problem with it."""
    text = str(error)
    for argument in arguments:
        if hydra_internals.is_about(error, argument):
            return argument, Problem(argument, _unreadable(argument, text))
    choice, misplaced = hydra_internals.unknown_choice(text), hydra_internals.overrides_in_its_own_place(text)
    key = choice[0] if choice else hydra_internals.unknown_key(text) or ""
    culprit = next((a for a in arguments if key and a.partition("=")[0].lstrip("+~").partition("@")[0] == key), None)
    if choice:
        return culprit, Problem(key, _no_such_choice(key, choice[1], text, arguments, given=culprit is not None))
    if misplaced:
        return None, Problem("experiment", f"{misplaced} {parse.NEEDS_GLOBAL_PACKAGE}")
    if culprit is None:
        return None, Problem("", _one_line(text))
    return culprit, Problem(key, f"no such key or group (value '{culprit.partition('=')[2]}').")


def _no_such_choice(group: str, choice: str, text: str, arguments: list[str], *, given: bool) -> str:
    """The message for an unknown choice, `given` on the command line or in a YAML file."""
    options = hydra_internals.choices_offered(text)
    if (group, choice) in _NOT_OFFERED:
        return f"there is no '{choice}': {_NOT_OFFERED[group, choice]}. Choose one of {', '.join(options)}."
    source = "" if given else f", which {hydra_internals.chosen_in(text) or 'a YAML file'} selects"
    message = f"there is no {group} named '{choice}'{source}.{schema.did_you_mean(choice, options)}"
    if config_dirs(arguments) or schema.is_near(choice, options):
        return message
    return f"{message} For your own choices, add --config-dir FOLDER."


def _unreadable(argument: str, text: str) -> str:
    """The message for an argument that Hydra cannot parse: the remedy, or Hydra's own message."""
    key, equals, value = argument.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = f'{key}="{escaped}"'
    if equals and not value.startswith(_NESTED) and "(" not in value:
        with contextlib.suppress(HydraException):
            OverridesParser.create().parse_override(quoted)
            return f"contains characters that Hydra treats specially; quote the value: {shlex.quote(quoted)}"
    return "is not a valid GROUP=NAME or KEY=VALUE for Hydra: " + _one_line(text)


def _with_guess(problem: Problem, composed: dict[str, Any]) -> Problem:
    """The problem with a suggestion for the key."""
    if not problem.message.endswith(")."):
        return problem
    parent, _, name = problem.key.rpartition(".")
    node: Any = composed
    for part in filter(None, parent.split(".")):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    hidden = ("kind", "_target_") if parent in parse.GROUPS else ()  # users select a choice by name, not by these
    keys = [k for k in node if k not in hidden] if isinstance(node, dict) else []
    if name == "_target_" and parent in _OWN_CHOICES:
        return Problem(problem.key, f"{problem.message} To use your own callable, set {parent}={_OWN_CHOICES[parent]}.")
    others = [kind for kind, choice in choices.KINDS.get(parent, {}).items() if name in _keys(choice)]
    if others:
        message = f"{problem.message} It is a key of {', '.join(f'{parent}={kind}' for kind in others)}."
        return Problem(problem.key, message)
    return Problem(problem.key, problem.message + schema.did_you_mean(name, keys))


def _keys(choice: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(choice)]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
