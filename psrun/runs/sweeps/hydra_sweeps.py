"""The command line in Hydra's grammar for sweeps: Hydra's sweepers generate the jobs, its launchers place them.

psrun's own launcher stands between them: it checks all jobs before the first one starts, and runs them in parallel
itself unless another launcher is chosen. Other launchers call `job` in their own processes. Each job is a child
process: TensorFlow's servers cannot be stopped, and launchers reuse a process for several jobs.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, configure_log, run_job
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from psrun import files, process
from psrun.cli.hydra_context import hydra_context
from psrun.config import composition, groups
from psrun.config.composition import Composer
from psrun.config.groups import key_of, quoted, resume_folder
from psrun.config.run_config import SweepKeys
from psrun.errors import ConfigError, ExitCode, Problem, PsrunError, SweepError
from psrun.results import run_folder
from psrun.results.run_folder import RunFolder
from psrun.runs.sweeps import jobs, proposals
from psrun.runs.sweeps.hydra_search import SearchLoop, Space
from psrun.runs.sweeps.runner import Proposal, SweepRunner, SweepSignal
from psrun.runs.sweeps.sweep import Sweep

_PLUGINS = str(Path(__file__).parent / "plugins")
# A resumed sweep may rank its jobs in another way; a search keeps what it has values of.
_RANKS = ("sweep.metric", "sweep.mode")
_TRIALS = "sweep.num_trials"
_MAY_CHANGE = ("sweep.max_parallel", "hydra/launcher", "hydra.launcher")


def run(arguments: list[str]) -> ExitCode:
    """Runs the sweep that `arguments` describe, or resumes the sweep that `resume` names.

    Raises:
      ConfigError: the configuration of a job is invalid, or there is no sweep to resume.
      SweepError: the sweep's folder cannot be written to.
    """
    before, arguments = resumed(arguments)
    if composition.problems_of_arguments(arguments, sweeps=True):
        raise ConfigError(_problems(arguments))
    running = SweepRunner(arguments, before)
    if running.has_nothing_to_do():
        return ExitCode.DONE
    try:
        _sweep_with_advice(arguments, running)
    except (PsrunError, KeyboardInterrupt):  # Ctrl-C before the first job
        running.abandon()
        raise
    except OSError as error:
        running.abandon()
        raise SweepError(f"the sweep cannot continue: {error}") from error
    except SweepSignal as ended:
        return running.end(ended.signum)
    except composition.HYDRA_ERRORS as error:  # of a sweeper, such as a kind of parameter that it does not have
        running.abandon()
        raise ConfigError(str(error)) from error
    except ValueError as error:
        if running.has_begun:
            raise
        raise ConfigError(str(error)) from error  # options of Hydra's that cannot go together
    finally:
        running.close()
    return running.end(None) if running.has_begun else ExitCode.DONE


def _sweep_with_advice(arguments: list[str], running: SweepRunner) -> None:
    """As `_sweep`; the error names the way out if only some of the jobs have a key."""
    try:
        _sweep(arguments, running)
    except ConfigError as error:
        problems = [_of_some_choices(problem, arguments) for problem in error.problems]
        if problems == [*error.problems]:
            raise
        raise ConfigError([*dict.fromkeys(problems)]) from error


def _sweep(arguments: list[str], running: SweepRunner) -> None:
    """Lets Hydra's sweeper propose jobs, and psrun's launcher run them, as Hydra does with -m."""
    composer = Composer.create(arguments)
    try:
        config = composer.compose([*arguments, "hydra.mode=MULTIRUN"], mode=RunMode.MULTIRUN)
    except ConfigError as error:
        raise ConfigError(_problems(arguments) or [*error.problems]) from error
    HydraConfig.instance().set_config(config)
    OmegaConf.set_readonly(config.hydra, False)
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    _require_search_of_ranges(arguments, config, composer.loader)
    keys = _begin(running, config)
    SweepLauncher.sweep = (running, composer, OmegaConf.to_container(config.hydra.launcher, resolve=False))
    config.hydra.launcher = {"_target_": _registered_launcher()}
    context = hydra_context(config, composer.loader)
    given: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    context.callbacks.on_multirun_start(config=config, config_name="config")
    try:
        if keys.search is not None:
            launcher = SweepLauncher()
            launcher.setup(hydra_context=context, task_function=job, config=config)
            launcher.search(given, keys)
            return
        sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=job, config=config)
        # Sweepers compose each job to see whether it is valid; psrun's launcher does so before any job starts.
        sweeper.validate_batch_is_legal = lambda batch: None  # type: ignore[method-assign]
        sweeper.sweep(arguments=given)
    finally:
        context.callbacks.on_multirun_end(config=config, config_name="config")


def _registered_launcher() -> str:
    """Makes psrun's launcher known to Hydra, which takes only those of `hydra_plugins`; returns its name."""
    if _PLUGINS not in sys.path:
        sys.path.append(_PLUGINS)
    launcher = importlib.import_module("hydra_plugins.psrun_launcher").PsrunLauncher
    Plugins.instance().register(launcher)
    return f"{launcher.__module__}.{launcher.__name__}"


