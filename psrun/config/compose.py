"""What Hydra makes of arguments, and all that is wrong with those that it makes nothing of."""

from __future__ import annotations

import contextlib
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

from psrun.config import parse, resolvers, schema
from psrun.errors import ConfigError, Problem

_UNKNOWN_KEY = re.compile(r"Could not (?:override|append to|delete from) (?:config )?'(?P<key>[^'@]+)")
_UNKNOWN_CHOICE = re.compile(r"Could not find '(?P<group>.+)/(?P<choice>[^/']+)'")
_NESTED = ("[", "{", "'", '"', "$")  # values with a grammar of their own, which quotes would make plain text
_OVERRIDES_IN_ITS_OWN_PLACE = re.compile(r"In '(?P<file>experiment/[^']+)': Could not override '[^']*@experiment\.")
_CONFIG_DIR = ("--config-dir", "-cd")
_OWN_CHOICES = {"partitioner": "custom", "trainer": "own_loop"}  # that take a _target_
_NOT_OFFERED = {
    ("cluster", "tpu"): "TensorFlow's TPUStrategy is synchronous: its cores have no parameter servers and no "
    "coordinator, and psrun does not offer it",
}
resolvers.register()
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def run(work: Any) -> None:
    """Runs what `sys.argv` says: help, or `work` with what was composed.

    Raises:
      ConfigError: a YAML file cannot be read; names the file and the line.
      HYDRA_ERRORS: the arguments cannot be composed.
      KeyboardInterrupt: and whatever else a signal raises that is no Exception, also where Hydra fails over it: while
        it opens a file its `finally: f.close()` finds no f yet, and that error takes the place of what was raised.
    """

    def job(composed: DictConfig) -> None:
        work(composed)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors to us instead of printing them and ending with 1
    try:
        hydra.main(version_base="1.3", config_path="pkg://psrun.conf", config_name="config")(job)()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([_unreadable_file(error)]) from error
    except Exception as error:
        signalled = error.__context__
        if signalled is None or isinstance(signalled, Exception):
            raise
        raise signalled from None


