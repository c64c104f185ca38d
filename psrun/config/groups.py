"""The arguments of a command line as text, and the configuration files that they choose. Imports no Hydra.

Of files with one name, the first counts: a file of a --config-dir folder, then psrun's own, then other packages'.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from psrun import parts
from psrun.config import schema
from psrun.config.schema import did_you_mean
from psrun.errors import ConfigError, Problem

OPTIONS = ("--config-dir", "-cd")
NAME_OPTIONS = ("--config-name", "-cn")
_COMPLETION = ("--shell-completion", "-sc")
CONF = Path(str(importlib.resources.files("psrun.conf")))
ONE_CHOICE = frozenset(path.name for path in CONF.iterdir() if path.is_dir())  # groups of which a run has a choice
SEVERAL_CHOICES = frozenset({"tracker"})  # of which a run may also have several, each in its own place
SINGLE_KEYS = ("mode", "seed", "resume", "restore")  # keys without a group and with a single value
NEEDS_OWN_PACKAGE = "must begin with the line '# @package tracker.NAME', so that its keys are below tracker.NAME"
NEEDS_GLOBAL_PACKAGE = "must begin with the line '# @package _global_', so that its keys are top-level keys"
_OPTIONS_OF_FILES = (*OPTIONS, *NAME_OPTIONS)
_SWEEPING = ("-m", "--multirun")
_PRINTING = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc", "--version")
_VERBOSE = ("-v", "--verbose")
VERBOSE = "run.verbose=true"
_FLAGS = (*_SWEEPING, *_VERBOSE, "-r", "--run")
_urls: dict[Path, str] = {}  # by local folder, see `stand_for`
_OF_CFG = ("--package", "-p")
_WITH_VALUE = (*_OPTIONS_OF_FILES, *_OF_CFG, "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc")
# Options of Hydra's that would start another run than they say.
_INSTEAD = {
    "--resolve": "is an option of --cfg: add --cfg job",
    "--sweep": "is no option of psrun; a sweep is psrun -m KEY=A,B",
    **dict.fromkeys(("--config-path", "-cp"), "would replace psrun's own files; use --config-dir FOLDER"),
    "--dry-run": "is no option of psrun; psrun plan shows what a run would place and send, and starts nothing",
    "--experimental-rerun": "is not supported; use psrun resume RUN",
}
_SENTENCE_END = re.compile(r"(?<=[.?])\s+(?=[A-Z`])")
ASKS = "?"  # the value of a group whose choices the user asks for


def config_dirs(arguments: Sequence[str]) -> list[Path]:
    """The --config-dir folders in `arguments`."""
    folders = [after for option, after in itertools.pairwise(arguments) if option in OPTIONS]
    folders += [each.partition("=")[2] for each in arguments if each.startswith(tuple(f"{name}=" for name in OPTIONS))]
    return [Path(each).absolute() for each in folders]


def search_path(arguments: Sequence[str]) -> list[Path]:
    """The folders with configuration files, in the order of the search: of two files, the first one counts.

    The last of several --config-dir comes first.
    """
    return [*reversed(config_dirs(arguments)), CONF, *folders_of_others(arguments)]


def folders_of_others(arguments: Sequence[str]) -> list[Path]:
    """The folders with choices of other packages; none where the arguments choose from psrun's own files only.

    To find these packages takes longer than to read all of psrun's own files.

    Raises:
      ConfigError: a package offers a folder that does not exist.
    """
    if not _may_choose_others(arguments):
        return []
    found = []
    for name in filter(None, (part.conf for part in parts.others())):
        folder = importlib.util.find_spec(name)
        if folder is None or not folder.submodule_search_locations:
            raise ConfigError(f"{name}, which a package offers as its folder of choices, is no package; uninstall it")
        found += [Path(location) for location in folder.submodule_search_locations]
    return found


def _may_choose_others(arguments: Sequence[str]) -> bool:
    """Whether arguments, or files of the user, may choose what is in no file of psrun."""
    if config_dirs(arguments) or not set(_COMPLETION).isdisjoint(arguments):
        return True
    for argument in arguments:
        target, _, value = argument.partition("=")
        group = target.lstrip("+").partition("@")[0]
        if group not in ONE_CHOICE:
            continue
        for name in re.findall(r"[^][,\s]+", value):
            if not (CONF / group / f"{name}.yaml").is_file():
                return True
    return False


def choices(arguments: Sequence[str]) -> dict[str, dict[str, Path]]:
    """The choices of each group: name to file."""
    groups: dict[str, dict[str, Path]] = {}
    for folder in search_path(arguments):
        for path in sorted(folder.glob("*/*.yaml")):
            groups.setdefault(path.parent.name, {}).setdefault(path.stem, path)
    return groups


def choices_of(group: str, arguments: Sequence[str]) -> dict[str, Path]:
    """The choices of a group, which may be within another one, such as model/head: name to file."""
    found: dict[str, Path] = {}
    for folder in search_path(arguments):
        for path in sorted(folder.joinpath(group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def description(path: Path) -> str:
    """The first sentence of the comment that a configuration file begins with; empty if it has none."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("# @package"):
            continue
        text = line.strip("# ")
        if not line.startswith("#") or not text:  # the end of the comment, or of its first paragraph
            break
        lines.append(text)
    return _SENTENCE_END.split(" ".join(lines), maxsplit=1)[0].rstrip(":")