def resumed(arguments: list[str]) -> tuple[Sweep | None, list[str]]:
    """The resumed sweep, if `resume` names one, and its original arguments.

    Raises:
      ConfigError: the folder holds no sweep, or the arguments differ from the original ones.
    """
    folder = resume_folder(arguments)
    if folder is None:
        return None, arguments
    sweep = Sweep.read(folder)
    before = [each for each in sweep.arguments if key_of(each) != "hydra.sweep.dir"]
    values = {key_of(each): each.partition("=")[2] for each in before}
    # A search whose metric was mistyped knows no value yet; Optuna keeps the mode.
    is_unmeasured = all(job.metric is None and not job.rungs for job in sweep.jobs.values())
    problems = []
    changes = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key_of(key) == "resume" or argument in before:
            continue
        ranks = key in _RANKS and (not sweep.search or (key == "sweep.metric" and is_unmeasured))
        has_trials = key == _TRIALS and sweep.search not in (None, "grid")
        if ranks or has_trials or key in _MAY_CHANGE or key.startswith("hydra.launcher."):
            changes.append(argument)
            continue
        was = f"{values[key_of(key)]!r}" if key_of(key) in values else "not set"
        message = f"is {value!r}, but was {was} when the sweep started; a resumed sweep cannot change it: remove it"
        problems.append(Problem(key_of(key), message))
    if problems:
        raise ConfigError(problems)
    now = {key_of(each) for each in changes}
    unchanged = [each for each in before if key_of(each) not in now]
    kept = [each for each in changes if key_of(each) in (*_RANKS, _TRIALS)]
    replaced = {key_of(each) for each in kept}
    if _TRIALS in replaced:  # a search that is over goes on
        sweep.status = "running"
    sweep.arguments = [*(each for each in sweep.arguments if key_of(each) not in replaced), *kept]
    now_in_folder = f"hydra.sweep.dir={quoted(folder)}"
    return sweep, groups.options_first([*unchanged, *changes, now_in_folder])


def job(composed: DictConfig) -> float | None:
    """Runs the prepared job in its folder; launchers call it in other processes.

    Returns:
      The objective of a search; None if the job failed.
    """
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    sweep = Sweep.read(Path(settings.sweep.dir))
    process.ignore_terminal()
    return jobs.run(folder, sweep, elsewhere=True)


