"""What Hydra makes of arguments, and all that is wrong with those that it makes nothing of."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun import loading, schema
from psrun.errors import ConfigError, Problem

_UNKNOWN_KEY = re.compile(r"Could not (?:override|append to|delete from) (?:config )?'(?P<key>[^'@]+)")
_UNKNOWN_CHOICE = re.compile(r"Could not find '(?P<group>.+)/(?P<choice>[^/']+)'")
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def run(work: Any) -> None:
    """Runs what `sys.argv` says: help, or `work` with what was composed.

    Raises:
      HYDRA_ERRORS: the arguments cannot be composed.
      KeyboardInterrupt: and whatever else a signal raises that is no Exception, also where Hydra fails over it: while
        it opens a file its `finally: f.close()` finds no f yet, and that error takes the place of what was raised.
    """

    def job(composed: DictConfig) -> None:
        work(composed)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors to us instead of printing them and ending with 1
    try:
        hydra.main(version_base="1.3", config_path="pkg://psrun.conf", config_name="config")(job)()
    except Exception as error:
        signalled = error.__context__
        if signalled is None or isinstance(signalled, Exception):
            raise
        raise signalled from None


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
    """Plain values, references resolved; what has none is '???'."""
    values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    return values


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
                    loading.load(composed)
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
        values: Any = OmegaConf.to_container(OmegaConf.create(printed.getvalue()), throw_on_missing=False)
        return values
    except HYDRA_ERRORS as error:
        return error
    finally:
        sys.argv = kept


def blame(error: Exception, arguments: list[str]) -> tuple[str | None, Problem]:
    """The argument that Hydra's error is about (None: cannot be told) and the problem with it."""
    text = str(error)
    for argument in arguments:
        if f"'{argument}'" in text or getattr(error, "override", None) == argument:
            return argument, Problem(argument, "is not GROUP=NAME or KEY=VALUE as Hydra reads it: " + _one_line(text))
    choice = _UNKNOWN_CHOICE.search(text)
    key = choice["group"] if choice else (_UNKNOWN_KEY.search(text) or {"key": ""})["key"]
    culprit = next((a for a in arguments if key and a.partition("=")[0].lstrip("+~").partition("@")[0] == key), None)
    if culprit is None:
        return None, Problem("", _one_line(text))
    value = culprit.partition("=")[2]
    if choice:
        options = re.findall(r"^\t(\S+)$", text, flags=re.MULTILINE)
        return culprit, Problem(
            key, f"there is no {key} named '{choice['choice']}'.{schema.did_you_mean(choice['choice'], options)}"
        )
    return culprit, Problem(key, f"no such key or group (value '{value}').")


def _with_guess(problem: Problem, composed: dict[str, Any]) -> Problem:
    """The problem with what the key may have been meant to be."""
    if not problem.message.endswith(")."):
        return problem
    parent, _, name = problem.key.rpartition(".")
    node: Any = composed
    for part in filter(None, parent.split(".")):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    chosen = ("kind", "_target_") if parent in loading.GROUPS else ()  # by the group's name, rather than by these keys
    known = [k for k in node if k not in chosen] if isinstance(node, dict) else []
    return Problem(problem.key, problem.message + schema.did_you_mean(name, known))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
