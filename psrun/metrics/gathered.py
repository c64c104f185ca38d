"""Metrics of evaluation examples that belong together, such as all examples of a user.

Keras' metrics add up batches. What is here needs examples of several batches at once: an evaluation gathers them, and
computes the metrics after the last batch. A part offers such metrics and their gathering: see `psrun.parts.Part`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from psrun import parts


class GatheredMetric:
    """A metric of gathered examples; a training has none.

    Attributes:
      name: among the metrics of a run.
    """

    name: str


def by_name(name: str) -> GatheredMetric | None:
    """The metric that a part offers by a name such as ndcg@10; None if none does.

    Raises:
      ValueError: the number in the name is missing, or is no positive integer.
    """
    offered = parts.metric(name)
    if offered is None:
        return None
    class_name, number = offered
    arguments = [] if number is None else [number]
    metric: GatheredMetric = parts.load(class_name)(*arguments)
    return metric


def name_in(output: str, metric: GatheredMetric) -> str:
    """The name of a metric among those of an evaluation.

    Args:
      output: of the model; '' if metrics are not by output.
    """
    return f"{output}_{metric.name}" if output else metric.name


class Gathered(Protocol):
    """The examples that one evaluation gathers."""

    def reset(self) -> None:
        """Drops all examples, before an evaluation."""
        ...

    def rows(self, columns: Any, label: Any, prediction: Any, weight: Any) -> Any:
        """What `add` needs of a batch, a nest of tensors with the examples along the first axis.

        It runs where the model does, perhaps in a graph.

        Args:
          columns: as `Gathering.columns` returned them.
          label, prediction, weight: of the examples, or by output; `weight` is () without weights.
        """
        ...

    def add(self, rows: Any) -> None:
        """Adds the rows of a batch, arrays, in the process that has the metrics."""
        ...

    def result(self, progress: Callable[[], None]) -> tuple[Mapping[str, float | None], Mapping[str, Any]]:
        """The metrics of all examples.

        Args:
          progress: called again and again, because it may take long.

        Returns:
          The metrics by name, None for one that is undefined; they replace Keras' metrics with the same names. And what
          the evaluation records beside them, JSON by output ('' for the only one).

        Raises:
          ConfigError: they cannot be computed, as of predictions that are NaN.
        """
        ...


class Gathering(Protocol):
    """How evaluations of a program gather examples. It is made before the network is built.

    Attributes:
      metric_names: the names of the gathered metrics that it computes among those of an evaluation.
    """

    metric_names: Sequence[str]

    def check(self) -> None:
        """Raises ConfigError if the data or the model cannot be measured; called before the training."""
        ...

    def columns(self, features: Mapping[str, Any]) -> Any:
        """What it needs of the raw features of a batch, a nest of tensors; () for nothing.

        It runs in the input pipeline. Features that are lists are RaggedTensors.
        """
        ...

    def begin(self, metrics: Sequence[Any]) -> Gathered:
        """An object that gathers examples.

        Args:
          metrics: Keras' metrics of the same evaluation.
        """
        ...
