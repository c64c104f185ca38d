"""Gathers evaluation examples for metrics of lists, for segments and for candidates: the keys of `evaluation`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import metrics
from psrun.data.source import task_of
from psrun.errors import ConfigError, Problem
from psrun.parts import name_of_output_metric
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.recsys import evaluation_keys
from psrun.recsys.candidates import CandidateRanking
from psrun.recsys.evaluation_keys import EvaluationKeys
from psrun.recsys.kept_examples import KeptExamples
from psrun.recsys.metrics.ranking import RankingMetric

# The metrics of Keras' kind that estimates have too, by the same definition.
_ESTIMATED = (
    *metrics.OF_PROBABILITIES.values(),
    tf_keras.metrics.MeanAbsoluteError,
    tf_keras.metrics.RootMeanSquaredError,
)

Metrics = Mapping[str, Sequence[RankingMetric]]  # by output, '' for the only one


def make(program: Program) -> GroupGathering | CandidateGathering | None:
    """How evaluations of a program gather examples; None if they need not."""
    metrics: dict[str, list[RankingMetric]] = {}
    for output, found in program.gathered_metrics.items():
        of_lists = [metric for metric in found if isinstance(metric, RankingMetric)]
        if of_lists:
            metrics[output] = of_lists
    evaluation = program.config.evaluation
    if evaluation.candidates is not None:
        return CandidateGathering(program, metrics)
    if metrics or evaluation.by:
        return GroupGathering(program, metrics)
    return None


def _names(metrics: Metrics) -> list[str]:
    """The names of metrics among those of an evaluation."""
    names = []
    for output, of_output in metrics.items():
        names += [name_of_output_metric(output, metric) for metric in of_output]
    return names


class _ListGathering:
    """What the gatherings of this module share: the program, its metrics of lists and their names."""

    def __init__(self, program: Program, metrics: Metrics) -> None:
        self._program = program
        self._metrics = metrics
        self.metric_names = _names(metrics)


class GroupGathering(_ListGathering):
    """Examples by user and by segment; see `psrun.parts.Gathering`."""

    @functools.cached_property
    def _keys(self) -> EvaluationKeys:
        evaluation = self._program.config.evaluation
        if self._metrics and evaluation.user is None:
            name = next(iter(self._metrics.values()))[0].name
            message = f"is required for {name}, a metric of lists by user; set it to the feature with the users"
            raise ConfigError([Problem(evaluation_keys.USER, message)])
        return EvaluationKeys(self._program.source.features, evaluation.user, evaluation.by)

    def check(self) -> None:
        """Raises ConfigError if there are no users, or an output has several predictions for an example."""
        _ = self._keys
        outputs = self._outputs
        for name, (first, *_) in self._metrics.items():
            _require_one_value(name, outputs.get(name), first.name)
        if not self._metrics:
            _require_one_value("", outputs.get(""), "evaluation.by")

    @property
    def _outputs(self) -> Mapping[str, Any]:
        spec = self._program.prediction_spec
        return spec if isinstance(spec, Mapping) else {"": spec}

    def columns(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """As `EvaluationKeys.of`."""
        return self._keys.of(features)

    def begin(self, metrics: Sequence[Any]) -> GroupedExamples:
        """Raises ConfigError as `check` does."""
        self.check()
        program = self._program
        by = program.config.evaluation.by
        has_task = by and list(self._outputs) == [""] and not program.model.has_scores
        task = task_of(program.source) if has_task else None
        intervals = _intervals(metrics, from_logits=bool(program.model.from_logits))
        kept = {}
        for output in self._metrics or [""]:
            kept[output] = KeptExamples(self._metrics.get(output, []), task, intervals=intervals)
        return GroupedExamples(program, self._metrics, kept, metrics)


class GroupedExamples:
    """The examples of one evaluation; see `psrun.parts.Gathered`.

    Args:
      metrics: of lists.
      kept: the examples by output.
      of_keras: the other metrics of the evaluation.
    """

    def __init__(
        self, program: Program, metrics: Metrics, kept: Mapping[str, KeptExamples], of_keras: Sequence[Any]
    ) -> None:
        self._program = program
        self._metrics = metrics
        self._kept = kept
        self._of_keras = of_keras
        self.warnings: tuple[str, ...] = ()

    def reset(self) -> None:
        for kept in self._kept.values():
            kept.reset()

    def rows(self, columns: Any, label: Any, prediction: Any, weight: Any) -> dict[str, Any]:
        """By output, the arguments of `KeptExamples.add`; () instead of weights that are not there."""
        rows = {}
        for output in self._kept:
            own = [_of_output(each, output) for each in (label, prediction, weight)]
            rows[output] = self._row(columns, *own)
        return rows

    def _row(self, columns: Any, label: Any, prediction: Any, weight: Any) -> tuple[Any, ...]:
        program = self._program
        probability = objective.to_probabilities(prediction, program.model, task_of(program.source))
        flat = [tf.reshape(each, [-1]) for each in (label, prediction, probability)]
        flat_weight = tf.reshape(weight, [-1]) if tf.nest.flatten(weight) else ()
        return (columns, *flat, flat_weight)

    def add(self, rows: Mapping[str, Any]) -> None:
        for output, row in rows.items():
            columns, label, score, prediction, weight = row
            self._kept[output].add(columns, label, score, prediction, weight if len(weight) else None)

    def result(self, progress: Callable[[], None]) -> tuple[dict[str, float | None], dict[str, Any]]:
        estimates = {output: kept.result(progress) for output, kept in self._kept.items()}
        values = self._estimated(estimates.get("")) | _of_lists(self._metrics, estimates)
        return values, estimates

    def _estimated(self, estimates: Mapping[str, Any] | None) -> dict[str, float | None]:
        """The estimates of Keras' metrics, if these are of the same examples: a name has one value."""
        if estimates is None or estimates["share_of_users"] < 1:
            return {}
        values: dict[str, float | None] = {}
        for metric in self._of_keras:
            estimated = estimates["metrics"].get(metric.name)
            if isinstance(metric, _ESTIMATED) and estimated is not None:
                values[metric.name] = estimated
        return values


