"""Weights & Biases, offline by default: files in the run folder that `wandb sync` uploads."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from typing import Any

from psrun.errors import ConfigError, Problem
from psrun.results.events import Event, Sink
from psrun.results.tracking import STATUS, TrackedRun, artifacts, numbers
from psrun.runs.trackers.choices import WandB

_BEGIN_WITHIN_S = 60.0
_END_WITHIN_S = 20.0  # less than the time a chief has to exit
_STEP = "trained_steps"
# psrun reports the system, keeps the logs, and records the code; the console stays as it is.
_SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "init_timeout": _BEGIN_WITHIN_S,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandBSink(Sink):
    """Creates a run with the configuration, and adds the numbers of events.

    The number of trained steps is the x-axis: W&B's own step must never fall, and a resumed run may repeat steps. The
    processes of a run write one file each, with the id of the run.

    Raises:
      ConfigError: wandb is not installed.
    """

    def __init__(self, chosen: WandB, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would send them also in offline mode
        try:
            import wandb
        except ImportError as error:
            message = "'wandb' requires Weights & Biases: pip install 'psrun[wandb]', or choose tensorboard"
            raise ConfigError([Problem("tracker", message)]) from error
        self._wandb = wandb
        self._chosen = chosen
        self._run = run
        self._filed: Any = None
        self._status = "failed"

    def event(self, event: Event) -> None:
        self._status = STATUS.get(event.kind, self._status)
        if event.kind == "start":
            self._begin()
        elif event.kind == "planned" and self._run.values is not None:
            self._filed.config.update(dict(event.data), allow_val_change=True)
        elif values := numbers(event):
            if self._filed is None:  # the evaluator, which has no start
                self._begin()
            self._filed.log({_STEP: event.step or 0, **values})

    def close(self) -> None:
        if self._filed is not None:
            _within(_END_WITHIN_S, self._end)

    def _begin(self) -> None:
        run_id = self._run.recorded(kind="wandb", project=self._chosen.project)
        if run_id is None:
            run_id = secrets.token_hex(4)
            self._run.record(kind="wandb", project=self._chosen.project, run_id=run_id)
        _within(_BEGIN_WITHIN_S, lambda: self._init(run_id))

    def _init(self, run_id: str) -> None:
        folder = self._run.folder.path
        sweep = self._run.sweep
        os.environ["WANDB_DATA_DIR"] = str(folder.absolute() / "wandb" / "data")  # of artifacts; else the home folder
        self._filed = self._wandb.init(
            mode=self._chosen.mode,  # type: ignore[arg-type]
            dir=str(folder),
            id=run_id,
            resume="allow",
            project=self._chosen.project,
            entity=self._chosen.entity,
            name=folder.name,
            group=sweep.name if sweep is not None else None,
            config=dict(self._run.values or {}),
            settings=self._wandb.Settings(**_SETTINGS),
        )
        self._filed.define_metric("*", step_metric=_STEP)

    def _end(self) -> None:
        if self._run.values is not None and self._chosen.artifacts:
            artifact = self._wandb.Artifact(f"run-{self._filed.id}", type="psrun-run")
            for name, content in artifacts(self._chosen.artifacts, self._run.folder, self._run.outcome(self._status)):
                if isinstance(content, str):
                    with artifact.new_file(name) as file:
                        file.write(content)
                elif content.is_dir():
                    artifact.add_dir(str(content), name)
                else:
                    artifact.add_file(str(content), name)
            self._filed.log_artifact(artifact)
        succeeded = self._status == "completed" or self._run.values is None  # the chief knows how the run ended
        self._filed.finish(exit_code=0 if succeeded else 1)
        self._wandb.teardown()  # ends its process, which psrun's immediate exit would leave for a moment


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Does the work in a separate thread. Raises its error, or TimeoutError."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # such as the SystemExit of a library
            errors.append(error)

    thread = threading.Thread(target=run, name="psrun-wandb", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer for {seconds:.0f} s")
    if errors:
        raise RuntimeError(str(errors[0]) or type(errors[0]).__name__) from errors[0]