def _begin(running: SweepRunner, config: DictConfig) -> SweepKeys:
    """Creates the sweep folder; returns the keys of `sweep`.

    Raises:
      ConfigError: another sweeper than Hydra's basic one is chosen.
    """
    if not _is_basic(config.hydra.sweeper):
        message = "psrun has its own search, which can pause and resume jobs: sweep.search=tpe sweep.num_trials=20"
        raise ConfigError([Problem("hydra/sweeper", message)])
    files.require_on_disk("hydra.sweep.dir", str(config.hydra.sweep.dir))
    folder = Path(str(config.hydra.sweep.dir)).absolute()
    with read_write(config), open_dict(config):
        config.hydra.sweep.dir = str(folder)
        # Jobs are composed again, possibly in other processes, with another time and working directory.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(folder)}")
    keys: Any = OmegaConf.to_container(config.sweep)
    begun = running.begin(folder, keys=keys)
    if config.run.name is not None:  # not one of several: a job has its own then
        run_folder.write_name(folder, str(config.run.name))
    return begun


def _require_search_of_ranges(arguments: list[str], config: DictConfig, loader: ConfigLoader | None) -> None:
    """Raises ConfigError for ranges of numbers without a search."""
    if config.sweep.search is not None:
        return
    ranges = [each for each in composition.parsed_overrides(arguments, loader) if each.is_interval_sweep()]
    if ranges:
        message = "is a range, of which only a search takes values: add sweep.search=tpe sweep.num_trials=20, or list"
        raise ConfigError([Problem(str(each.get_key_element()), f"{message} values") for each in ranges])


def _is_basic(plugin: DictConfig) -> bool:
    """Whether a sweeper or a launcher is Hydra's own, whatever its choice is called."""
    return str(plugin["_target_"]).rpartition(".")[2] in ("BasicSweeper", "BasicLauncher")


