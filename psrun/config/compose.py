"""The configuration of a run, composed by Hydra from the chosen files; psrun sets the keys of the command line.

Choices and keys are checked against the groups and keys that exist, so that all mistakes are reported at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from psrun.config import advice, groups, overrides, parse, resolvers
from psrun.config.arguments import key_of, of_the_configuration, split
from psrun.errors import ConfigError, Problem

_CONF = "psrun.conf"
_OWN_CHOICES = {"partitioner": "custom", "trainer": "own_loop"}  # choices that take a _target_
# Hydra 1.4 has only one behaviour, and warns of the argument.
_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
resolvers.register()
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
Prepare = Callable[[DictConfig], list[str]]


class _OtherFiles(SearchPathPlugin):
    """Lets the files of --config-dir come before psrun's, and the files of other packages after them.

    Hydra itself searches --config-dir last, and reads only the last of several.
    """

    before: ClassVar[list[Path]] = []
    after: ClassVar[list[Path]] = []

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self.before:
            search_path.prepend("--config-dir", f"file://{folder}")
        for folder in self.after:
            search_path.append("psrun.parts", f"file://{folder}")


class Composer:
    """Composes runs from psrun's files and those of the user.

    Args:
      arguments: with the --config-dir folders.

    Raises:
      ConfigError: a folder does not exist, or a file in it has a name that it may not have.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._options = split(of_the_configuration(arguments))[0]
        self._known = groups.choices(arguments)
        self._loaded: dict[tuple[str, ...], bytes] = {}
        _prepare(arguments)
        GlobalHydra.instance().clear()
        hydra.initialize_config_module(_CONF, job_name="psrun", **_BASE)
        self.loader: ConfigLoader = GlobalHydra.instance().config_loader()
        GlobalHydra.instance().clear()

    def compose(
        self,
        arguments: Sequence[str],
        *,
        mode: RunMode = RunMode.RUN,
        implied: Sequence[str] = (),
        prepare: Prepare | None = None,
    ) -> DictConfig:
        """The configuration, with Hydra's node `hydra`.

        Args:
          mode: in MULTIRUN, Hydra sets all keys, as values may be lists for a sweep.
          implied: further choices, which are not recorded as arguments.
          prepare: is called before the keys of the command line are set; returns further arguments to record.

        Raises:
          ConfigError: lists all problems.
        """
        arguments = [*self._options, *split(arguments)[1]]
        refused = overrides.problems(arguments, sweeps=mode == RunMode.MULTIRUN)
        valid = overrides.without_mistakes(arguments, refused) if refused else arguments
        config, problems = self._composed(overrides.parsed(valid), overrides.parsed(implied), mode, prepare)
        problems = [*dict.fromkeys(refused.values()), *problems]
        if problems:
            raw = values(config)
            problems = [_with_guess(problem, raw, arguments) for problem in problems]
            with contextlib.suppress(OmegaConfBaseException):
                named = {problem.key for problem in problems}  # without their values they are missing
                problems += [problem for problem in problems_of_values(raw) if problem.key not in named]
            raise ConfigError(problems)
        return config

    def _composed(
        self, given: list[Override], implied: list[Override], mode: RunMode, prepare: Prepare | None
    ) -> tuple[DictConfig, list[Problem]]:
        here = [each for each in given if mode == RunMode.RUN and overrides.is_set_here(each, self._known)]
        config, problems = self._by_hydra([each for each in given if each not in here] + implied, mode)
        further = prepare(config) if prepare is not None else []
        problems += [problem for each in here if (problem := overrides.set_key(config, each))]
        if here or implied or further:
            _record(config, [*(str(each.input_line) for each in given if not each.is_hydra_override()), *further])
        return config, problems

    def _by_hydra(self, parsed: list[Override], mode: RunMode) -> tuple[DictConfig, list[Problem]]:
        """What Hydra composes; without the overrides of Hydra's keys and of the user's groups that it refuses."""
        try:
            return self._load(parsed, mode), []
        except HYDRA_ERRORS as error:
            known = [each for each in parsed if each.key_or_group in groups.ONE_CHOICE]
            suspects = [each for each in parsed if each not in known]
            try:
                config = self._load(known, mode)
            except HYDRA_ERRORS as worse:
                raise ConfigError([problem_of(worse)]) from worse
            problems = [problem for each in suspects if (problem := self._refused(each, config))]
            return config, problems or [problem_of(error)]

    def _refused(self, override: Override, config: DictConfig) -> Problem | None:
        """Why Hydra refuses an override of one of its keys, or of a group that has no choice by default."""
        key = override.key_or_group
        if not overrides.is_of_a_group(override, self._known):
            return overrides.set_key(config, override)
        options = self.loader.get_group_options(key)
        value = override.value()
        if isinstance(value, str) and value not in options:
            return groups.no_such_choice(key, value, options, self._options)
        if key in self._known and not override.is_add():
            return Problem(key, f"is a group without a choice; write +{override.input_line}")
        return None

    def _load(self, parsed: list[Override], mode: RunMode) -> DictConfig:
        lines = [str(each.input_line) for each in parsed]
        key = (mode.name, *lines)
        if key not in self._loaded:
            with _readable(self._options):
                config = self.loader.load_configuration(_config_name(self._options), lines, mode)
            _record_several(config)
            self._loaded[key] = pickle.dumps(config)
            return config
        copy: DictConfig = pickle.loads(self._loaded[key])  # five times as fast as OmegaConf's copy
        return copy


