"""The configuration of a run, composed by Hydra from the chosen files; psrun sets the keys of the command line.

The arguments GROUP=NAME and KEY=VALUE are checked one by one against the groups and keys that exist, so that all
mistakes are reported at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from psrun import files
from psrun.config import advice, argument_syntax, groups, parse, schema
from psrun.config.groups import arguments_of_the_configuration, key_of, split_arguments
from psrun.config.parse import GROUPS
from psrun.errors import ConfigError, Problem

# Choices that users may expect, and what to choose instead.
_CHOOSE_INSTEAD = {
    ("cluster", "tpu"): "TensorFlow's TPUStrategy is synchronous, without parameter servers and coordinator; psrun "
    "does not support it",
    **{
        ("data", name): "data=table reads such files: data=table data.path=FILE data.label=COLUMN"
        for name in ("arrow", "csv", "feather", "file", "files", "json", "jsonl", "npz", "parquet", "tfrecord", "tsv")
    },
}
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
_SET_HERE = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD, OverrideType.DEL)
_CONF = "psrun.conf"
_OWN_CHOICES = {"partitioner": "custom", "trainer": "own_loop"}  # choices that take a _target_
# Hydra 1.4 has only one behaviour, and warns of the argument.
_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def parsed_overrides(arguments: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """The arguments GROUP=NAME and KEY=VALUE, which have no `problems`, as Hydra reads them."""
    return OverridesParser.create(config_loader=loader).parse_overrides(split_arguments(arguments)[1])


def is_of_a_group(override: Override, known: Mapping[str, Any]) -> bool:
    """Whether an override chooses of a group: of one of `known`, of one within a group, or of one of Hydra's."""
    return override.key_or_group in known or "/" in override.key_or_group or override.key_or_group == "hydra"


def is_set_here(override: Override, known: Mapping[str, Any]) -> bool:
    """Whether psrun sets the key in the composed configuration; Hydra composes from all others."""
    is_key = not is_of_a_group(override, known) and not override.is_hydra_override()
    return is_key and override.type in _SET_HERE


def problems_of_arguments(arguments: Sequence[str], *, sweeps: bool) -> dict[str, Problem]:
    """The problem of each argument that has one, of those that are known before the configuration is composed.

    Args:
      sweeps: whether the arguments may have several values, as with -m.
    """
    choices = groups.choices(arguments)
    others = split_arguments(arguments)[1]
    found = argument_syntax.torn(others)
    whole = [argument for argument in others if argument not in found]
    chosen: dict[str, str] = {}
    for argument in whole:
        override = argument_syntax.parsed(argument)
        if isinstance(override, Problem):
            found[argument] = override
            continue
        key = override.key_or_group
        if override.type == OverrideType.DEL:
            if key in GROUPS:
                found[argument] = Problem(key, f"cannot be left out; choose one of {', '.join(choices[key])}")
            continue
        of_group = is_of_a_group(override, choices)
        problem = None
        may_vary = sweeps and not key.startswith("sweep.")
        if override.is_sweep_override() and not may_vary:
            problem = _several_values(argument, of_group)
        elif key == "hydra.searchpath":
            problem = Problem(key, "would be searched after psrun's own files; use --config-dir FOLDER")
        elif key in _FOLDERS:
            problem = _check_folder(key, override.value())
        elif of_group:
            problem = _check_group(override, arguments, choices, chosen.get(key))
            chosen[key] = argument.partition("=")[2]
        if problem is not None:
            found[argument] = problem
    return found


def _check_folder(key: str, value: Any) -> Problem | None:
    if not value and key != "hydra.sweep.subdir":
        return Problem(key, f"is {_shown(value)}, must be a folder, such as {key}=runs/NAME")
    return files.not_on_disk(key, value)


def without_mistakes(arguments: Sequence[str], refused: Mapping[str, Problem]) -> list[str]:
    """The arguments without those that have a problem, and without the keys of a choice that is left out.

    A mistyped choice is replaced by the one that was meant.
    """
    kept = [*arguments]
    for argument in refused:
        key, _, value = argument.partition("=")
        options = groups.choices_of(key, arguments) if key in groups.ONE_CHOICE else {}
        meant = schema.near(value, options)
        if meant is not None and value not in options:
            kept = [f"{key}={meant}" if each == argument else each for each in kept]
            continue
        is_choice = key_of(argument) in groups.ONE_CHOICE  # also where it is chosen twice
        kept = [each for each in kept if each != argument and not _depends(each, argument, is_choice=is_choice)]
    return kept