class CandidateGathering(_ListGathering):
    """Relevant items ranked among candidates, once all are known; it needs nothing of the batches."""

    def check(self) -> None:
        """Raises ConfigError if the metrics are by output, or there are none."""
        if list(self._metrics) != [""]:
            message = "requires metrics of lists, of a model with one output"
            raise ConfigError([Problem("evaluation.candidates", message)])

    def columns(self, features: Mapping[str, Any]) -> tuple[()]:
        """Nothing."""
        return ()

    def begin(self, metrics: Sequence[Any]) -> RankedCandidates:
        """Reads all examples; raises ConfigError as `check` and `CandidateRanking` do."""
        self.check()
        return RankedCandidates(self._metrics, CandidateRanking(self._program, [*self._metrics[""]]))


class RankedCandidates:
    """The ranks of one evaluation; see `psrun.parts.Gathered`."""

    def __init__(self, metrics: Metrics, ranking: CandidateRanking) -> None:
        self._metrics = metrics
        self._ranking = ranking
        self.warnings = ranking.warnings

    def reset(self) -> None:
        """Nothing: `result` ranks by the variables of that moment."""

    def rows(self, columns: Any, label: Any, prediction: Any, weight: Any) -> tuple[()]:
        """Nothing."""
        return ()

    def add(self, rows: Any) -> None:
        """Nothing."""

    def result(self, progress: Callable[[], None]) -> tuple[dict[str, float | None], dict[str, Any]]:
        estimates = {"": self._ranking.result(progress)}
        return _of_lists(self._metrics, estimates), estimates


def _of_output(values: Any, output: str) -> Any:
    return values[output] if isinstance(values, Mapping) and output else values


def _of_lists(metrics: Metrics, estimates: Mapping[str, Any]) -> dict[str, float | None]:
    """The values of metrics of lists by their names among those of an evaluation."""
    values = {}
    for output, of_output in metrics.items():
        for metric in of_output:
            values[name_of_output_metric(output, metric)] = estimates[output]["metrics"][metric.name]
    return values


def _intervals(made: Sequence[Any], *, from_logits: bool) -> metrics.Intervals:
    """The intervals of the AUC among metrics, or of the usual one."""
    for metric in made:
        if isinstance(metric, metrics.AUC):
            return metric.intervals
    return metrics.Intervals(from_logits=from_logits)


def _require_one_value(output: str, spec: Any, what: str) -> None:
    """Raises ConfigError if a prediction is no single number.

    Args:
      spec: of the output; None: the model has other outputs.
      what: evaluation.by, or the name of the metric that needs it.
    """
    shape = getattr(spec, "shape", None)
    if shape is not None and list(shape[1:]) in ([], [1]):
        return
    has = f"output {output!r} has" if output else "the model has"
    found = "several outputs" if shape is None else f"predictions of shape {shape}"
    message = f"needs one score for each example, but {has} {found}"
    if what == "evaluation.by":
        raise ConfigError([Problem(what, message)])
    raise ConfigError([Problem("model.metrics", f"{what} {message}")])