def keys(path: Path) -> set[str]:
    """The keys of a choice; none of a file that cannot be read."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return set()
    return {*map(str, values)} - {"defaults"} if isinstance(values, Mapping) else set()


def replaced(arguments: Sequence[str]) -> list[Path]:
    """The user's files that are used instead of psrun's of the same name."""
    if not config_dirs(arguments):  # most runs: no file is looked at
        return []
    its = choices([])
    return [
        path
        for group, named in choices(arguments).items()
        for choice, path in named.items()
        if choice in its.get(group, ()) and not path.samefile(its[group][choice])
    ]


def misplaced(group: str, choice: str, arguments: Sequence[str]) -> str:
    """What to do about a user's file of a choice that is where it is not searched; empty if there is none."""
    for folder in config_dirs(arguments):
        if (file := folder / group / f"{choice}.yml").is_file():
            return f"{file} is not read; name it {file.with_suffix('.yaml').name}."
        if (file := folder / f"{choice}.yaml").is_file() and folder.name == group:
            return f"{file} is a file of the group {group} if you write --config-dir {folder.parent}."
    for folder in (Path("conf"), Path("."), *(each / "conf" for each in config_dirs(arguments))):
        if (folder / group / f"{choice}.yaml").is_file():
            return f"To use {folder / group / choice}.yaml, add --config-dir {folder}."
    return ""


def no_such_choice(
    group: str, choice: str, options: Collection[str], arguments: Sequence[str], file: str = ""
) -> Problem:
    """The problem of an unknown choice, given on the command line or in a YAML file."""
    source = f", which {file} selects" if file else ""
    message = f"there is no {group} named '{choice}'{source}.{schema.did_you_mean(choice, options)}"
    above, _, name = group.rpartition("/")
    if above and name in ONE_CHOICE:
        message += f" To choose a {name} in a defaults list, write '- override /{name}: {choice}'."
    elif elsewhere := misplaced(group, choice, arguments):
        message += f" {elsewhere}"
    elif not config_dirs(arguments) and not schema.is_near(choice, options):
        message += " For your own choices, add --config-dir FOLDER."
    return Problem(group, message)


def problem_of_word(group: str, word: str) -> Problem:
    """The problem of a group that a file sets to a word, as if that chose."""
    instead = (
        f"write '- override /{group}: {word}' in the defaults list of the file, or {group}={word} on the command line"
    )
    return Problem(group, f"is the word {word!r}, not the keys of a choice; to choose {word}, {instead}")


def problem_of_file(group: str, path: Path, arguments: Sequence[str]) -> Problem | None:
    """The problem of a configuration file of the user's that is chosen, or of another one that it selects.

    None also for a file that cannot be parsed, as Hydra's error names the line, and with a primary configuration of the
    user's, which has other groups.
    """
    if any(argument.startswith(NAME_OPTIONS) for argument in arguments):
        return None
    return _DefaultsCheck(arguments, choices(arguments)).problem_of(group, path)