def _record_several(config: DictConfig) -> None:
    """Records the choices of groups with several in Hydra's node: Hydra itself records single ones only."""
    choices = config.hydra.runtime.choices
    with open_dict(choices):
        for group in groups.SEVERAL_CHOICES.difference(choices).intersection(config):
            choices[group] = [*config[group]]


def _record(config: DictConfig, arguments: list[str]) -> None:
    """Records the arguments GROUP=NAME and KEY=VALUE in Hydra's node, as Hydra does for those that it sets itself."""
    config.hydra.overrides.task = arguments
    if OmegaConf.is_interpolation(config.hydra.job, "override_dirname"):  # of these arguments, in Hydra 1.4
        return
    settings = config.hydra.job.config.override_dirname
    named = sorted(each for each in arguments if key_of(each) not in settings.exclude_keys)
    config.hydra.job.override_dirname = settings.item_sep.join(named).replace("=", settings.kv_sep)


def compose(arguments: Sequence[str]) -> DictConfig:
    """The configuration of the arguments of one run, with Hydra's node `hydra`.

    Raises:
      ConfigError: lists all problems.
    """
    return Composer(arguments).compose(arguments)


def without_hydra(config: DictConfig) -> DictConfig:
    """The configuration without Hydra's node."""
    return OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])


def values(config: DictConfig) -> dict[str, Any]:
    """The configuration without Hydra's node as plain values; unresolved if some references are known only to a run."""
    HydraConfig.instance().set_config(config)
    own = without_hydra(config)
    try:
        plain: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException:
        plain = OmegaConf.to_container(own, throw_on_missing=False)
    return plain


def plain(composed: DictConfig) -> dict[str, Any]:
    """Plain values with interpolations resolved; missing values are '???'. Raises ConfigError for a bad reference."""
    try:
        resolved: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        if isinstance(own := _cause(error), ConfigError):
            raise own from None
        raise ConfigError([Problem(str(error.full_key or ""), str(error).splitlines()[0])]) from error
    return resolvers.completed(resolved)


def problems_of_values(raw: dict[str, Any]) -> list[Problem]:
    """The problems of a configuration in which all keys exist."""
    try:
        parse.load(raw)
    except ConfigError as error:
        return [*error.problems]
    return []


def all_problems(arguments: Sequence[str]) -> list[Problem]:
    """All problems of the arguments of one run."""
    try:
        return problems_of_values(values(compose(arguments)))
    except ConfigError as error:
        return [*error.problems]


def print_by_hydra(arguments: Sequence[str]) -> None:
    """Lets Hydra print what an option such as --cfg or --info asks for.

    Raises:
      ConfigError: a YAML file cannot be read.
      HYDRA_ERRORS: the arguments cannot be composed.
      OSError: standard output cannot be written; Hydra's logging would print a traceback and continue.
      SystemExit: as Hydra ends --help.
    """

    def job(composed: DictConfig) -> None:
        raise AssertionError("Hydra runs a job instead of printing")

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and exiting with 1
    _prepare(arguments)
    GlobalHydra.instance().clear()
    before = sys.argv
    printed = io.StringIO()
    sys.argv = ["psrun", *arguments]
    try:
        with _readable(arguments), contextlib.redirect_stdout(printed):
            hydra.main(config_path=f"pkg://{_CONF}", config_name="config", **_BASE)(job)()
    finally:
        sys.argv = before
        sys.stdout.write(printed.getvalue())


