"""The edge to Hydra: composes the configuration and hands it over as plain values. Nothing beyond it sees Hydra."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from psrun import environment, execution, loading, schema
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError
from psrun.reporting.run_folder import CONFIG, write_config

_UNKNOWN_KEY = re.compile(r"Could not (?:override|append to|delete from) (?:config )?'(?P<key>[^'@]+)")
_UNKNOWN_CHOICE = re.compile(r"Could not find '(?P<group>.+)/(?P<choice>[^/']+)'")
_HYDRA_ERRORS = (HydraException, OmegaConfBaseException)


def run(started_s: float) -> ExitCode:
    """Runs what `sys.argv` says in Hydra's grammar: one run, or with -m a sweep of them.

    Raises:
      ConfigError: the configuration cannot be composed; with all that is wrong with it.
    """
    # Two runs started in the same second do not share a folder.
    OmegaConf.register_new_resolver("short_id", lambda: secrets.token_hex(2), use_cache=True, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors to us instead of printing them and ending with 1
    sys.path.append(os.getcwd())  # where a person's own models and data are named from
    said, codes = sys.argv[1:], []
    errors: list[PsrunError] = []

    def job(composed: DictConfig) -> None:
        try:
            codes.append(_job(composed, said, started_s))
        except PsrunError as error:  # kept from Hydra, which would print words of its own; other jobs of a sweep go on
            errors.append(error)

    sys.argv[1:] = resumed(_options_first(sys.argv[1:]))
    try:
        _hydra_main(job)
    except _HYDRA_ERRORS as error:
        raise ConfigError(_all_problems(error)) from error
    if errors:
        raise errors[0]
    return codes[0] if len(codes) == 1 else ExitCode.DONE


def _hydra_main(work: Any) -> None:
    def job(composed: DictConfig) -> None:
        work(composed)

    hydra.main(version_base="1.3", config_path="pkg://psrun.conf", config_name="config")(job)()


def _job(composed: DictConfig, said: list[str], started_s: float) -> ExitCode:
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir).absolute()
    if settings.mode == RunMode.MULTIRUN:
        return _in_a_process_of_its_own(composed, folder)
    plain = _plain(composed)
    if composed.resume:
        plain = as_recorded(plain, OmegaConf.to_container(composed, resolve=False), folder, said)
    return execution.execute(plain, folder, _said(settings), started_s=started_s)


def _options_first(arguments: list[str]) -> list[str]:
    """Hydra's parser wants options, such as --config-dir FOLDER, on one side of all KEY=VALUE; people do not."""
    options: list[str] = []
    others: list[str] = []
    value = False
    for argument in arguments:
        option = argument.startswith("-")
        (options if option or (value and "=" not in argument) else others).append(argument)
        value = option
    return options + others