class _DefaultsCheck:
    """Checks the defaults lists of the user's files against the groups that exist.

    Args:
      arguments: with the --config-dir folders.
      known: the files of the choices of each group.
    """

    def __init__(self, arguments: Sequence[str], known: Mapping[str, dict[str, Path]]) -> None:
        self._arguments = arguments
        self._known = known
        self._seen = set[Path]()

    def problem_of(self, group: str, path: Path) -> Problem | None:
        if path in self._seen or path.is_relative_to(CONF):
            return None
        self._seen.add(path)
        try:
            text = path.read_text(encoding="utf-8")
            values = yaml.safe_load(text)
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            number = before.count(b"\n") + 1
            place = f"{path}, line {number}: byte 0x{error.object[error.start]:02x} at column"
            column = error.start - before.rfind(b"\n")
            return Problem("", f"{place} {column} is not UTF-8; save the file as UTF-8")
        except (OSError, ValueError, yaml.YAMLError):
            return None
        name = f"{group}/{path.name}"
        if isinstance(values, list):
            return Problem("", f"{name}: holds a list, must hold keys with values")
        if not isinstance(values, Mapping):
            return None
        if isinstance(hydra := values.get("hydra"), Mapping) and "searchpath" in hydra:
            return Problem("hydra.searchpath", f"is set in {name}; use --config-dir FOLDER instead")
        defaults = values.get("defaults", [])
        if not isinstance(defaults, list):
            message = f"is {defaults!r} in {path}, must be a list with items such as '- override /model: dense'"
            return Problem("defaults", message)
        if group in SEVERAL_CHOICES and not re.match(rf"\s*#\s*@package\s+{group}\.{re.escape(path.stem)}\s", text):
            return Problem(group, f"{name} {NEEDS_OWN_PACKAGE.replace('NAME', path.stem)}")
        is_global = bool(re.match(r"\s*#\s*@package\s+_global_\s", text))
        return self._check_list(defaults, group, path, is_global=is_global)

    def _check_list(self, defaults: list[Any], own: str, path: Path, *, is_global: bool) -> Problem | None:
        chosen: set[str] = set()
        for item in defaults:
            if not _is_choice(item):
                return Problem("defaults", f"has the item {item!r} in {path}; write it as '- override /model: dense'")
            if not isinstance(item, Mapping):
                above, _, choice = item.partition("@")[0].rpartition("/")
                group = above.lstrip("/") if item.startswith("/") else f"{own}/{above}".rstrip("/")
                problem = None if choice == "_self_" else self._check_choice(group, choice, f"{own}/{path.name}")
                if problem is not None:
                    return problem
                continue
            for key, choice in item.items():
                group = str(key).split()[-1].lstrip("/").partition("@")[0]
                # Of two choices here, Hydra 1.3 takes the first one and 1.4 the last; on the command line, the last.
                has_several = isinstance(choice, list) or group in chosen
                if has_several and group in ONE_CHOICE - SEVERAL_CHOICES:
                    return Problem("defaults", f"has several choices of {group} in {path}; keep one of them")
                chosen.add(group)
                problem = self._check_item(str(key), choice, own, path, is_global=is_global)
                if problem is not None:
                    return problem
        return None

    def _check_item(self, key: str, choice: Any, own: str, path: Path, *, is_global: bool) -> Problem | None:
        """The problem of an item `[override] [/]GROUP[@PACKAGE]: CHOICE` in the file of the group `own`."""
        *keywords, target = key.split()
        group, _, package = target.lstrip("/").partition("@")
        file = f"{own}/{path.name}"
        is_absolute = target.startswith("/")
        if "override" in keywords:
            if not (group.startswith("hydra") or self._options(group)):
                guess = schema.did_you_mean(group, ONE_CHOICE)
                return Problem(group, f"there is no such group, which {file} overrides.{guess}")
            if group in ONE_CHOICE and not is_absolute:
                return Problem(group, f"is overridden in {file} at another place; write '- override /{group}: NAME'")
            if group in ONE_CHOICE and not is_global and not package.startswith("_global_"):
                if own == "experiment":
                    return Problem(own, f"{file} {NEEDS_GLOBAL_PACKAGE}")
                place = f"'- override /{group}@_global_.{group}: NAME'"
                return Problem(group, f"is overridden in {file} at another place; write {place}")
        elif group in ONE_CHOICE and is_absolute and is_global and not package:
            message = f"is chosen in two defaults lists; to replace a choice, write '- override /{group}: NAME'"
            return Problem(group, message)
        if "optional" in keywords:
            return None
        group = group if is_absolute else f"{own}/{group}"
        several = choice if isinstance(choice, list) else [choice]
        for each in several:
            if isinstance(each, str) and (problem := self._check_choice(group, each, file)) is not None:
                return problem
        return None

    def _check_choice(self, group: str, choice: str, file: str) -> Problem | None:
        options = self._options(group)
        if group.startswith("hydra") or "${" in choice or not (options or group.rpartition("/")[2] in ONE_CHOICE):
            return None
        if choice.removesuffix(".yaml") not in options:
            return no_such_choice(group, choice, options, self._arguments, file)
        return self.problem_of(group, options[choice.removesuffix(".yaml")])

    def _options(self, group: str) -> dict[str, Path]:
        return self._known.get(group) or choices_of(group, self._arguments)