def _depends(argument: str, other: str, *, is_choice: bool) -> bool:
    """Whether an argument sets a key of what another one sets or chooses, or repeats its choice."""
    if is_choice and key_of(argument) == key_of(other):
        return True
    return key_of(argument).startswith(f"{key_of(other)}.")


def set_key(config: DictConfig, override: Override) -> Problem | None:
    """Sets, adds or deletes a key of a composed configuration in struct mode; the problem if it cannot be done."""
    key = override.key_or_group
    value = override.value()
    if override.package is not None:
        return Problem(key, f"there is no such group, whose place {override.input_line} states")
    may_add = override.is_add() or override.is_force_add()
    try:
        if override.is_delete():
            return _delete(config, key, value)
        empty = None if may_add else _null_above(config, key)
        if empty in groups.ONE_CHOICE:
            return Problem(key, f"is a key of a choice; choose {empty}=NAME, too")
        if empty is not None:
            message = f"is below {empty}, which is null; to add the key, write +{override.input_line}"
            return Problem(key, message)
        is_single = not isinstance(value, dict | list)
        if override.is_add() and is_single and OmegaConf.select(config, key) is not None:
            return Problem(key, f"exists already; write {str(override.input_line).lstrip('+')} without +")
        is_list = isinstance(OmegaConf.select(config, key, throw_on_missing=False), ListConfig)
        if is_list and isinstance(value, dict):
            return Problem(key, f"is a mapping, must be a list; write {_in_a_list(str(override.input_line))}")
        OmegaConf.update(config, key, value, merge=True, force_add=may_add)
    except (ConfigAttributeError, ConfigKeyError):
        return Problem(key, f"no such key or group (value '{str(override.input_line).partition('=')[2]}').")
    except (OmegaConfBaseException, TypeError) as error:
        return Problem(key, f"cannot be set by {override.input_line}: {str(error).splitlines()[0]}")
    return None


def _in_a_list(argument: str) -> str:
    """The argument with its value as the only item of a list."""
    key, _, value = argument.partition("=")
    return shlex.quote(f"{key}=[{value}]")


def _null_above(config: DictConfig, key: str) -> str | None:
    """The key above `key` that exists and is null; None if there is none."""
    parts = key.split(".")
    node: Any = config
    for index, part in enumerate(parts[:-1]):
        if not isinstance(node, DictConfig) or part not in node:
            return None
        node = OmegaConf.select(node, part, throw_on_missing=False)
        if node is None:
            return ".".join(parts[: index + 1])
    return None


def _delete(config: DictConfig, key: str, value: Any) -> Problem | None:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in node:
        return Problem(key, "there is no such key to delete (~).")
    current = OmegaConf.select(config, key, throw_on_missing=False)
    if current is None:
        return Problem(key, "is not set; remove the argument with ~")
    if value is not None and value != current:
        return Problem(key, f"is {current}, not {value}; to delete it, write ~{key}")
    with open_dict(config):
        del node[name]
    return None


def _several_values(argument: str, of_group: bool) -> Problem:
    key, _, value = argument.partition("=")
    key = key.lstrip("+~")
    if key.startswith("sweep."):
        return Problem(key, f"has several values, {value}; a sweep has one")
    quoted = shlex.quote(f'{key}="{value}"')
    is_text = re.search(r"[^\W\d_e]", value) and not of_group and "(" not in value
    if re.fullmatch(r"-?(0,\d+|\d+,0\d*)", value) and not of_group:
        number = value.replace(",", ".")
        message = f"has several values, {value}; to sweep over them, add -m; for a number with a fraction, write"
        return Problem(key, f"{message} {key}={number}")
    text = f"; for one text with commas, quote it: {quoted}" if is_text else ""
    return Problem(key, f"has several values, {value}; to sweep over them, add -m{text}")


