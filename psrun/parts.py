"""What the parts of psrun and packages beside it offer. The core asks here and imports none of them.

A part of psrun is a folder with a module `part`, in which `PART` lists what it offers. Another package lists an object
of its own in the entry-point group `psrun.parts`. What a part offers is imported at its first use.

Parts offer metrics of evaluation examples that belong together, such as all examples of a user. Keras' metrics add up
batches; these need examples of several batches at once: an evaluation gathers them, and computes the metrics after the
last batch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from psrun.errors import ConfigError, Problem

# psrun's own parts, and what each offers: for the message where one is missing.
OWN = {
    "engines": "the clusters slurm, ray and kubernetes, and the command submit",
    "keras3": "models of Keras 3",
    "recsys": "models and metrics of recommenders",
    "runs": "sweeps, commands on runs, runs at URLs, completion, and the trackers mlflow and wandb",
    "tables": "tables in files, and the command data",
    "virtual": "clusters in virtual time",
}
_FOLDER = Path(__file__).parent
_GROUP = "psrun.parts"
# Earlier names of modules of the core that recorded runs name by `_target_`, and the names of today.
_MOVED = {
    "psrun.data.fashion_mnist": "psrun.data.datasets",
    "psrun.data.features": "psrun.data.datasets",
    "psrun.data.regression": "psrun.data.datasets",
    "psrun.models.cnn": "psrun.models.model",
    "psrun.models.dense": "psrun.models.model",
    "psrun.models.embedding": "psrun.models.model",
}


@dataclass(frozen=True)
class Part:
    """What one part offers. Names of code are 'package.module:name'.

    Attributes:
      commands: by its word, the function of a command: it takes the arguments after the word, as a list of texts, and
        returns an `ExitCode`.
      choices: by group and `kind`, the dataclass of a choice, derived from one of `psrun.config.choices.BASES`.
      models: the class of an adapter for models of another library: `psrun.program.adapters.Adapter`.
      settings: by the `kind` of a cluster, which is also the name of a node at the root of the configuration, the
        dataclass of this node: how the engine runs the tasks, and no part of the experiment.
      run_view: the class of a view that follows a run until it has ended, for an engine that has submitted the run; see
        `psrun.runs.watch.run.RunView`.
      stores: the module for runs at URLs, with the functions `begin` and `local`; see `psrun.runs.stores`.
      conf: the package with the YAML files of its choices, in folders as in psrun's conf/; empty if they are there. A
        file with the name of one of psrun's is not used.
      metrics: by name, the class of a `psrun.parts.GatheredMetric`, called without arguments. 'ndcg@K' means
        the names ndcg@1, ndcg@2 and so on: the class is called with the number.
      gathering: the function that makes the `psrun.parts.Gathering` of a program; it returns None if
        evaluations of the program gather no examples.
      outputs: by key, predict.top_k or export.top_k, the function that makes another output than predictions: see
        `psrun.roles.checkpoint_modes.run_predict` and `psrun.checkpoint.trained_model.export`.
      rules: the function of a `RunConfig` that yields the problems of its keys for this part, before TensorFlow is
        imported. Only psrun's own parts are asked.
      compared_by: the function of a `RunConfig` that returns the metric by which evaluations of the run are compared
        where no key names one, and 'max' or 'min'; None if the part has no opinion. Only psrun's own parts are asked.
      moved: earlier names of modules that recorded runs name by `_target_`, and the names of today.
    """

    commands: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    run_view: str = ""
    stores: str = ""
    conf: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    gathering: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)
    rules: str = ""
    compared_by: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)


def load(name: str) -> Any:
    """Imports what 'package.module:name' names.

    Raises:
      ImportError, AttributeError: it does not exist.
    """
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def own() -> tuple[Part, ...]:
    """The parts of psrun that are here, in the order of their names."""
    names = sorted(file.parent.name for file in _FOLDER.glob("*/part.py"))
    return tuple(load(f"psrun.{name}.part:PART") for name in names)


@functools.cache
def others() -> tuple[Part, ...]:
    """The parts of other packages.

    Raises:
      ConfigError: one cannot be imported.
    """
    # Imported here: it takes longer than the other modules of a command, and few commands need it.
    from importlib import metadata

    found = []
    for entry in sorted(metadata.entry_points(group=_GROUP), key=lambda each: each.name):
        try:
            part = entry.load()
        except (ImportError, AttributeError) as error:
            message = f"the package {entry.value}, which offers parts of psrun, cannot be imported: {error}"
            raise ConfigError(f"{message}; repair or uninstall it") from error
        if not isinstance(part, Part):
            raise ConfigError(f"{entry.value}, in the entry-point group {_GROUP}, is no psrun.parts.Part")
        found.append(part)
    return tuple(found)


def every() -> Iterator[Part]:
    """The parts of psrun, then the parts of other packages."""
    yield from own()
    yield from others()


def _first(tables: Iterable[Mapping[str, str]], name: str) -> str | None:
    """What the first table that has the name has for it; None if none has. Later tables are not asked."""
    for table in tables:
        if name in table:
            return table[name]
    return None


def command(word: str) -> str | None:
    """The function of the command of a part; None if none has it."""
    return _first((part.commands for part in every()), word)


def choice(group: str, kind: str) -> type | None:
    """The dataclass of a choice that a part offers; None if none does."""
    name = _first((part.choices.get(group, {}) for part in every()), kind)
    return None if name is None else load(name)


def kinds(group: str) -> list[str]:
    """The choices of a group that parts offer."""
    names: list[str] = []
    for part in every():
        names += part.choices.get(group, {})
    return names


def offered_metric(name: str) -> tuple[str, int | None] | None:
    """The class of the metric with this name that a part offers, and the number in the name; None if none does.

    Raises:
      ValueError: the number is missing, or is no positive integer.
    """
    base, _, number = name.partition("@")
    with_number = f"{base}@K"
    for part in every():
        if name in part.metrics and name != with_number:
            return part.metrics[name], None
        if with_number not in part.metrics:
            continue
        if not number:
            raise ValueError(f"needs the length of the list, such as {base}@10")
        if not number.isdecimal() or int(number) < 1:
            raise ValueError(f"has the length {number!r}, must be an integer of 1 or more, such as {base}@10")
        return part.metrics[with_number], int(number)
    return None


def metrics() -> dict[str, str]:
    """The classes of the metrics that parts offer, by name."""
    found: dict[str, str] = {}
    for part in every():
        found |= part.metrics
    return found


def gatherings() -> list[str]:
    """The functions of parts that make a `Gathering`."""
    return [part.gathering for part in every() if part.gathering]


def output(key: str) -> str | None:
    """The function of the part that makes the output of a key; None if no part does."""
    return _first((part.outputs for part in every()), key)


def without_part(key: str) -> Problem:
    """The problem of a key that no part reads."""
    return Problem(key, with_missing("needs another part of psrun"))


def settings(kind: str) -> type | None:
    """The dataclass of the settings of an engine; None if there is no such engine, or if it has none."""
    name = _first((part.settings for part in every()), kind)
    return None if name is None else load(name)


def engines_with_settings() -> list[str]:
    """The kinds of clusters whose engine has settings."""
    names: list[str] = []
    for part in every():
        names += part.settings
    return names


def run_view() -> Any:
    """The class of a view that follows a run; None if no part offers one."""
    for part in every():
        if part.run_view:
            return load(part.run_view)
    return None


def stores() -> Any:
    """The module for runs at URLs; None if no part offers one."""
    for part in every():
        if part.stores:
            return importlib.import_module(part.stores)
    return None


def name_of_today(target: str) -> str:
    """The dotted name of a `_target_` that a run recorded, if its module has another name since; else `target`."""
    module, _, attribute = target.rpartition(".")
    for moved in (_MOVED, *(part.moved for part in own())):
        if module in moved:
            return f"{moved[module]}.{attribute}"
    return target


def with_missing(message: str) -> str:
    """The message, and a sentence with psrun's own parts that are not here, and what they offer, if any are not."""
    names = [name for name in OWN if not (_FOLDER / name).is_dir()]
    if not names:
        return message
    listed = "; ".join(f"psrun/{name} ({OWN[name]})" for name in names)
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message}{stop} Parts that are not installed: {listed}"


