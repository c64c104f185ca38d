"""Composes a configuration with Hydra, and translates Hydra's errors into problems by key."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun import files
from psrun.config import advice, groups, hydra_internals, parse, resolvers, schema
from psrun.config import arguments as arguments_of_a_run
from psrun.errors import ConfigError, Problem

_MAY_SET_THE_MODE = ("--config", "-c", "hydra=", "hydra.mode")  # files of a user, or an override
_OWN_CHOICES = {"partitioner": "custom", "trainer": "own_loop"}  # choices that take a _target_
resolvers.register()
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


class _OwnFilesFirst(SearchPathPlugin):
    """Lets the files of --config-dir come before those of psrun: Hydra itself searches them last.

    Hydra itself reads only the last of several --config-dir.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in groups.config_dirs(sys.argv[1:]):
            search_path.prepend("--config-dir", f"file://{folder}")


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

    for folder in groups.config_dirs(sys.argv[1:]):
        if not folder.is_dir():
            raise ConfigError([Problem("--config-dir", f"there is no folder {folder}")])
    groups.require_own_names(sys.argv[1:])
    Plugins.instance().register(_OwnFilesFirst)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and exiting with 1
    may_set_the_mode = any(each.lstrip("+~").startswith(_MAY_SET_THE_MODE) for each in sys.argv[1:])
    mode = contextlib.nullcontext() if may_set_the_mode else hydra_internals.mode_of_the_option()
    try:
        with (
            mode,
            hydra_internals.files_written_by(files.write_atomic),
            hydra_internals.groups_listed_on_demand(),
        ):
            hydra.main(version_base="1.3", config_path="pkg://psrun.conf", config_name="config")(job)()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([_unreadable_file(error)]) from error
    except ValueError as error:
        if not hydra_internals.is_about_a_defaults_list(error):
            raise
        raise ConfigError(groups.mistaken_defaults(sys.argv[1:]) or [Problem("defaults", str(error))]) from error
    except RecursionError as error:
        raise ConfigError([_circle(sys.argv[1:])]) from error
    except Exception as error:
        signalled = hydra_internals.signal_behind(error)
        if signalled is None:
            raise
        raise signalled from None