def resumed(arguments: list[str]) -> list[str]:
    """The arguments of a run that goes on: those that it was started with, as far as no other is given now.

    Raises:
      ConfigError: there is no run where `resume` says.
    """
    given = next((a.partition("=")[2] for a in arguments if a.startswith("resume=")), "null")
    if given == "null":
        return arguments
    folder = Path(given.strip("'\"")).expanduser().absolute()
    if any(a.startswith("hydra.run.dir=") or a in ("-m", "--multirun") for a in arguments):
        raise ConfigError([Problem("resume", "a run goes on in its own folder: without hydra.run.dir and -m")])
    try:
        recorded = json.loads((folder / "run.json").read_text(encoding="utf-8"))["overrides"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError([Problem("resume", f"there is no run in {folder} ({error})")]) from error
    now = {_key(argument) for argument in arguments}
    before = [argument for argument in recorded if _key(argument) not in now]
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    others = [a for a in arguments if not a.startswith("resume=")]
    others += [f"resume='{quoted}'", f"hydra.run.dir='{quoted}'"]
    if any(a.startswith("mode=") and a != "mode=train" for a in arguments):
        others.append("hydra.output_subdir=null")  # what is there of the run stays as it is
    for _ in recorded:  # another choice of a group may not know the keys of the one before
        composed = _compose([*others, *before])
        culprit = _blame(composed, before)[0] if isinstance(composed, Exception) else None
        if culprit is None:
            break
        before.remove(culprit)
    return [*others, *before]


def as_recorded(composed: Any, unresolved: Any, folder: Path, said: list[str]) -> dict[str, Any]:
    """The configuration of the run in `folder` as it was recorded, but for what `said` names now.

    What the YAML files say may have changed since, and those of a --config-dir may not even be at hand.

    Args:
      unresolved: as `composed`, with references as they stand; what refers to something else goes with it.
    """
    if not (folder / CONFIG).exists():
        return composed
    recorded: Any = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    now = {_key(argument) for argument in said}
    if "experiment" in now:  # which may choose anything
        return composed
    now |= {"data"} if "model" in now else set()
    return {
        name: _merged(node, unresolved[name], recorded[name], name, now)
        if name in loading.RECORDED and name in recorded
        else node
        for name, node in composed.items()
    }


def _merged(here: Any, refers: Any, there: Any, key: str, now: set[str]) -> Any:
    """The recorded value `there` of a key, but for what is named in `now` or refers to something else."""
    if key in now or (isinstance(refers, str) and "${" in refers):
        return here
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there) and isinstance(refers, list):
        return [_merged(*parts, f"{key}[{index}]", now) for index, parts in enumerate(zip(here, refers, there))]
    named = any(name.startswith(f"{key}.") for name in now)
    if not isinstance(here, dict) or not isinstance(there, dict):
        return here if named else there
    other = any(here.get(name) != there.get(name) for name in ("kind", "_target_"))
    merged = {}
    for name in [*here, *(name for name in there if name not in here)]:
        inner = f"{key}.{name}"
        if name in here and name in there:
            merged[name] = _merged(here[name], refers[name], there[name], inner, now)
        elif name in there and inner not in now:
            merged[name] = there[name]
        elif name in here and (not other or any(f"{each}.".startswith(f"{inner}.") for each in now)):
            merged[name] = here[name]
    return merged


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+~")


def _plain(composed: DictConfig) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    return plain


def _said(settings: Any) -> list[str]:
    return [override for override in settings.overrides.task if _key(override) != "resume"]


def _in_a_process_of_its_own(composed: DictConfig, folder: Path) -> ExitCode:
    """Runs a job of a sweep as a child process: TensorFlow's servers cannot be stopped, nor clusters be had in turn.

    Raises:
      PsrunError: the job failed.
    """
    if not (folder / "run.json").exists():  # else it says so
        write_config(folder, _plain(composed))
    code = subprocess.run(environment.task_command(folder), check=False).returncode
    if code:
        raise PsrunError(f"the job in {folder} ended with exit code {code}; the others were run")
    return ExitCode.DONE


def _all_problems(first: Exception) -> list[Problem]:
    """Everything wrong with `sys.argv`: Hydra tells the first thing; what it names is taken out and asked again."""
    arguments, problems, error = sys.argv[1:], [], first
    for _ in range(len(arguments) + 1):
        culprit, problem = _blame(error, arguments)
        problems.append(problem)
        if culprit is None:
            return problems
        arguments.remove(culprit)
        composed = _compose(arguments)
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


def _compose(arguments: list[str]) -> dict[str, Any] | Exception:
    """What Hydra makes of `arguments`, or why it does not."""
    kept, printed = sys.argv, io.StringIO()
    sys.argv = [kept[0], *(a for a in arguments if a not in ("-m", "--multirun")), "--cfg", "job"]
    GlobalHydra.instance().clear()
    try:
        with contextlib.redirect_stdout(printed):
            _hydra_main(lambda composed: None)
        plain: Any = OmegaConf.to_container(OmegaConf.create(printed.getvalue()), throw_on_missing=False)
        return plain
    except _HYDRA_ERRORS as error:
        return error
    finally:
        sys.argv = kept


def _blame(error: Exception, arguments: list[str]) -> tuple[str | None, Problem]:
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
    known = [k for k in node if k not in ("kind", "_target_")] if isinstance(node, dict) else []
    return Problem(problem.key, problem.message + schema.did_you_mean(name, known))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
