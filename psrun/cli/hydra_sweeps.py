"""The boundary to Hydra for sweeps: Hydra's sweepers generate the jobs, its launchers place them, psrun runs them.

Hydra's basic launcher, the default, runs jobs sequentially; psrun replaces it and runs jobs in parallel. Other
launchers call `job` in their own processes. Each job is a child process: TensorFlow's servers cannot be stopped, and
launchers reuse a process for several jobs.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from psrun import process
from psrun.config import arguments as arguments_of_a_run
from psrun.config import compose, hydra_internals
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError, SweepError
from psrun.launch.sweeps import jobs
from psrun.launch.sweeps.runner import Proposal, SweepRunner, SweepSignal
from psrun.results import recorded_config
from psrun.results.recorded_config import key_of
from psrun.results.sweep import Sweep

_RANKS = ("sweep.metric", "sweep.mode")  # a resumed sweep may rank its jobs in another way; a search has begun with one
_MAY_CHANGE = ("sweep.max_parallel", "hydra/launcher", "hydra.launcher")


def run(arguments: list[str]) -> ExitCode:
    """Runs the sweep that `arguments` describe, or resumes the sweep that `resume` names.

    Raises:
      ConfigError: the configuration of a job is invalid, or there is no sweep to resume.
      SweepError: the sweep's folder cannot be written to.
    """
    before, arguments = resumed(arguments)
    if arguments_of_a_run.problems(arguments, sweeps=True):
        raise ConfigError(_problems(arguments))
    running = SweepRunner(arguments, before)
    if running.has_nothing_to_do():
        return ExitCode.DONE
    sys.argv[1:] = arguments
    try:
        with _hooks(running):
            compose.run(lambda composed: None)
    except compose.HYDRA_ERRORS as error:
        running.abandon()
        raise ConfigError(_problems(arguments) or [compose.blame(error, arguments)[1]]) from error
    except PsrunError:
        running.abandon()
        raise
    except OSError as error:
        running.abandon()
        raise SweepError(f"the sweep cannot continue: {error}") from error
    except SweepSignal as ended:
        return running.end(ended.signum)
    except ValueError as error:
        if not running.has_begun:  # options of Hydra's that cannot go together
            raise ConfigError(str(error)) from error
        if not running.is_fruitless():  # Optuna has no best trial where none was completed
            raise
    finally:
        running.close()
        _end_workers()
    return running.end(None) if running.has_begun else ExitCode.DONE


def resumed(arguments: list[str]) -> tuple[Sweep | None, list[str]]:
    """The resumed sweep, if `resume` names one, and its original arguments.

    Raises:
      ConfigError: the folder holds no sweep, or the arguments differ from the original ones.
    """
    folder = recorded_config.folder_of(arguments)
    if folder is None:
        return None, arguments
    sweep = Sweep.read(folder)
    before = [each for each in sweep.arguments if key_of(each) != "hydra.sweep.dir"]
    values = {key_of(each): each.partition("=")[2] for each in before}
    problems, changes = [], []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key_of(key) == "resume" or argument in before:
            continue
        ranks = key in _RANKS and not sweep.search
        if ranks or key in _MAY_CHANGE or key.startswith("hydra.launcher."):
            changes.append(argument)
            continue
        was = f"{values[key_of(key)]!r}" if key_of(key) in values else "not set"
        message = f"is {value!r}, but was {was} when the sweep started; a resumed sweep cannot change it: remove it"
        problems.append(Problem(key_of(key), message))
    if problems:
        raise ConfigError(problems)
    now = {key_of(each) for each in changes}
    unchanged = [each for each in before if key_of(each) not in now]
    ranking = [each for each in changes if key_of(each) in _RANKS]
    replaced = {key_of(each) for each in ranking}
    sweep.arguments = [*(each for each in sweep.arguments if key_of(each) not in replaced), *ranking]
    now_in_folder = f"hydra.sweep.dir={recorded_config.quoted(folder)}"
    return sweep, arguments_of_a_run.options_first([*unchanged, *changes, now_in_folder])


def job(composed: DictConfig) -> float | None:
    """Runs the prepared job in its folder; launchers call it in other processes.

    Returns:
      The objective of a search; None if the job failed.
    """
    settings = HydraConfig.get()
    folder, sweep = Path(settings.runtime.output_dir), Sweep.read(Path(settings.sweep.dir))
    jobs.ignore_interrupts()  # the sweep forwards them
    return jobs.run(folder, sweep, elsewhere=True)


@contextmanager
def _hooks(running: SweepRunner) -> Iterator[None]:
    """Patches Hydra's plugins in the context: psrun sets up the sweepers and controls the launchers."""

    def making_sweepers(make: hydra_internals.MakePlugin) -> hydra_internals.MakePlugin:
        def sweeper(plugins: Plugins, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> Any:
            _begin(running, config)
            instance = make(plugins, hydra_context=hydra_context, task_function=job, config=config)
            # Sweepers compose each job to see whether it is valid; psrun's launcher does so before any job starts.
            instance.validate_batch_is_legal = lambda batch: None
            logging.getLogger("optuna").setLevel(logging.WARNING)  # the sweeper sets the level when it is created
            return instance

        return sweeper

    def making_launchers(make: hydra_internals.MakePlugin) -> hydra_internals.MakePlugin:
        def launcher(plugins: Plugins, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> Launcher:
            inner = make(plugins, hydra_context=hydra_context, task_function=job, config=config)
            workers = hydra_internals.joblib_options(inner)
            if workers is not None:  # without this they outlive a killed sweep by five minutes
                workers.update(initializer=process.end_with_parent, initargs=(os.getpid(),))
            return _Launcher(inner, running, hydra_context, config)

        return launcher

    with hydra_internals.plugins_made_by(making_sweepers, making_launchers):
        yield


def _begin(running: SweepRunner, config: DictConfig) -> None:
    """Creates the sweep folder and configures a search sweeper by the keys of `sweep`."""
    folder = Path(str(config.hydra.sweep.dir)).absolute()
    with read_write(config), open_dict(config):
        config.hydra.sweep.dir = str(folder)
        # Jobs are composed again, possibly in other processes, with another time and working directory.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={recorded_config.quoted(folder)}")
    search = not hydra_internals.is_basic_sweeper(str(config.hydra.sweeper._target_))
    keys: Any = OmegaConf.to_container(config.sweep)
    running.begin(folder, search=search, keys=keys)
    if search:
        given_keys = {key_of(override) for override in config.hydra.overrides.hydra}
        with read_write(config), open_dict(config):
            running.add(_settle(config.hydra.sweeper, given_keys, keys["mode"]))


def _settle(sweeper: DictConfig, given_keys: set[str], mode: str | None) -> list[str]:
    """Makes a search tolerate failed trials and resumable; returns the arguments that a resumed search needs.

    Raises:
      ConfigError: the direction contradicts `sweep.mode`.
    """
    added = []
    if "max_failure_rate" in sweeper and "hydra.sweeper.max_failure_rate" not in given_keys:
        sweeper.max_failure_rate = 1.0
    if "direction" in sweeper and mode is not None:
        direction = {"max": "maximize", "min": "minimize"}[mode]
        configured = str(getattr(sweeper.direction, "name", sweeper.direction))
        if "hydra.sweeper.direction" in given_keys and configured != direction:
            raise ConfigError(
                [Problem("hydra.sweeper.direction", f"is {configured}, but sweep.mode is {mode}; remove it")]
            )
        sweeper.direction = direction
    if OmegaConf.select(sweeper, "sampler") is not None and "seed" in sweeper.sampler and sweeper.sampler.seed is None:
        # A fixed seed makes proposals reproducible, so that a resumed search can replay the completed trials.
        sweeper.sampler.seed = int.from_bytes(os.urandom(3), "big")
        added.append(f"hydra.sweeper.sampler.seed={sweeper.sampler.seed}")
    return added


class _Launcher(Launcher):
    """Wraps a launcher: validates the jobs before launch and limits parallel jobs."""

    def __init__(self, inner: Launcher, running: SweepRunner, hydra_context: HydraContext, config: DictConfig) -> None:
        self._inner, self._running, self._context, self._config = inner, running, hydra_context, config

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        """Does nothing: the inner launcher is already set up."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        with hydra_internals.files_read_once():
            composed = [self._composed(initial_job_idx + i, overrides) for i, overrides in enumerate(job_overrides)]
        proposed = [self._proposed(each, overrides) for each, overrides in zip(composed, job_overrides)]
        self._running.prepare(proposed)

        def in_turn(work: Callable[[Path], None]) -> Sequence[JobReturn]:
            """Lets Hydra create each job's folder and calls `work` on it."""

            def task(composed: DictConfig) -> None:
                work(Path(HydraConfig.get().runtime.output_dir))

            launcher = hydra_internals.basic_launcher(self._context, task, self._config, composed)
            return launcher.launch(job_overrides, initial_job_idx)

        if self._running.plans:
            self._running.plan()
            return in_turn(lambda folder: None)
        if hydra_internals.is_basic_launcher(str(self._config.hydra.launcher._target_)):
            returns = self._at_once(in_turn)
        else:
            returns = self._inner.launch(job_overrides, initial_job_idx)
        self._running.look()
        return returns

    def _at_once(self, in_turn: Callable[[Callable[[Path], None]], Sequence[JobReturn]]) -> Sequence[JobReturn]:
        running, futures = self._running, list[Future]()
        running.start_fork_server()
        with ThreadPoolExecutor(running.sweep.max_parallel) as pool:
            returns = in_turn(lambda folder: futures.append(pool.submit(running.run, folder)))
        for each, future in zip(returns, futures):
            each.return_value = future.result()
        return returns

    def _composed(self, number: int, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a job. Hydra composes a job each time anew, which takes a tenth of a second."""
        composed = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with read_write(composed), open_dict(composed):
            composed.hydra.job.id = number
            composed.hydra.job.num = number
        return composed

    def _proposed(self, composed: DictConfig, overrides: Sequence[str]) -> Proposal:
        """The job as Hydra has it right before running it."""
        previous, instance = HydraConfig.instance().cfg, HydraConfig.instance()
        try:
            with read_write(composed), open_dict(composed):
                instance.set_config(composed)
                folder = Path(str(composed.hydra.sweep.dir), str(composed.hydra.sweep.subdir))
                with read_write(composed.hydra.runtime), open_dict(composed.hydra.runtime):
                    composed.hydra.runtime.output_dir = str(folder)
                instance.set_config(composed)
                own = composed.copy()
                del own["hydra"]
                unresolved = OmegaConf.to_container(own, resolve=False)
                number = composed.hydra.job.num
                return Proposal(number, list(overrides), folder, compose.plain(own), unresolved)
        finally:
            instance.cfg = previous
            OmegaConf.set_readonly(composed.hydra, False)  # as it was composed


def _problems(arguments: list[str]) -> list[Problem]:
    """All problems of the jobs of a sweep, without duplicates."""
    refused = arguments_of_a_run.problems(arguments, sweeps=True)
    problems = dict.fromkeys(refused.values())
    unknown_keys: set[str | None] = set()
    checked: set[tuple[str, ...]] = set()

    def without_unknown_keys(job: list[str]) -> tuple[str, ...]:
        return tuple(argument for argument in job if key_of(argument) not in unknown_keys)

    with hydra_internals.files_read_once():
        for each in _expanded([argument for argument in arguments if argument not in refused]):
            if without_unknown_keys(each) in checked:  # differs in the value of a key that does not exist
                continue
            composed = compose.compose(each)
            if isinstance(composed, Exception):
                problems.update(dict.fromkeys(compose.all_problems(each, composed)))
                unknown_keys.add(hydra_internals.unknown_key(str(composed)))
                checked.add(without_unknown_keys(each))
    return list(problems)


def _expanded(arguments: list[str], *, most: int = 50) -> list[list[str]]:
    """The arguments of single jobs, without the parameters of a search; empty if they cannot be parsed."""
    options, overrides = arguments_of_a_run.split(arguments)
    try:
        batch = hydra_internals.jobs_of(overrides)
    except compose.HYDRA_ERRORS:
        return []
    return [[*options, *each] for each in batch[:most]]


def _end_workers() -> None:
    """Ends the idle worker processes of joblib."""
    loky: Any = sys.modules.get("joblib.externals.loky")
    if loky is not None:
        loky.get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)
        atexit._run_exitfuncs()  # joblib removes its files there, and psrun exits without running atexit functions
