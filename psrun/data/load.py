"""Loads and checks the data of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from psrun.config import rules, targets
from psrun.config.run_config import RunConfig
from psrun.config.schema import AUTO
from psrun.data import labels
from psrun.data.order import Order
from psrun.data.source import MEMBERS, ByNumber, DataSource
from psrun.errors import ConfigError, Problem

# Instead of `auto`, for sources that recommend nothing.
_USUAL_RATE = 0.001
_USUAL: dict[str, Any] = {"global_batch_size": 64, "epochs": 5, "steps_per_epoch": 100}


def load_source(
    run: RunConfig,
    recorded: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda text: None,
    folder: Path | None = None,
) -> DataSource:
    """The data of the run.

    Args:
      recorded: the facts about the data in the run.json of a run that has started before.
      folder: of the run, for files that belong to the source; None: there is none.
      tell: called repeatedly during preparation with the progress.

    Raises:
      ConfigError: the data does not fit the configuration.
      DataError: the data cannot be read.
    """
    vocabulary = run.data.label_vocabulary
    options = {} if vocabulary is None else {"label_vocabulary": vocabulary}  # a source may have its own default
    predicting = run.mode == "predict"
    provided: dict[str, Any] = {"list_ends": targets.list_ends(run.model)}
    provided |= {"tell": tell, "recorded": recorded, "run_folder": folder, "predicting": predicting, **options}
    source: DataSource = targets.called(run.data.target, seed=run.seed, **provided)
    if lacks := [member for member in MEMBERS if not hasattr(source, member)]:
        message = f"{run.data.target.name} returned {type(source).__name__}, which has no {', no '.join(lacks)}"
        raise ConfigError([Problem("data._target_", f"{message}; see psrun.data.source.DataSource for the interface")])
    problems = [*_problems(run, source), *_of_the_vocabulary(run, source, recorded or {})]
    problems += labels.problems(source, vocabulary)
    if problems:
        raise ConfigError(problems)
    return source


def _problems(run: RunConfig, source: DataSource) -> Iterator[Problem]:
    """Keys that do not fit the number of examples, or the interface of the source."""
    batch = run.data.global_batch_size
    examples = source.num_train_examples
    if examples is not None and isinstance(batch, int) and batch > examples:
        message = f"is {batch}, must be at most {examples}, the number of training examples"
        yield Problem("data.global_batch_size", message)
    if run.data.visitation != "every_worker" and not isinstance(source, ByNumber):
        problem = f"is {run.data.visitation}, but {run.data.target.name} is not a psrun.data.source.ByNumber"
        message = f"{problem}, so its examples cannot be read by number; choose every_worker"
        yield Problem("data.visitation", message)
    if run.trainer.steps_per_epoch is None and examples is None:
        yield Problem("trainer.steps_per_epoch", "is required: the number of training examples is unknown")
    if run.evaluation.runs_on is not None and not source.num_eval_examples:
        yield Problem("evaluation", "there are no evaluation examples; choose evaluation=none")


def facts(run: RunConfig, source: DataSource) -> dict[str, Any]:
    """The facts about the data for run.json."""
    sizes = {"num_train_examples": source.num_train_examples, "num_eval_examples": source.num_eval_examples}
    names = labels.class_names(source, run.data.label_vocabulary)
    return {**sizes, **source.facts, **({"label_vocabulary": list(names)} if names else {})}


def _of_the_vocabulary(run: RunConfig, source: DataSource, recorded: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuses another vocabulary than that of the run: rows of tables, and classes, would belong to other values."""
    if run.resume is None:
        return
    now = facts(run, source)
    for key in ("vocabulary", "label_vocabulary"):
        known = recorded.get(key)
        if known is not None and known != now.get(key):
            listed = f", [{', '.join(map(str, known))}]" if isinstance(known, list) else ""  # else a digest
            message = f"differs from the vocabulary that the run in {run.resume} was trained with{listed}"
            yield Problem(f"data.{key}", f"{message}; remove it to keep the recorded one")