def _is_choice(item: Any) -> bool:
    """Whether an item of a defaults list is a file, or a group with a choice of it."""
    if not isinstance(item, Mapping):
        return isinstance(item, str)
    if len(item) != 1:
        return False
    (choice,) = item.values()
    return choice is None or isinstance(choice, str | list)


def _is_hydras(name: Path) -> bool:
    """Whether Hydra has a configuration file of this name."""
    its = importlib.resources.files("hydra.conf")  # not imported with this module: tasks need no Hydra
    return name == Path("hydra", "config.yaml") or its.joinpath(str(name)).is_file()


def require_own_names(arguments: Sequence[str]) -> None:
    """Checks that no file of the user's would replace the configuration as a whole, or what it is made by.

    Raises:
      ConfigError: names the user's files.
    """
    if any(argument.startswith(NAME_OPTIONS) for argument in arguments):
        return
    folders = config_dirs(arguments)
    names = [(folder / its.name, its) for folder in folders for its in CONF.glob("*.yaml")]
    problems = [
        Problem(OPTIONS[0], f"{folder / key} has the name of the key {key}, which is no group; rename the folder")
        for folder in folders
        for key in SINGLE_KEYS
        if any((folder / key).glob("*.yaml"))
    ]
    problems += [
        Problem(OPTIONS[0], f"{path} has the name of a file that psrun's own settings need; rename it")
        for folder in folders
        for path in sorted(folder.glob("hydra/**/*.yaml"))
        if _is_hydras(path.relative_to(folder))
    ]
    problems += [
        Problem(
            OPTIONS[0],
            f"{own} has the name of psrun's {its}, which lists the groups and the keys without a group; psrun does not "
            f"read it: move its keys to {own.parent / 'experiment' / 'NAME.yaml'}, and add experiment=NAME",
        )
        for own, its in names
        if own.is_file() and not own.samefile(its)
    ]
    if problems:
        raise ConfigError(problems)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, such as --config-dir FOLDER, and the arguments GROUP=NAME and KEY=VALUE."""
    options: list[str] = []
    others: list[str] = []
    value = False
    for argument in arguments:
        option = argument.startswith("-")
        (options if option or (value and "=" not in argument) else others).append(argument)
        value = argument in _WITH_VALUE
    return options, others


def require_options_of_a_run(arguments: Sequence[str], advise: Callable[[str, str], str]) -> None:
    """Checks the options of a run or a sweep.

    Args:
      advise: gives what to write instead of an unknown option and its value; empty without advice.

    Raises:
      ConfigError: there is no such option, or one has no value.
    """
    options, _ = split_arguments(arguments)
    lacking = ""  # the option whose value comes next
    for each in [*options, "-"]:
        if lacking and each.startswith("-"):
            raise ConfigError(f"{lacking} has no value; write {lacking} VALUE")
        name, equals, _ = each.partition("=")
        if not lacking and each not in (*_FLAGS, "-") and name not in (*_OPTIONS_OF_FILES, *_OF_CFG):
            known = (*_FLAGS, *_OPTIONS_OF_FILES, *(option for option in _PRINTING if option.startswith("--")))
            if name in _INSTEAD:
                raise ConfigError(f"{name} {_INSTEAD[name]}")
            if instead := advise(name, _value_of(each, arguments)):
                raise ConfigError(f"{name} is no option of psrun; {instead}")
            raise ConfigError(f"{name} is no option of psrun.{did_you_mean(name, known)} See psrun --help")
        lacking = "" if lacking or equals or each not in _WITH_VALUE else each


def _value_of(option: str, arguments: Sequence[str]) -> str:
    """The value of an option that psrun does not have: after =, or the next argument."""
    _, equals, value = option.partition("=")
    if equals:
        return value
    following = arguments[arguments.index(option) + 1 :][:1]
    is_value = bool(following) and "=" not in following[0] and not following[0].startswith("-")
    return following[0] if is_value else "VALUE"


def options_first(arguments: Sequence[str]) -> list[str]:
    """Moves options, such as --config-dir FOLDER, before all KEY=VALUE, as Hydra's parser requires."""
    options, others = split_arguments(arguments)
    return [*options, *others]