class SweepLauncher(Launcher):
    """Checks the jobs, then runs them in parallel, or lets the launcher do so that the user has chosen.

    Attributes:
      sweep: the sweep of this process, what composes its jobs, and the node of the launcher that the user has chosen.
    """

    sweep: tuple[SweepRunner, Composer, Any]

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        self._running, self._composer, chosen = self.sweep
        self._context = hydra_context
        self._config = config
        self._inner: Launcher | None = None
        with read_write(config), open_dict(config):
            config.hydra.launcher = chosen
        if _is_basic(config.hydra.launcher):
            return
        plugins = Plugins.instance()
        inner = plugins.instantiate_launcher(hydra_context=hydra_context, task_function=task_function, config=config)
        if hasattr(inner, "joblib"):  # its options for joblib.Parallel; workers would outlive a killed sweep
            inner.joblib.update(initializer=process.begin_worker, initargs=(os.getpid(),))
            self._running.resources.callback(_end_workers)
        if type(inner).__name__ == "SlurmLauncher":  # of submitit
            logging.getLogger("submitit").addFilter(_NoAccounting(self._running.warn))
            params: Any = getattr(inner, "params", {})
            if params.get("cpus_per_task") is None:
                text = (
                    "hydra.launcher.cpus_per_task is not set: all processes of a job share what Slurm gives by default"
                )
                self._running.warn(f"{text}, mostly one core")
        self._inner = inner

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        composed = [self._composed(initial_job_idx + i, given) for i, given in enumerate(job_overrides)]
        self._running.prepare([self._proposed(each, given) for each, given in zip(composed, job_overrides)])
        if self._running.plans:
            self._running.plan()
            return [self._in_folder(each, lambda folder: None) for each in composed]
        if self._inner is None:
            returns: Sequence[JobReturn] = self._at_once(composed)
        else:
            returns = _launched(self._inner, job_overrides, initial_job_idx)
        self._running.look()
        return returns

    def search(self, arguments: Sequence[str], keys: SweepKeys) -> None:
        """Runs the jobs that a search proposes.

        Raises:
          ConfigError: its space or a value is wrong, or Optuna is not installed; lists all problems.
        """
        assert keys.search is not None
        space = Space.of(arguments, keys.search, self._composer.loader)
        problems = proposals.problems(keys.search, space.parameters)
        if problems:
            raise ConfigError(problems)
        is_grid = keys.search == "grid"  # all of its jobs are checked before the first one starts
        examples = [*space.examples(most=1)] if is_grid else [*space.examples()]
        for example in examples:
            problems += self._mistakes_of(example)
        problems = space.explained(problems)
        if self._inner is not None and keys.max_parallel == "auto":
            message = "is auto, which counts the cores of this machine; with a launcher of Hydra, set it to a number"
            problems.append(Problem("sweep.max_parallel", message))
        if keys.halving.factor is not None and any(each.key == "trainer.epochs" for each in space.parameters):
            message = "varies, but sweep.halving compares configurations after the same epochs; set one number"
            problems.append(Problem("trainer.epochs", message))
        if problems:
            raise ConfigError([*dict.fromkeys(problems)])
        values = composition.values(self._composer.compose(examples[0]))
        epochs = values["trainer"]["epochs"] if keys.halving.factor is not None else None
        SearchLoop(self._running, self, space, keys, epochs=epochs, seed=values["seed"]).run()

    def _mistakes_of(self, arguments: Sequence[str]) -> Sequence[Problem]:
        try:
            return composition.problems_of_values(composition.values(self._composer.compose(arguments)))
        except ConfigError as error:
            return error.problems

    def check(self, jobs: Sequence[tuple[int, Sequence[str]]]) -> None:
        self._running.prepare([self._proposed(self._composed(number, given), given) for number, given in jobs])

    def start(self, number: int, given: Sequence[str], *, pause_epoch: int | None, pool: ThreadPoolExecutor) -> Future:
        composed = self._composed(number, given)
        self._running.prepare([self._proposed(composed, given)])
        folder = self._running.sweep.folder(self._running.sweep.jobs[number])
        RunFolder(folder).pause_after(pause_epoch)
        if self._inner is not None:
            return pool.submit(_launched, self._inner, [given], number)
        self._running.start_fork_server()
        self._in_folder(composed, lambda folder: None)  # Hydra writes its files there
        return pool.submit(self._running.run, folder)

    def _at_once(self, composed: Sequence[DictConfig]) -> list[JobReturn]:
        running = self._running
        futures: list[Future] = []
        running.start_fork_server()
        with ThreadPoolExecutor(running.sweep.max_parallel) as pool:

            def submit(folder: Path) -> None:
                futures.append(pool.submit(running.run, folder))

            returns = [self._in_folder(each, submit) for each in composed]
        for each, future in zip(returns, futures):
            each.return_value = future.result()
        return returns

    def _in_folder(self, config: DictConfig, work: Callable[[Path], None]) -> JobReturn:
        """Lets Hydra create the folder of a job and calls `work` on it."""

        def task(own: DictConfig) -> None:
            work(Path(HydraConfig.get().runtime.output_dir))

        return run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", self._context)

    def _composed(self, number: int, given: Sequence[str]) -> DictConfig:
        """The configuration of a job. The values of the sweep that are computed once, such as the time, hold in it."""
        of_hydra: Any = OmegaConf.to_container(self._config.hydra.overrides.hydra)
        composed = self._composer.compose([*of_hydra, *given])
        OmegaConf.copy_cache(from_config=self._config, to_config=composed)
        with read_write(composed), open_dict(composed):
            composed.hydra.job.id = str(number)
            composed.hydra.job.num = number
        return composed

    def _proposed(self, composed: DictConfig, given: Sequence[str]) -> Proposal:
        """The job as Hydra has it right before running it."""
        instance = HydraConfig.instance()
        previous = instance.cfg
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
                return Proposal(number, list(given), folder, composition.plain(own), unresolved)
        finally:
            instance.cfg = previous
            OmegaConf.set_readonly(composed.hydra, False)  # as it was composed