def _check_group(
    override: Override, arguments: Sequence[str], known: Mapping[str, Mapping[str, Path]], before: str | None
) -> Problem | None:
    """The problem of an argument that chooses of a group; `before` is the value of an earlier one."""
    key = override.key_or_group
    given = str(override.input_line).partition("=")[2]  # with -m perhaps several values
    of_hydra = key.partition("/")[0] == "hydra"
    if before is not None and override.type == OverrideType.CHANGE:
        are_names = all(value in known.get(key, ()) and value != "none" for value in (before, given))
        both = f", or write {key}=[{before},{given}]" if key in groups.SEVERAL_CHOICES and are_names else ""
        return Problem(key, f"is chosen twice, as {before} and as {given}; keep one of them{both}")
    if override.type != OverrideType.CHANGE and key in groups.ONE_CHOICE:
        return Problem(key, f"has a choice already; write {key}={given} without +")
    if override.package is not None and key in groups.ONE_CHOICE:
        return Problem(key, f"has a fixed place in the configuration; write {key}=NAME without @")
    options: Mapping[str, Path] = {}
    if not of_hydra:
        options = known.get(key) or groups.choices_of(key, arguments)
    has_one = key in groups.ONE_CHOICE or of_hydra  # others are groups of the user's
    for value in _values_of(override):
        if (problem := _check_choice(key, value, options, arguments, has_one=has_one)) is not None:
            return problem
    return None


def _check_choice(
    key: str, value: Any, choices: Mapping[str, Path], arguments: Sequence[str], *, has_one: bool
) -> Problem | None:
    """The problem of a value for a group, of which a run may have one choice or several."""
    text = str(value)
    if isinstance(value, list) and key in groups.SEVERAL_CHOICES:
        return _check_choices(key, value, choices, arguments)
    if isinstance(value, list) and value and has_one:
        names = ",".join(map(_shown, value))
        advice = f"to run each of them, add -m and write {key}={names}" if len(value) > 1 else f"write {key}={names}"
        return Problem(key, f"is [{names}], must be a single choice; {advice}")
    if isinstance(value, list) and not has_one:
        for each in value:
            if (problem := _check_choice(key, each, choices, arguments, has_one=True)) is not None:
                return problem
        return None
    if (key, text) in _CHOOSE_INSTEAD and text not in choices:
        return Problem(key, f"there is no '{text}': {_CHOOSE_INSTEAD[key, text]}. Choose one of {', '.join(choices)}.")
    if key == "data" and Path(text).is_file():
        message = f"is the file {text}; write data=table data.path={shlex.quote(text)} data.label=COLUMN"
        return Problem(key, message)
    if not isinstance(value, str) or not text:
        return Problem(key, f"is {_shown(value)}, must be the name of a choice{_named(key, choices)}")
    if text in choices:
        return groups.problem_of_file(key, choices[text], arguments)
    return groups.no_such_choice(key, text, choices, arguments) if choices else None  # Hydra knows its own


def _check_choices(
    key: str, values: list[Any], choices: Mapping[str, Path], arguments: Sequence[str]
) -> Problem | None:
    """The problem of a list of choices for a group of which a run may have several."""
    if not values:
        return Problem(key, f"is [], must name at least one choice{_named(key, choices)}")
    for number, value in enumerate(values):
        if isinstance(value, list):
            return Problem(key, f"has a list within a list, [{', '.join(map(_shown, value))}]; write {key}=[A,B]")
        if value in values[:number]:
            return Problem(key, f"lists {_shown(value)} twice; remove one of them")
        if (problem := _check_choice(key, value, choices, arguments, has_one=True)) is not None:
            return problem
    return None


def _values_of(override: Override) -> Iterator[Any]:
    """The values of an argument, with -m all of them; none where they are not listed, as with `glob(*)`."""
    value: Any = override.value()
    if not override.is_sweep_override():
        yield value
    elif isinstance(value, ChoiceSweep):
        yield from (each.text if isinstance(each, QuotedString) else each for each in value.list)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "empty"


def _named(key: str, choices: Mapping[str, Any]) -> str:
    return f": {', '.join(choices)}" if choices else f", such as {key}=NAME"


parse.register_resolvers()
Prepare = Callable[[DictConfig], list[str]]