def arguments_of_the_configuration(arguments: Sequence[str]) -> list[str]:
    """The arguments without the options that do not choose files, such as -m, or --cfg with its value."""
    options, others = split_arguments(arguments)
    before = ["", *options]
    kept = [
        option
        for option, previous in zip(options, before)
        if option.partition("=")[0] in _OPTIONS_OF_FILES or previous in _OPTIONS_OF_FILES
    ]
    return [*kept, *others]


def with_keys_of_options(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a key in place of each option that stands for one."""
    return [VERBOSE if each in _VERBOSE else each for each in arguments]


def key_of(argument: str) -> str:
    """The key or group that an argument sets, without the place where a group goes."""
    return argument.partition("=")[0].lstrip("+~").partition("@")[0]


def names_run(argument: str) -> bool:
    """Whether an argument after the word of a command names a run: it is no option, choice or key with its value.

    A folder that exists may have = in its name, after a /, and so may a URL.
    """
    if argument.startswith("~") and not argument.startswith("~/"):  # deletes a key
        return False
    name, equals, _ = argument.partition("=")
    return not equals or "://" in name or ("/" in name and Path(argument).expanduser().is_dir())


def stand_for(folder: Path, url: str) -> None:
    """Makes a local folder stand for the run at a URL, in this process: messages name the URL."""
    _urls[folder.absolute()] = url


def url_of(folder: Path) -> str | None:
    """The URL that a folder stands for, or one above it does; None without one."""
    for local, url in _urls.items():
        if folder.absolute().is_relative_to(local):
            return str(folder.absolute()).replace(str(local), url, 1)
    return None


def with_url(folder: Path) -> str:
    """A folder as it is, or the URL that it stands for."""
    return url_of(folder) or str(folder)


def run_argument(folder: Path) -> str:
    """A run folder, or its URL, as the argument after the word of a command, as a shell takes it; see `names_run`."""
    text = with_url(folder)
    if text.startswith(("-", "~")) or "=" in text.partition("/")[0]:
        text = f"./{text}"
    return shlex.quote(text)


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether the arguments start or resume a sweep."""
    return not {*_SWEEPING}.isdisjoint(arguments)


def prints_something(arguments: Sequence[str]) -> bool:
    """Whether an option of Hydra's asks to print something, and to start no run."""
    return not {*_PRINTING}.isdisjoint(map(key_of, arguments))


def groups_asked_for(arguments: Sequence[str]) -> list[str]:
    """The groups whose choices the arguments ask for, as in `model=?`."""
    return [argument.partition("=")[0] for argument in arguments if argument.endswith(f"={ASKS}")]


def resume_folder(arguments: Sequence[str]) -> Path | None:
    """The folder that `resume` names in the arguments; None without one."""
    value = next((a.partition("=")[2] for a in arguments if a.startswith("resume=")), "null")
    return None if value == "null" else Path(unquoted(value)).expanduser().absolute()


def unquoted(value: str) -> str:
    """The text of a value in Hydra's grammar, as `quoted` or a user writes it."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value


def quoted(value: Path | str) -> str:
    """A path or a text as a value in Hydra's grammar."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