def is_missing(module: str) -> bool:
    """Whether a module is in one of psrun's own parts that are not here."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return package == "psrun" and name in OWN and not (_FOLDER / name).is_dir()


class GatheredMetric:
    """A metric of gathered examples; a training has none.

    Attributes:
      name: among the metrics of a run.
    """

    name: str


def gathered_metric(name: str) -> GatheredMetric | None:
    """The metric that a part offers by a name such as ndcg@10; None if none does.

    Raises:
      ValueError: the number in the name is missing, or is no positive integer.
    """
    offered = offered_metric(name)
    if offered is None:
        return None
    class_name, number = offered
    arguments = [] if number is None else [number]
    metric: GatheredMetric = load(class_name)(*arguments)
    return metric


def name_of_output_metric(output: str, metric: GatheredMetric) -> str:
    """The name of a metric among the metrics of an evaluation.

    Args:
      output: of the model; '' if metrics are not by output.
    """
    return f"{output}_{metric.name}" if output else metric.name


class Gathered(Protocol):
    """The examples that one evaluation gathers.

    Attributes:
      warnings: what a person should know to read its metrics, a line each; read after `result`.
    """

    @property
    def warnings(self) -> Sequence[str]: ...

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
          ConfigError: they cannot be computed, such as where predictions are NaN.
        """
        ...


class Gathering(Protocol):
    """How evaluations of a program gather examples. It is made before the network is built.

    Attributes:
      metric_names: the names of the gathered metrics among the metrics of an evaluation.
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
