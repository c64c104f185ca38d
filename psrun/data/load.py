"""Loads and checks the data of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from psrun.config import rules, targets
from psrun.config.run_config import RunConfig
from psrun.data import labels
from psrun.data.order import Order
from psrun.data.source import MEMBERS, ByNumber, DataSource
from psrun.errors import ConfigError, Problem


def load_source(
    run: RunConfig, recorded: Mapping[str, Any] | None = None, tell: Callable[[str], None] = lambda text: None
) -> DataSource:
    """The data of the run.

    Args:
      recorded: the facts about the data in the run.json of a run that has started before.
      tell: called repeatedly during preparation with the progress.

    Raises:
      ConfigError: the data does not fit the configuration.
      DataError: the data cannot be read.
    """
    vocabulary = run.data.label_vocabulary
    options = {} if vocabulary is None else {"label_vocabulary": vocabulary}  # a source may have its own default
    predicting = run.mode == "predict"
    candidate = targets.called(
        run.data.target, seed=run.seed, tell=tell, recorded=recorded, predicting=predicting, **options
    )
    source = _checked(candidate, run.data.target.name)
    problems = [*_problems(run, source), *_of_the_vocabulary(run, source, recorded or {})]
    problems += labels.problems(source, vocabulary)
    if problems:
        raise ConfigError(problems)
    return source


def _problems(run: RunConfig, source: DataSource) -> Iterator[Problem]:
    """Keys that do not fit the number of examples, or the interface of the source."""
    batch, examples = run.data.global_batch_size, source.num_train_examples
    if examples is not None and batch > examples:
        message = f"is {batch}, must be at most {examples}, the number of training examples"
        yield Problem("data.global_batch_size", message)
    if run.data.visitation != "every_worker" and not isinstance(source, ByNumber):
        problem = f"is {run.data.visitation}, but {run.data.target.name} is not a psrun.data.source.ByNumber"
        message = f"{problem}, so its examples cannot be read by number; choose every_worker"
        yield Problem("data.visitation", message)
    if run.data.audit and not isinstance(source, ByNumber):
        message = f"requires a psrun.data.source.ByNumber; {run.data.target.name} is not one; set it to false"
        yield Problem("data.audit", message)
    if run.trainer.steps_per_epoch is None and examples is None:
        yield Problem("trainer.steps_per_epoch", "is required: the number of training examples is unknown")
    if run.evaluation.runs_on is not None and not source.num_eval_examples:
        yield Problem("evaluation", "there are no evaluation examples; choose evaluation=none")


def _checked(candidate: Any, name: str) -> DataSource:
    """The object that the target returned, checked for the members of a data source.

    Raises:
      ConfigError: members are missing.
    """
    lacks = [member for member in MEMBERS if not hasattr(candidate, member)]
    if lacks:
        message = f"{name} returned {type(candidate).__name__}, which has no {', no '.join(lacks)}"
        raise ConfigError([Problem("data._target_", f"{message}; see psrun.data.source.DataSource for the interface")])
    return candidate


def facts(run: RunConfig, source: DataSource) -> dict[str, Any]:
    """The facts about the data for run.json."""
    sizes = {"num_train_examples": source.num_train_examples, "num_eval_examples": source.num_eval_examples}
    names = labels.class_names(source, run.data.label_vocabulary)
    return {**sizes, **source.facts, **({"label_vocabulary": list(names)} if names else {})}


def _of_the_vocabulary(run: RunConfig, source: DataSource, recorded: Mapping[str, Any]) -> list[Problem]:
    """Refuses another vocabulary: rows of tables, and classes of predictions, would belong to other values.

    Args:
      recorded: as of `load_source`.
    """
    if run.resume is None:
        return []
    now = facts(run, source)
    message = f"differs from the vocabulary that the run in {run.resume} was trained with"
    return [
        Problem(f"data.{key}", f"{message}{_listed(recorded[key])}; remove it to keep the recorded one")
        for key in ("vocabulary", "label_vocabulary")
        if recorded.get(key) is not None and recorded[key] != now.get(key)
    ]


def _listed(vocabulary: Any) -> str:
    """The recorded values; empty if only a digest was recorded."""
    return f", [{', '.join(map(str, vocabulary))}]" if isinstance(vocabulary, list) else ""


def planned(run: RunConfig, source: DataSource) -> RunConfig:
    """The run with the number of steps per epoch; by default one pass over the examples.

    Raises:
      ConfigError: another key does not fit such short epochs.
    """
    trainer = run.trainer
    if trainer.steps_per_epoch is not None:
        return run
    assert source.num_train_examples is not None
    batches = Order(source.num_train_examples, run.data.global_batch_size).batches_per_pass
    steps = max(1, batches // run.consistency.gradients_per_update(run.num_training_workers or 1))
    packed = trainer.steps_per_execution
    packed = min(packed, steps) if isinstance(packed, int) else packed
    completed = replace(run, trainer=replace(trainer, steps_per_epoch=steps, steps_per_execution=packed))
    if problems := rules.problems(completed):
        raise ConfigError(problems)
    return completed
