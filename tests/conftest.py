"""What tests share: composing a configuration as the command does, and one in-process cluster for all of them."""

from __future__ import annotations

import functools
import gc
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bounds import BOUND_S
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from rich.console import Console
from support import IN_PROCESS, MODELS, REPOSITORY, TRAINING, environment, run_config

from psrun import process
from psrun.config.run_config import TAKE_A_RUN
from psrun.tf_internals import modules

pytest_plugins = ["cluster_fixtures", "evaluation_fixtures", "messages"]

for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
    os.environ.pop(name, None)  # commands have Python's defaults, as those of users
process.prepare()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
for name, value in IN_PROCESS.items():
    os.environ.setdefault(name, value)


@pytest.fixture
def warnings_of_tensorflow():
    """The warnings that TensorFlow logs."""
    import tensorflow as tf

    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def compositions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each composition by Hydra, in their order."""

    def counted(*arguments: Any, **keywords: Any) -> Any:
        seen.append(arguments)
        return compose(*arguments, **keywords)

    seen: list[Any] = []
    compose = ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)
    return seen


HAVE_A_FOLDER = frozenset({"reproduce", *TAKE_A_RUN})  # commands that take the folder of a run


@dataclass(frozen=True)
class Command:
    """A finished psrun command."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """What psrun keeps for later runs goes where the tests' other files do."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def psrun(tmp_path: Path):
    """Runs psrun in its own folder, as a person would, and waits for it with a bound."""

    def run(*arguments: str, folder: str = "run", **environment_: str) -> Command:
        began_s = time.monotonic()
        here = tmp_path / folder
        overrides = (
            [*arguments]
            if any(a.startswith(("-", "resume=")) for a in arguments) or HAVE_A_FOLDER.intersection(arguments[:1])
            else [*arguments, f"hydra.run.dir={here}"]
        )
        ended = subprocess.run(
            [sys.executable, "-m", "psrun", *overrides],
            cwd=tmp_path, capture_output=True, text=True, timeout=BOUND_S, env=environment(**environment_),
            check=False,
        )  # fmt: skip
        return Command(ended.returncode, ended.stdout, ended.stderr, here, time.monotonic() - began_s)

    return run


