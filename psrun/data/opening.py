"""The data of a run, looked at before anything is built on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from psrun import choices, contradictions, targets
from psrun.config import RunConfig
from psrun.data.order import Order
from psrun.data.source import ByNumber, DataSource
from psrun.errors import ConfigError, Problem
from psrun.reporting.run_folder import RunFolder


def load_source(run: RunConfig, tell: Callable[[str], None] = lambda text: None) -> DataSource:
    """The data of the run.

    Args:
      tell: called while it is prepared, again and again, with how far that is.

    Raises:
      ConfigError: it does not fit the configuration.
      DataError: it cannot be read.
    """
    source: DataSource = targets.called(run.data.target, seed=run.seed, tell=tell)
    batch, examples = run.data.global_batch_size, source.num_train_examples
    problems = []
    if examples is not None and batch > examples:
        problems.append(
            Problem("data.global_batch_size", f"is {batch}, more than the {examples} examples there are to train on")
        )
    if run.data.visitation != "every_worker" and not isinstance(source, ByNumber):
        problem = f"is {run.data.visitation}, but {run.data.target.name} is no psrun.data.source.ByNumber"
        message = f"{problem}: its examples cannot be read by their numbers; choose every_worker"
        problems.append(Problem("data.visitation", message))
    if run.data.audit and not isinstance(source, ByNumber):
        problems.append(Problem("data.audit", f"{run.data.target.name} is no psrun.data.source.ByNumber"))
    if run.trainer.steps_per_epoch is None and examples is None:
        problems.append(
            Problem("trainer.steps_per_epoch", "must be given: how many examples there are to train on is not known")
        )
    if not isinstance(run.evaluation, choices.NoEvaluation) and not source.num_eval_examples:
        problems.append(Problem("evaluation", "there are no evaluation examples; choose evaluation=none"))
    if run.resume is not None:
        problems += _of_the_vocabulary(source, RunFolder(Path(run.resume)))
    if problems:
        raise ConfigError(problems)
    return source


def _of_the_vocabulary(source: DataSource, folder: RunFolder) -> list[Problem]:
    """Rows of tables belong to values: with another vocabulary of the same size they would be those of other values."""
    known = (folder.stored().get("data") or {}).get("vocabulary")
    if known is None or known == source.facts.get("vocabulary"):
        return []
    return [Problem("data.vocabulary", f"is another one than the run in {folder.path} was trained with")]


def planned(run: RunConfig, source: DataSource) -> RunConfig:
    """The run with its epochs as long as they are to be: where nothing else is said, as a pass over the examples.

    Raises:
      ConfigError: something else does not fit epochs as short as these.
    """
    trainer = run.trainer
    if trainer.steps_per_epoch is not None:
        return run
    assert source.num_train_examples is not None
    steps = Order(source.num_train_examples, run.data.global_batch_size).batches_per_pass
    packed = trainer.steps_per_execution
    packed = min(packed, steps) if isinstance(packed, int) else packed
    found = replace(run, trainer=replace(trainer, steps_per_epoch=steps, steps_per_execution=packed))
    if problems := contradictions.problems(found):
        raise ConfigError(problems)
    return found