def _circle(arguments: list[str]) -> Problem:
    """The problem of files that select each other, or themselves."""
    own = ", ".join(map(str, groups.replaced(arguments)))
    why = f"; {own}: a file that is used instead of psrun's cannot select it, as both have one name" if own else ""
    return Problem("defaults", f"the defaults lists of configuration files select each other in a circle{why}")


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
    for folder in groups.config_dirs(arguments):
        for path in sorted(folder.rglob("*.yaml")):
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                    return Problem("", f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8")
    return None


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


def all_problems(arguments: list[str], error: Exception | None = None) -> list[Problem]:
    """All problems of the arguments of one run. Hydra reports only the first: drop what it names, compose again.

    Args:
      error: Hydra's error for these arguments if they have been composed already, which takes a tenth of a second.
    """
    refused = arguments_of_a_run.problems(arguments, sweeps=False)
    problems = [*refused.values()]
    given = arguments
    for refused_argument in refused:
        key = arguments_of_a_run.key_of(refused_argument)
        others = [each for each in arguments if arguments_of_a_run.key_of(each) != key]
        arguments = _without(refused_argument, others if key in groups.ONE_CHOICE else arguments)
    known = error if not refused and isinstance(error, HydraException) else None  # others may come after composing
    for _ in range(len(arguments) + 1):
        composed = known or compose(arguments)
        known = None
        if isinstance(composed, dict):
            problems = [_with_guess(problem, composed, given) for problem in problems]
            with contextlib.suppress(OmegaConfBaseException):
                try:
                    parse.load(composed)
                except ConfigError as more:
                    named = {problem.key for problem in problems}  # without their values they are missing
                    problems += [problem for problem in more.problems if problem.key not in named]
            return problems
        culprit, problem = blame(composed, arguments)
        problems.append(problem)
        if culprit is None:
            return problems
        arguments = _corrected(culprit, arguments, composed)
    return problems


def _corrected(culprit: str, arguments: list[str], error: Exception) -> list[str]:
    """The arguments without a wrong one; a mistyped choice is replaced by the one that was meant."""
    choice = missing_choice(error)
    meant = schema.near(choice[1], hydra_internals.choices_offered(str(error))) if choice else None
    if meant is None:
        return _without(culprit, arguments)
    return [f"{culprit.partition('=')[0]}={meant}" if each == culprit else each for each in arguments]


def _without(culprit: str, arguments: list[str]) -> list[str]:
    """The arguments without one of them and, if it chooses of a group, without the keys of that choice."""
    keys = f"{arguments_of_a_run.key_of(culprit)}."
    return [each for each in arguments if each != culprit and not arguments_of_a_run.key_of(each).startswith(keys)]


def compose(arguments: list[str]) -> dict[str, Any] | Exception:
    """The configuration that Hydra composes from `arguments`, or its error; options such as --help are ignored."""
    argv = sys.argv
    shown: list[DictConfig] = []
    sys.argv = [argv[0], *arguments_of_a_run.of_the_configuration(arguments), "--cfg", "job"]
    GlobalHydra.instance().clear()
    try:
        with hydra_internals.configuration_shown_by(shown.append):
            run(lambda composed: None)
        (composed,) = shown
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
    overrides = arguments_of_a_run.split(arguments)[1]
    for argument in overrides:
        if hydra_internals.is_about(error, argument):
            reason = str(error.__cause__ or error).splitlines()[0]
            return argument, Problem(arguments_of_a_run.key_of(argument), f"cannot be set by {argument}: {reason}")
    choice, misplaced = hydra_internals.unknown_choice(text), hydra_internals.overrides_in_its_own_place(text)
    deleted, added = hydra_internals.cannot_be_deleted(text), hydra_internals.cannot_be_added(text)
    key = choice[0] if choice else hydra_internals.unknown_key(text) or deleted or added or ""
    culprit = next((a for a in overrides if key and arguments_of_a_run.key_of(a) == key), None)
    if choice:
        given = culprit is not None and choice[1] in culprit.partition("=")[2]
        return culprit, Problem(key, _no_such_choice(key, choice[1], text, arguments, given=given))
    if misplaced:
        return None, Problem("experiment", f"{misplaced} {parse.NEEDS_GLOBAL_PACKAGE}")
    if deleted:
        return culprit, Problem(key, "there is no such key to delete (~).")
    if added:
        return culprit, Problem(key, f"exists already; write {culprit and culprit.lstrip('+')} without +")
    if culprit is None:
        return None, _of_a_file(text, key, arguments)
    if key in groups.choices(arguments) and key not in parse.GROUPS:
        return culprit, Problem(key, f"is a group without a choice; write +{culprit}")
    return culprit, Problem(key, f"no such key or group (value '{culprit.partition('=')[2]}').")


def _of_a_file(text: str, key: str, arguments: list[str]) -> Problem:
    """The problem that Hydra's error reports in a YAML file.

    Args:
      key: the group or key that the file overrides, if the error names one.
    """
    file = hydra_internals.chosen_in(text) or "a configuration file"
    if hydra_internals.sets_the_search_path(text):
        return Problem("hydra.searchpath", f"is set in {file}; use --config-dir FOLDER instead")
    if twice := hydra_internals.chosen_twice(text):
        message = f"is chosen in two defaults lists; to replace a choice, write '- override /{twice}: NAME'"
        return Problem(twice, message)
    if refused := hydra_internals.not_merged(text):
        return Problem(refused[1], f"{refused[0]}: {refused[2]}")
    if not key:
        return Problem("", _one_line(text.partition("\nConfig search path")[0]))
    group = key.rpartition("/")[2]
    if group not in parse.GROUPS:
        return Problem(key, f"there is no such group, which {file} overrides.{schema.did_you_mean(key, parse.GROUPS)}")
    place = "" if file.startswith("experiment/") else f"@_global_.{group}"
    return Problem(group, f"is overridden in {file} at another place; write '- override /{group}{place}: NAME'")


def _no_such_choice(group: str, choice: str, text: str, arguments: list[str], *, given: bool) -> str:
    """The message for an unknown choice, `given` on the command line or in a YAML file."""
    options = hydra_internals.choices_offered(text) or [*groups.choices(arguments).get(group, ())]
    source = "" if given else f", which {hydra_internals.chosen_in(text) or 'a YAML file'} selects"
    message = f"there is no {group} named '{choice}'{source}.{schema.did_you_mean(choice, options)}"
    above, _, name = group.rpartition("/")
    if above and name in parse.GROUPS:
        return f"{message} To choose a {name} in a defaults list, write '- override /{name}: {choice}'."
    if elsewhere := groups.misplaced(group, choice, arguments):
        return f"{message} {elsewhere}"
    if groups.config_dirs(arguments) or schema.is_near(choice, options):
        return message
    return f"{message} For your own choices, add --config-dir FOLDER."


def _with_guess(problem: Problem, composed: dict[str, Any], arguments: list[str]) -> Problem:
    """The problem with a suggestion for the key."""
    if not problem.message.endswith(")."):
        return problem
    parent, _, name = problem.key.rpartition(".")
    instead = advice.of_compile(name) if parent == "model" else None
    if instead is not None:
        return Problem(problem.key, instead)
    node: Any = composed
    for part in filter(None, parent.split(".")):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    hidden = ("kind", "_target_") if parent in parse.GROUPS else ()  # users select a choice by name, not by these
    keys = [k for k in node if k not in hidden] if isinstance(node, dict) else []
    if name in keys:  # Hydra does not see keys that are null
        return Problem(problem.key, "is not set; remove the argument with ~")
    if name == "_target_" and parent in _OWN_CHOICES:
        return Problem(problem.key, f"{problem.message} To use your own callable, set {parent}={_OWN_CHOICES[parent]}.")
    return Problem(problem.key, problem.message + advice.for_key(problem.key, keys, composed, arguments))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