class _OtherFiles(SearchPathPlugin):
    """Lets the files of --config-dir come before psrun's, and the files of other packages after them.

    Hydra itself searches --config-dir last, and reads only the last of several. It makes the object, without arguments.
    """

    _before: ClassVar[Sequence[Path]] = ()
    _after: ClassVar[Sequence[Path]] = ()

    @classmethod
    def search(cls, before: Sequence[Path], after: Sequence[Path]) -> None:
        """Lets Hydra search the folders, instead of those of an earlier call, before and after psrun's."""
        cls._before = before
        cls._after = after
        Plugins.instance().register(cls)

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self._before:
            search_path.prepend("--config-dir", f"file://{folder}")
        for folder in self._after:
            search_path.append("psrun.parts", f"file://{folder}")


class Composer:
    """Composes runs from psrun's files and the files of the user. `create` makes one.

    Args:
      loader: of Hydra, which searches the folders of all files.
      options: of the command line, with the --config-dir folders.
      known: the files of the choices of each group.
    """

    def __init__(self, loader: ConfigLoader, options: Sequence[str], known: Mapping[str, Mapping[str, Path]]) -> None:
        self.loader = loader
        self._options = options
        self._known = known
        self._loaded: dict[tuple[str, ...], bytes] = {}

    @classmethod
    def create(cls, arguments: Sequence[str]) -> Composer:
        """The composer for the --config-dir folders among the arguments.

        Raises:
          ConfigError: a folder does not exist, or a file in it has a name that it may not have.
        """
        options = split_arguments(arguments_of_the_configuration(arguments))[0]
        known = groups.choices(arguments)
        _prepare(arguments)
        GlobalHydra.instance().clear()
        hydra.initialize_config_module(_CONF, job_name="psrun", **_BASE)
        loader: ConfigLoader = GlobalHydra.instance().config_loader()
        GlobalHydra.instance().clear()
        return cls(loader, options, known)

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
        arguments = [*self._options, *split_arguments(arguments)[1]]
        refused = problems_of_arguments(arguments, sweeps=mode == RunMode.MULTIRUN)
        valid = without_mistakes(arguments, refused) if refused else arguments
        config, problems = self._composed(parsed_overrides(valid), parsed_overrides(implied), mode, prepare)
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
        here: list[Override] = []
        if mode == RunMode.RUN:
            here = [each for each in given if is_set_here(each, self._known)]
        by_hydra = [each for each in given if each not in here]
        config, problems = self._by_hydra([*by_hydra, *implied], mode)
        further = [] if prepare is None else prepare(config)
        for override in here:
            problem = set_key(config, override)
            if problem is not None:
                problems.append(problem)
        if here or implied or further:
            own = [str(each.input_line) for each in given if not each.is_hydra_override()]
            _record(config, [*own, *further])
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
        if not is_of_a_group(override, self._known):
            return set_key(config, override)
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
    return Composer.create(arguments).compose(arguments)


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
    return parse.completed(resolved)


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
        problems = problems_of_values(values(compose(arguments)))
    except ConfigError as error:
        return [*error.problems]
    return [advice.with_removal(each, arguments) for each in problems]


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
    _require_primary_file(arguments)
    _OtherFiles.search(folders, groups.folders_of_others(arguments))


def _require_primary_file(arguments: Sequence[str]) -> None:
    """Raises ConfigError if the file of --config-name does not exist."""
    if not any(argument.startswith(groups.NAME_OPTIONS) for argument in arguments):
        return
    name = _config_name(arguments)
    file = f"{name.removesuffix('.yaml')}.yaml"
    for folder in groups.search_path(arguments):
        if (folder / file).is_file():
            return
    choice = f"experiment={name}" if name in groups.choices_of("experiment", arguments) else "experiment=NAME"
    message = f"there is no {file} in the folders of --config-dir; to choose an experiment, write {choice} instead"
    raise ConfigError([Problem("--config-name", message)])


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
    if isinstance(node, dict) and "_target_" in node and not schema.is_near(name, keys):
        advised = advice.for_argument(problem.key, str(node["_target_"]), arguments)
        if advised:
            return Problem(problem.key, f"{problem.message} {advised}")
    return Problem(problem.key, problem.message + advice.for_key(problem.key, keys, composed, arguments))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