def _prepare(arguments: Sequence[str]) -> None:
    """Lets Hydra search the folders of --config-dir and of other packages.

    Raises:
      ConfigError: a folder or a file cannot be used.
    """
    folders = groups.config_dirs(arguments)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError([Problem("--config-dir", f"there is no folder {folder}")])
    groups.require_own_names(arguments)
    _OtherFiles.before = folders
    _OtherFiles.after = groups.folders_of_others(arguments)
    Plugins.instance().register(_OtherFiles)


def _config_name(options: Sequence[str]) -> str:
    for option, value in zip(options, [*options[1:], ""]):
        name, equals, given = option.partition("=")
        if name in groups.NAME_OPTIONS:
            return given if equals else value
    return "config"


@contextlib.contextmanager
def _readable(arguments: Sequence[str]) -> Iterator[None]:
    """Turns the error of a YAML file that cannot be read into a ConfigError with the file and the line.

    Raises a signal's exception that an error hides: a signal while Hydra opens a file makes its `finally: f.close()`
    fail, as f is not set yet.
    """
    try:
        yield
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([_unreadable_file(error)]) from error
    except ValueError as error:
        raise ConfigError([Problem("", _one_line(str(error)))]) from error
    except RecursionError as error:
        raise ConfigError([_circle(arguments)]) from error
    except Exception as error:
        if error.__context__ is None or isinstance(error.__context__, Exception):
            raise
        raise error.__context__ from None


def _circle(arguments: Sequence[str]) -> Problem:
    """The problem of files that select each other, or themselves."""
    own = ", ".join(map(str, groups.replaced(arguments)))
    why = f"; {own}: a file that is used instead of psrun's cannot select it, as both have one name" if own else ""
    return Problem("defaults", f"the defaults lists of configuration files select each other in a circle{why}")


def _unreadable_file(error: yaml.YAMLError | UnicodeDecodeError) -> Problem:
    """The reason why Hydra cannot read a YAML file of the configuration."""
    if isinstance(error, UnicodeDecodeError):
        return Problem("", f"a configuration file is not UTF-8: {error}")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Problem("", f"a configuration file cannot be read: {_one_line(str(error))}")
    mark = error.problem_mark
    began = error.context_mark
    context = f" {error.context} (line {began.line + 1})" if began is not None and error.context else ""
    return Problem("", f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {error.problem}{context}")


def problem_of(error: BaseException) -> Problem:
    """The problem that Hydra's error reports in a YAML file, or in a reference of Hydra's own keys."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    if cause is not None and cause.full_key:
        return Problem(cause.full_key, str(cause).splitlines()[0].replace("HydraConf", "hydra"))
    return Problem("", _one_line(str(error).partition("\nConfig search path")[0]))


def _cause(error: BaseException) -> BaseException:
    """The ConfigError of a resolver, which OmegaConf wraps, if there is one."""
    while not isinstance(error, ConfigError) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error


def _with_guess(problem: Problem, composed: dict[str, Any], arguments: Sequence[str]) -> Problem:
    """The problem with a suggestion for the key."""
    if not problem.message.endswith(")."):
        return problem
    parent, _, name = problem.key.rpartition(".")
    instead = advice.of_compile(name) if parent == "model" else None
    if instead is not None:
        return Problem(problem.key, instead)
    if parent == "data" and name in parse.OF_DATA:  # which the file of a data choice of one's own may leave out
        return Problem(problem.key, f"{problem.message} The file of the data does not set it; write +{problem.key}=...")
    node: Any = composed
    for part in filter(None, parent.split(".")):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    is_choice = parent in parse.GROUPS or parent.partition(".")[0] in groups.SEVERAL_CHOICES
    hidden = ("kind", "_target_") if is_choice else ()  # users select a choice by name, not by these
    keys = [k for k in node if k not in hidden] if isinstance(node, dict) else []
    if name == "_target_" and parent in _OWN_CHOICES:
        return Problem(problem.key, f"{problem.message} To use your own callable, set {parent}={_OWN_CHOICES[parent]}.")
    return Problem(problem.key, problem.message + advice.for_key(problem.key, keys, composed, arguments))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
