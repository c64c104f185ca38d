"""The private names and message texts of Hydra that psrun depends on (Hydra 1.3).

Every function states why no public name does. A name that is gone raises an error, at the import or at the call, and
`tests/test_hydra_internals.py` pins each of them. No other module of psrun uses one.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core import utils
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

_UNKNOWN_KEY = re.compile(r"Could not override '(?P<key>[^'@]+)")
_UNKNOWN_CHOICE = re.compile(r"Could not find '(?P<group>.+)/(?P<choice>[^/']+)'")
_OVERRIDES_IN_ITS_OWN_PLACE = re.compile(r"In '(?P<file>experiment/[^']+)': Could not override '[^']*@experiment\.")
_NOT_DELETED = re.compile(r"Could not delete (?:from config\. )?'(?P<key>[^'=]+)")
_NOT_ADDED = re.compile(r"Could not append to config\. An item is already at '(?P<key>[^']+)'")
_NOT_LOADED = re.compile(r"Could not load '(?P<group>[^']+)/(?P<choice>[^/']+)'")
_CHOSEN_TWICE = re.compile(
    r"(?:(?<=Multiple values for )|^)(?P<group>\S+?)(?: appears more than once|\. To override a value)"
)
_NOT_MERGED = re.compile(
    r"In '(?P<file>[^']+)': \w+ raised while composing config:\s+(?P<reason>.*?)\s+full_key:(?P<key>[^\n]*)\n",
    re.DOTALL,
)
_SEARCHPATH = "Overriding hydra.searchpath is only supported from the primary config"
_OF_A_DEFAULTS_LIST = re.compile(r"Invalid defaults list|in defaults|in default item|Missing group name")
# As methods of `Plugins`, by which Hydra makes a sweeper and a launcher.
MakePlugin = Callable[..., Any]


def unknown_key(text: str) -> str | None:
    """The unknown key or group in an error's text; None for other errors."""
    key = _UNKNOWN_KEY.search(text)
    return key["key"] if key else None


def unknown_choice(text: str) -> tuple[str, str] | None:
    """The group and its unknown choice in an error's text; None for other errors."""
    choice = _UNKNOWN_CHOICE.search(text) or _NOT_LOADED.search(text)
    return (choice["group"], choice["choice"]) if choice else None


def cannot_be_deleted(text: str) -> str | None:
    """The key that an argument with ~ names and that does not exist, from an error's text; None for other errors."""
    key = _NOT_DELETED.search(text)
    return key["key"] if key else None


def cannot_be_added(text: str) -> str | None:
    """The key that an argument with + names and that exists already, from an error's text; None for other errors."""
    key = _NOT_ADDED.search(text)
    return key["key"] if key else None


def choices_offered(text: str) -> list[str]:
    """The choices that an error's text about an unknown one lists."""
    return re.findall(r"^\t(\S+)$", text, flags=re.MULTILINE)


def chosen_in(text: str) -> str | None:
    """The YAML file that selects an unknown choice, from an error's text; None if it names none."""
    file = re.match(r"In '([^']+/[^']+)'", text)
    return f"{file[1]}.yaml" if file else None


def chosen_twice(text: str) -> str | None:
    """The group of which defaults lists choose twice without `override`, from an error's text; None in other errors."""
    group = _CHOSEN_TWICE.search(text)
    return group["group"] if group else None


def not_merged(text: str) -> tuple[str, str, str] | None:
    """The file that does not fit the configuration, the key in it and the reason, from an error's text."""
    found = _NOT_MERGED.search(text)
    if found is None:
        return None
    reason = re.sub(r"\s+", " ", found["reason"]).replace("HydraConf", "hydra")
    if reason == "Cannot merge DictConfig with ListConfig":
        reason = "holds a list, must hold keys with values"
    return f"{found['file']}.yaml", found["key"].strip(), reason


def sets_the_search_path(text: str) -> bool:
    """Whether an error is about `hydra.searchpath` in a file."""
    return _SEARCHPATH in text


def is_about_a_defaults_list(error: ValueError) -> bool:
    """Whether an error is about a defaults list that is no list of names and groups."""
    return _OF_A_DEFAULTS_LIST.search(str(error)) is not None


def overrides_in_its_own_place(text: str) -> str | None:
    """The experiment's file whose `override` Hydra looked up within the group `experiment`; None in other errors."""
    file = _OVERRIDES_IN_ITS_OWN_PLACE.search(text)
    return f"{file['file']}.yaml" if file else None


def is_about(error: Exception, argument: str) -> bool:
    """Whether an error is about that argument: only errors of parsing have it as an attribute."""
    merged = str(error).strip() == f"Error merging override {argument}"
    return merged or f"'{argument}'" in str(error) or getattr(error, "override", None) == argument


@contextmanager
def no_completion_within_a_value() -> Iterator[None]:
    """Suppresses the error of Hydra's completion for a key within a value that is not a mapping, such as `seed.x`.

    The error is an AssertionError; only its text distinguishes it from a fault.
    """
    try:
        yield
    except AssertionError as error:
        if not str(error).startswith("Object is not an instance of config"):
            raise