def planned(run: RunConfig, source: DataSource, tell: Callable[[str], None] = lambda text: None) -> RunConfig:
    """The run with numbers instead of `auto`, and with the number of steps per epoch; `raw` has those of `auto`, too.

    A number that is configured holds. `auto` is what the source recommends for the batch size (`recommended`), and the
    usual number if it recommends none.

    Args:
      tell: called with a text if a number is not the recommended one.

    Raises:
      ConfigError: another key does not fit these numbers.
    """
    data = run.data
    trainer = run.trainer
    run = _with_rate(run, source)
    if all(isinstance(value, int) for value in (data.global_batch_size, trainer.epochs, trainer.steps_per_epoch)):
        return run
    batch_size = _batch_size(run, source, tell)
    numbers = {**_USUAL, **_recommended(source, batch_size)}
    epochs = numbers["epochs"] if isinstance(trainer.epochs, str) else trainer.epochs
    steps = numbers["steps_per_epoch"] if isinstance(trainer.steps_per_epoch, str) else trainer.steps_per_epoch
    chosen = replace(
        run,
        data=replace(data, global_batch_size=batch_size),
        trainer=replace(trainer, epochs=epochs, steps_per_epoch=steps),
    )
    if steps is None:
        _require_no_problems(chosen)  # one pass may require a known number of workers
        steps = _steps_of_a_pass(chosen, source)
    packed = trainer.steps_per_execution
    if isinstance(packed, int) and not isinstance(trainer.steps_per_epoch, int):
        packed = min(packed, steps)
    completed = replace(
        chosen,
        trainer=replace(chosen.trainer, steps_per_epoch=steps, steps_per_execution=packed),
        raw=_with_numbers(run.raw, batch_size, epochs, steps),
    )
    _require_no_problems(completed)
    return completed


def _with_rate(run: RunConfig, source: DataSource) -> RunConfig:
    """The run with a learning rate instead of `auto`, which stays in `raw`: more epochs change how the rate falls."""
    if run.optimizer.options.get("learning_rate") != AUTO:
        return run
    recommended = {"learning_rate": _USUAL_RATE, "learning_rate_falls": False, **_recommended(source, None)}
    options = {**run.optimizer.options, "learning_rate": recommended["learning_rate"]}
    optimizer = replace(run.optimizer, options=options)
    falls = recommended["learning_rate_falls"] and run.reduce_lr.metric is None  # which lowers it by itself
    return replace(run, optimizer=optimizer, learning_rate_falls=falls)


def _batch_size(run: RunConfig, source: DataSource, tell: Callable[[str], None]) -> int:
    """The examples per step, as configured; else as recommended, and at most as many as there are."""
    configured = run.data.global_batch_size
    examples = source.num_train_examples
    if isinstance(configured, int):
        return configured
    usual = {**_USUAL, **_recommended(source, None)}["global_batch_size"]
    if examples is None or usual <= examples:
        return usual
    tell(f"data.global_batch_size: {usual:,} is reduced to {examples:,}, the number of training examples")
    return examples


def _recommended(source: DataSource, batch_size: int | None) -> Mapping[str, Any]:
    recommend = getattr(source, "recommended", None)
    return {} if recommend is None else recommend(batch_size)


def _steps_of_a_pass(run: RunConfig, source: DataSource) -> int:
    assert source.num_train_examples is not None
    batches = Order(source.num_train_examples, run.data.batch_size).batches_per_pass
    return max(1, batches // run.consistency.gradients_per_update(run.num_training_workers or 1))


def _with_numbers(raw: Mapping[str, Any], batch_size: int, epochs: int, steps: int) -> Mapping[str, Any]:
    """The configuration with numbers instead of `auto`. Null is kept: one pass, also over other data."""
    numbers = {"data": {"global_batch_size": batch_size}, "trainer": {"epochs": epochs, "steps_per_epoch": steps}}
    decided = {
        group: {**raw[group], **{key: value for key, value in values.items() if raw[group].get(key) == AUTO}}
        for group, values in numbers.items()
    }
    return {**raw, **decided}


def _require_no_problems(run: RunConfig) -> None:
    """Raises ConfigError if keys do not fit each other."""
    if problems := rules.problems(run):
        raise ConfigError(problems)