def _unreadable_file(error: yaml.YAMLError | UnicodeDecodeError) -> Problem:
    """What keeps Hydra from reading a YAML file of the configuration."""
    if isinstance(error, UnicodeDecodeError):
        return _not_utf8(sys.argv[1:]) or Problem("", f"a YAML file of the configuration is not UTF-8: {error}")
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Problem("", f"a YAML file of the configuration cannot be read: {_one_line(str(error))}")
    mark, began = error.problem_mark, error.context_mark
    context = f" {error.context} (line {began.line + 1})" if began is not None and error.context else ""
    return Problem("", f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {error.problem}{context}")


def _not_utf8(arguments: list[str]) -> Problem | None:
    """The first line of a person's own YAML files that is not UTF-8: the error of reading them names no file."""
    for folder in config_dirs(arguments):
        for path in sorted(folder.rglob("*.yaml")):
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                    return Problem("", f"{path}, line {number}: {byte} is not UTF-8; save the file in that encoding")
    return None


def config_dirs(arguments: list[str]) -> list[Path]:
    """The folders of a person's own pieces that are named among arguments."""
    given = [after for option, after in itertools.pairwise(arguments) if option in _CONFIG_DIR]
    given += [each.partition("=")[2] for each in arguments if each.startswith(f"{_CONFIG_DIR[0]}=")]
    return [Path(each).absolute() for each in given]


def options_first(arguments: list[str]) -> list[str]:
    """Hydra's parser wants options, such as --config-dir FOLDER, on one side of all KEY=VALUE; people do not."""
    options: list[str] = []
    others: list[str] = []
    value = False
    for argument in arguments:
        option = argument.startswith("-")
        (options if option or (value and "=" not in argument) else others).append(argument)
        value = option
    return options + others


def plain(composed: DictConfig) -> dict[str, Any]:
    """Plain values, references resolved; what has none is '???'. Raises ConfigError where a reference leads nowhere."""
    try:
        values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        if isinstance(own := _cause(error), ConfigError):
            raise own from None
        raise ConfigError([Problem(str(error.full_key or ""), str(error).splitlines()[0])]) from error
    return resolvers.completed(values)


def _cause(error: BaseException) -> BaseException:
    """What a reference itself raised; OmegaConf raises an error of its own for it."""
    while not isinstance(error, ConfigError) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error


def all_problems(first: Exception, arguments: list[str]) -> list[Problem]:
    """Everything wrong with `arguments`: Hydra tells the first thing; what it names is taken out and asked again."""
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
    """What Hydra makes of `arguments`, or why it does not."""
    kept, printed = sys.argv, io.StringIO()
    sys.argv = [kept[0], *(a for a in arguments if a not in ("-m", "--multirun")), "--cfg", "job"]
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
        sys.argv = kept


def missing_choice(error: Exception) -> tuple[str, str] | None:
    """The group and the choice in it that Hydra's error says do not exist; None where it says something else."""
    choice = _UNKNOWN_CHOICE.search(str(error))
    return (choice["group"], choice["choice"]) if choice else None


def blame(error: Exception, arguments: list[str]) -> tuple[str | None, Problem]:
    """The argument that Hydra's error is about (None: cannot be told) and the problem with it."""
    text = str(error)
    for argument in arguments:
        if f"'{argument}'" in text or getattr(error, "override", None) == argument:
            return argument, Problem(argument, _unreadable(argument, text))
    choice, misplaced = _UNKNOWN_CHOICE.search(text), _OVERRIDES_IN_ITS_OWN_PLACE.search(text)
    key = choice["group"] if choice else (_UNKNOWN_KEY.search(text) or {"key": ""})["key"]
    culprit = next((a for a in arguments if key and a.partition("=")[0].lstrip("+~").partition("@")[0] == key), None)
    if choice:
        return culprit, Problem(key, _no_such_choice(key, choice["choice"], text, arguments, given=culprit is not None))
    if misplaced:
        return None, Problem("experiment", f"{misplaced['file']}.yaml {parse.NEEDS_GLOBAL_PACKAGE}")
    if culprit is None:
        return None, Problem("", _one_line(text))
    return culprit, Problem(key, f"no such key or group (value '{culprit.partition('=')[2]}').")


def _no_such_choice(group: str, choice: str, text: str, arguments: list[str], *, given: bool) -> str:
    """What to say of a choice that Hydra did not find: `given` among arguments, or in a YAML file."""
    options = re.findall(r"^\t(\S+)$", text, flags=re.MULTILINE)
    if (group, choice) in _NOT_OFFERED:
        return f"there is no '{choice}': {_NOT_OFFERED[group, choice]}. Choose one of {', '.join(options)}."
    file = re.match(r"In '([^']+/[^']+)'", text)
    named = "" if given else f", which {file[1] + '.yaml' if file else 'a YAML file'} chooses"
    message = f"there is no {group} named '{choice}'{named}.{schema.did_you_mean(choice, options)}"
    if config_dirs(arguments) or schema.is_near(choice, options):
        return message
    return f"{message} Your own choices are found with --config-dir FOLDER."


def _unreadable(argument: str, text: str) -> str:
    """What to do about an argument that Hydra cannot parse, and where nothing is known, what Hydra says."""
    key, equals, value = argument.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = f'{key}="{escaped}"'
    if equals and not value.startswith(_NESTED) and "(" not in value:
        with contextlib.suppress(HydraException):
            OverridesParser.create().parse_override(quoted)
            return f"contains characters that Hydra treats specially; quote the value: {shlex.quote(quoted)}"
    return "is not GROUP=NAME or KEY=VALUE as Hydra reads it: " + _one_line(text)


def _with_guess(problem: Problem, composed: dict[str, Any]) -> Problem:
    """The problem with what the key may have been meant to be."""
    if not problem.message.endswith(")."):
        return problem
    parent, _, name = problem.key.rpartition(".")
    node: Any = composed
    for part in filter(None, parent.split(".")):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    chosen = ("kind", "_target_") if parent in parse.GROUPS else ()  # by the group's name, rather than by these keys
    known = [k for k in node if k not in chosen] if isinstance(node, dict) else []
    if name == "_target_" and parent in _OWN_CHOICES:
        return Problem(problem.key, f"{problem.message} A callable of yours needs {parent}={_OWN_CHOICES[parent]}.")
    return Problem(problem.key, problem.message + schema.did_you_mean(name, known))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