def signal_behind(error: Exception) -> BaseException | None:
    """The exception that a signal raised while Hydra opened a file: `finally: f.close()` fails, as f is not set yet."""
    raised = error.__context__
    return None if isinstance(raised, Exception) else raised


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """In this context an attribute has another value. Raises AttributeError if there is no such name."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def mode_of_the_option() -> AbstractContextManager[None]:
    """In this context only the option -m makes a sweep: Hydra looks for `hydra.mode` neither in files nor in overrides.

    Otherwise it composes the whole configuration twice, the first time for this key: a seventh of the processor time
    until psrun's own work begins. There is no switch for it.
    """
    return _replaced(Hydra, "get_mode", lambda self, config_name, overrides: None)


def files_written_by(write: Callable[[Path, str], None]) -> AbstractContextManager[None]:
    """In this context Hydra writes the files of a job's `.hydra` by `write`.

    It writes them in place. The tasks of a Slurm step share a run folder, and each composes the run: a task that
    resumes the run would read half of what another one writes.
    """

    def save(cfg: DictConfig, filename: str, output_dir: Path) -> None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write(output_dir / filename, OmegaConf.to_yaml(cfg))

    return _replaced(utils, "_save_config", save)


def configuration_shown_by(show: Callable[[DictConfig], None]) -> AbstractContextManager[None]:
    """In this context `--cfg job` passes the configuration to `show`.

    Hydra prints it as YAML. The public `hydra.compose` neither reads options nor makes `hydra:` references known.
    """

    def show_cfg(hydra: Hydra, *, config_name: str, overrides: list[str], cfg_type: str, **_: Any) -> None:
        composed = hydra.compose_config(config_name=config_name, overrides=overrides, run_mode=RunMode.RUN)
        HydraConfig.instance().set_config(composed)
        show(hydra.get_sanitized_cfg(composed, cfg_type))

    return _replaced(Hydra, "show_cfg", show_cfg)


class _Text:
    """A text that is made when it is used."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def __str__(self) -> str:
        return self._make()


def groups_listed_on_demand() -> AbstractContextManager[None]:
    """In this context --help lists the choices of groups only if the template of the help asks for them.

    Hydra copies its whole repository for each group, twice: two thirds of the processor time of --help.
    """
    listed = Hydra.format_config_groups
    return _replaced(Hydra, "format_config_groups", lambda *args, **kwargs: _Text(lambda: listed(*args, **kwargs)))


def lines_that_raise() -> AbstractContextManager[None]:
    """In this context a line that Hydra prints and that cannot be written is an error.

    Hydra prints by logging, which shows a traceback for each such line and continues.
    """

    def handle(handler: logging.Handler, record: logging.LogRecord) -> NoReturn:
        raise

    return _replaced(logging.Handler, "handleError", handle)


def is_basic_launcher(target: str) -> bool:
    """Whether a `_target_` is Hydra's own launcher; by name, as its scan for plugins makes further classes."""
    return target.rpartition(".")[2] == BasicLauncher.__name__


def is_basic_sweeper(target: str) -> bool:
    """Whether a `_target_` is Hydra's own sweeper, which searches for nothing."""
    return target.rpartition(".")[2] == BasicSweeper.__name__


def basic_launcher(
    hydra_context: HydraContext, task_function: Callable[..., Any], config: DictConfig, composed: Sequence[DictConfig]
) -> Launcher:
    """Hydra's own launcher, set up, whatever launcher the configuration names, for jobs that have been composed."""
    jobs = iter(composed)

    class Loader(ConfigLoaderImpl):
        def __init__(self) -> None:
            """Searches nothing."""

        def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
            return next(jobs)  # the launcher asks for each job once, in their order

    launcher = BasicLauncher()
    context = HydraContext(config_loader=Loader(), callbacks=hydra_context.callbacks)
    launcher.setup(hydra_context=context, task_function=task_function, config=config)
    return launcher


@contextmanager
def files_read_once() -> Iterator[None]:
    """In this context Hydra reads and parses a file of the configuration once for all that it composes.

    Else it does so for each composition, which is a third of it.
    """
    load = ConfigRepository.load_config
    read: dict[tuple[str, ...], bytes] = {}

    def load_config(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = (config_path, *(f"{each.provider} {each.path}" for each in repository.get_sources()))
        if key not in read:
            read[key] = pickle.dumps(load(repository, config_path))
        result: ConfigResult | None = pickle.loads(read[key])  # a copy, five times as fast as that of OmegaConf
        return result

    with _replaced(ConfigRepository, "load_config", load_config):
        yield


def jobs_of(overrides: Sequence[str]) -> list[list[str]]:
    """The arguments of the single jobs of a sweep, from the arguments of the sweep; what a search proposes is left out.

    Raises:
      HydraException: they cannot be read.
    """
    parsed = OverridesParser.create().parse_overrides([*overrides])
    fixed = [each for each in parsed if not each.is_sweep_override() or each.is_discrete_sweep()]
    return BasicSweeper.split_arguments(fixed, None)[0]


@contextmanager
def plugins_made_by(
    sweeper: Callable[[MakePlugin], MakePlugin], launcher: Callable[[MakePlugin], MakePlugin]
) -> Iterator[None]:
    """In this context Hydra makes sweepers and launchers by its methods as these functions wrap them.

    Hydra swallows the errors of callbacks, which are public, and knows plugins only by their installed packages.
    """
    with (
        _replaced(Plugins, "instantiate_sweeper", sweeper(Plugins.instantiate_sweeper)),
        _replaced(Plugins, "instantiate_launcher", launcher(Plugins.instantiate_launcher)),
    ):
        yield


def joblib_options(launcher: Launcher) -> dict[str, Any] | None:
    """The options that Hydra's joblib launcher passes to `joblib.Parallel`; None for any other launcher.

    The plugin's configuration has no place for functions, such as what begins a worker (hydra-joblib-launcher 1.2).
    """
    if "JoblibLauncher" not in (each.__name__ for each in type(launcher).__mro__):  # by name, as with launchers above
        return None
    options: dict[str, Any] = launcher.joblib  # type: ignore[attr-defined]
    return options