def _launched(inner: Launcher, jobs: Sequence[Sequence[str]], first: int) -> Sequence[JobReturn]:
    """Runs jobs by a launcher of Hydra's. Raises SweepError if submitit cannot submit them by sbatch."""
    try:
        return inner.launch(jobs, first)
    except RuntimeError as error:
        has_failed = isinstance(error.__cause__, subprocess.CalledProcessError)
        if not has_failed and "srun" not in str(error):  # which is missing
            raise
        reason = " ".join(str(error).split()) or str(error.__cause__)
        raise SweepError(f"Slurm did not take the jobs of the sweep: {reason}") from error


class _NoAccounting(logging.Filter):
    """Replaces submitit's message at each look, where Slurm keeps no accounts, by one warning."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._warn = warn
        self._has_warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        if "Bypassing sacct error" not in record.getMessage():
            return True
        if not self._has_warned:
            self._has_warned = True
            self._warn("Slurm has no accounts of jobs (sacct): submitit cannot see that a job was killed")
        return False


def _problems(arguments: list[str]) -> list[Problem]:
    """All problems of the jobs of a sweep, without duplicates."""
    refused = composition.problems_of_arguments(arguments, sweeps=True)
    problems = dict.fromkeys(refused.values())
    composer = Composer.create(arguments)
    options, _ = groups.split_arguments(arguments)
    for argument in refused:  # each of its values may be wrong
        if argument.startswith("+"):  # all of them are
            continue
        with contextlib.suppress(HydraException):  # one that cannot be read
            for each in _expanded([*options, argument], composer.loader):
                problems.update(dict.fromkeys(composition.problems_of_arguments(each, sweeps=False).values()))
    known: set[str] = set()
    for each in _expanded(composition.without_mistakes(arguments, refused), composer.loader):
        try:
            found = composition.problems_of_values(composition.values(composer.compose(each)))
        except ConfigError as error:  # a key that does not exist is one mistake, whatever its values
            found = [problem for problem in error.problems if problem.key not in known]
            known |= {problem.key for problem in error.problems if problem.message.startswith("no such key")}
        problems.update(dict.fromkeys(found))
    return list(dict.fromkeys(_of_some_choices(problem, arguments) for problem in problems))


def _of_some_choices(problem: Problem, arguments: list[str]) -> Problem:
    """The problem; of a key that only some of several choices have, with how to sweep over them."""
    if not problem.message.startswith(("no such key", "exists already")):
        return problem
    group, _, name = problem.key.partition(".")
    swept = [each for each in arguments if each.partition("=")[0] == group]
    chosen = swept[-1].partition("=")[2].split(",") if swept else []
    known = groups.choices(arguments).get(group, {})
    having: list[str] = []
    lacking: list[str] = []
    for choice in chosen:
        if choice not in known:
            return problem
        (having if name in groups.keys(known[choice]) else lacking).append(choice)
    if not having or not lacking:
        return problem
    own = f"is a key of {group}={','.join(having)}, and not of {','.join(lacking)}"
    each = f"write a sweep for each choice, with hydra.sweep.dir=runs/STUDY/{having[0]} and so on"
    return Problem(problem.key, f"{own}; {each}; psrun report runs/STUDY compares them")


def _expanded(arguments: list[str], loader: ConfigLoader | None = None, *, most: int = 50) -> list[list[str]]:
    """The arguments of single jobs, without the parameters of a search; `loader` knows the choices of `glob`."""
    options, _ = groups.split_arguments(arguments)
    swept = [each for each in composition.parsed_overrides(arguments, loader) if not each.is_interval_sweep()]
    values = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_discrete_sweep()
        else [str(each.input_line)]
        for each in swept
    ]
    return [[*options, *each] for each in itertools.islice(itertools.product(*values), most)]


def _end_workers() -> None:
    """Ends the idle worker processes of joblib."""
    loky: Any = sys.modules.get("joblib.externals.loky")
    if loky is not None:
        loky.get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)
        atexit._run_exitfuncs()  # joblib removes its files there, and psrun exits without running atexit functions