@pytest.fixture
def shell(tmp_path):
    """Runs lines in a folder, with the `psrun` and `python` of these tests."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, arguments in (("psrun", "-m psrun"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (commands / name).chmod(0o755)

    def run(lines: str, folder: Path) -> str:
        paths = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            ["bash", "-ec", lines],
            cwd=folder, capture_output=True, text=True, timeout=BOUND_S, env={**os.environ, **paths}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # Chromium's own sandbox is not to be had in containers; the page is ours.
        launched_browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched_browser
        launched_browser.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`.ci/run` names the folders of these tiers: a test elsewhere would run nowhere."""
    for item in items:
        of_tasks = any(map(item.get_closest_marker, ("cluster", "slurm", "ray")))
        of_pages = item.get_closest_marker("browser") is not None
        folder = item.path.parent.name
        if (of_tasks and folder != "system") or (of_pages and folder not in ("system", "contract")):
            raise pytest.UsageError(f"{item.nodeid}: .ci/run looks elsewhere for its tier")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a part that is not here, and sets the thread pools of a cluster in this process.

    They must be set before any test makes TensorFlow do anything.
    """
    for mark in item.iter_markers("part"):
        if not (REPOSITORY / "psrun" / mark.args[0]).is_dir():
            pytest.skip(f"psrun/{mark.args[0]} is not here")
    if any(item.get_closest_marker(marker) for marker in ("tensorflow", "inprocess", "thorough")):
        _configure_threads()


def pytest_sessionfinish() -> None:
    modules.remove_generated_files()  # TensorFlow leaves their bytecode


@functools.cache
def _configure_threads() -> None:
    gc.disable()
    from psrun.cluster import strategy

    gc.freeze()  # as in every process of a run that imports TensorFlow: see `psrun.roles.table`
    gc.enable()
    strategy.prepare(run_config("cluster=inprocess").cluster, None)


@pytest.fixture(scope="session")
def cluster_spec():
    """Two workers and two parameter servers in this process. TensorFlow cannot stop them: one set for all tests."""
    from psrun.cluster import strategy

    return {n: strategy.start_in_process(num_workers=n, num_ps=2) for n in (1, 2)}


@pytest.fixture(scope="session")
def replicated_spec():
    """One worker with three parts of the CPU, which stand for GPUs, and two parameter servers."""
    from psrun.cluster import strategy

    return strategy.start_in_process(num_workers=1, num_ps=2, num_replicas=3)


@pytest.fixture(scope="session")
def trainings(cluster_spec, images, request):
    """Makes what `train` is, for runs in a given folder: for fixtures whose training several tests share."""
    import tf_keras

    from psrun.cluster import strategy
    from psrun.cluster.placement import RULES
    from psrun.process import Stop
    from psrun.results.console import ConsoleSink
    from psrun.results.run_folder import RunFolder
    from psrun.roles import chief
    from psrun.roles.table import TaskContext

    def run(
        path: Path, *overrides: str, num_workers: int = 2, into: RunFolder | None = None
    ) -> tuple[dict[str, Any], RunFolder]:
        pieces = dict(override.partition("=")[::2] for override in overrides)
        model = pieces.get("model", "embedding")
        own = any(override.startswith(("data._target_=", "experiment=")) for override in overrides)
        small = [] if own else [*MODELS[model], *([f"data.path={images}"] if model == "cnn" else [])]
        config = run_config(*TRAINING, *small, *overrides)
        folder = into or RunFolder.create(path / f"run{len(list(path.glob('run*')))}", raw={})

        def connect(cluster, partitioner, topology):
            if not config.cluster.has_parameter_servers:
                return strategy.connect(cluster, partitioner)
            replicas = cluster.replicas_per_worker
            spec = cluster_spec[num_workers] if replicas is None else request.getfixturevalue("replicated_spec")
            return strategy.parameter_servers(spec, partitioner, RULES[cluster.placement], replicas)

        console = ConsoleSink(Console(file=io.StringIO(), width=200))
        tf_keras.backend.reset_uids()  # names are those of a process of its own
        chief.run(config, TaskContext(folder, console, time.time(), connect=connect), Stop())
        return json.loads((folder.path / "run.json").read_text()), folder

    return lambda path: functools.partial(run, path)


@pytest.fixture
def train(trainings, tmp_path):
    """Trains in this process as the coordinator does; returns run.json and the run folder.

    Args:
      into: the folder of a run that is to go on; None for a new one.
    """
    return trainings(tmp_path)


@pytest.fixture
def predict(cluster_spec):
    """Predicts in this process; returns what it prints."""
    from psrun.cluster import strategy
    from psrun.results.console import ConsoleSink
    from psrun.roles import checkpoint_modes
    from psrun.roles.table import TaskContext

    def run(folder, *overrides: str) -> str:
        config = run_config(*overrides, "mode=predict", f"resume={folder.path}")
        printed = io.StringIO()
        console = ConsoleSink(Console(file=printed, width=200))

        def connect(cluster, partitioner, topology):
            return strategy.parameter_servers(cluster_spec[2], partitioner)

        checkpoint_modes.run_predict(config, TaskContext(folder, console, time.time(), connect=connect))
        return printed.getvalue()

    return run


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .npz like Fashion-MNIST: 10 classes that a small network can tell apart."""
    import numpy as np

    rng = np.random.default_rng(0)
    patterns = rng.uniform(size=(10, 28, 28))

    def part(size: int) -> tuple[Any, Any]:
        labels = rng.integers(10, size=size)
        return (255 * (0.7 * patterns[labels] + 0.3 * rng.uniform(size=(size, 28, 28)))).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = part(400), part(100)
    path = tmp_path_factory.mktemp("images") / "fashion.npz"
    np.savez(path, x_train=x_train, y_train=y_train.astype(np.uint8), x_test=x_test, y_test=y_test.astype(np.uint8))
    return path
