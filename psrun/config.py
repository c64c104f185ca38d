"""The configuration of a run, typed, and every check of it that needs no TensorFlow.

Each choice of a group is a frozen dataclass, named by the node's `kind`; models, data and optimizers are targets
(see `psrun.targets`). `load` turns what Hydra composed into a `RunConfig` or raises one error that lists all problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psrun import keras_callbacks, schema, targets
from psrun.errors import ConfigError, Problem
from psrun.schema import at_least, one_of
from psrun.targets import Target

MODES = ("train", "plan")


@dataclass(frozen=True)
class NoCluster:
    kind: str


@dataclass(frozen=True)
class OneDevice:
    kind: str
    device: str


@dataclass(frozen=True)
class Mirrored:
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True)
class CentralStorage:
    kind: str
    num_replicas: int = at_least(1)


@dataclass(frozen=True)
class InProcess:
    kind: str
    num_workers: int = at_least(1)
    num_ps: int = at_least(0)


Cluster = NoCluster | OneDevice | Mirrored | CentralStorage | InProcess


@dataclass(frozen=True)
class NoPartitioner:
    kind: str


@dataclass(frozen=True)
class FixedShards:
    kind: str
    num_shards: int = at_least(1)


@dataclass(frozen=True)
class MinSize:
    kind: str
    min_shard_bytes: int = at_least(1)
    max_shards: int = at_least(1)


@dataclass(frozen=True)
class MaxSize:
    kind: str
    max_shard_bytes: int = at_least(1)
    max_shards: int | None = at_least(1)


Partitioner = NoPartitioner | FixedShards | MinSize | MaxSize


@dataclass(frozen=True)
class CustomLoop:
    kind: str
    epochs: int = at_least(1)
    steps_per_epoch: int = at_least(1)
    steps_per_execution: int = at_least(1)
    run_eagerly: bool = False


@dataclass(frozen=True)
class Fit:
    kind: str
    epochs: int = at_least(1)
    steps_per_epoch: int = at_least(1)
    steps_per_execution: int = at_least(1)
    run_eagerly: bool = False
    callbacks: list[Any] = field(default_factory=list)


Trainer = CustomLoop | Fit


@dataclass(frozen=True)
class NoEvaluation:
    kind: str


@dataclass(frozen=True)
class Validation:
    kind: str
    every: int = at_least(1)


@dataclass(frozen=True)
class Direct:
    kind: str
    every: int = at_least(1)


Evaluation = NoEvaluation | Validation | Direct


@dataclass(frozen=True)
class NoCheckpoints:
    kind: str


@dataclass(frozen=True)
class EpochCheckpoints:
    kind: str
    max_to_keep: int = at_least(1)


Checkpoints = NoCheckpoints | EpochCheckpoints

KINDS: dict[str, dict[str, type]] = {
    "cluster": {
        "none": NoCluster,
        "one_device": OneDevice,
        "mirrored": Mirrored,
        "central_storage": CentralStorage,
        "inprocess": InProcess,
    },
    "partitioner": {"none": NoPartitioner, "fixed_shards": FixedShards, "min_size": MinSize, "max_size": MaxSize},
    "trainer": {"custom_loop": CustomLoop, "fit": Fit},
    "evaluation": {"none": NoEvaluation, "validation": Validation, "direct": Direct},
    "checkpoint": {"none": NoCheckpoints, "epoch": EpochCheckpoints},
}


@dataclass(frozen=True)
class Data:
    """Where the examples come from, and how many make one step (over all replicas of one worker, as in Keras)."""

    target: Target
    global_batch_size: int


@dataclass(frozen=True)
class _DataKeys:
    global_batch_size: int = at_least(1)


@dataclass(frozen=True)
class _Top:
    mode: str = one_of(*MODES)
    seed: int = at_least(0)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. `raw` is the composed configuration, resolved, as plain values."""

    cluster: Cluster
    partitioner: Partitioner
    model: Target
    data: Data
    optimizer: Target
    trainer: Trainer
    evaluation: Evaluation
    checkpoint: Checkpoints
    mode: str
    seed: int
    raw: Mapping[str, Any]

    @property
    def parameter_servers(self) -> bool:
        """Whether the run is trained with parameter servers."""
        return isinstance(self.cluster, InProcess)


def load(raw: Mapping[str, Any]) -> RunConfig:
    """The run that `raw` describes.

    Args:
      raw: the composed configuration as plain values, interpolations resolved, missing values as '???'.

    Raises:
      ConfigError: with every problem found, each by its key.
    """
    problems: list[Problem] = []
    known = {*KINDS, "model", "data", "optimizer", "mode", "seed"}
    for name, value in raw.items():
        if name not in known:
            problems.append(Problem(name, f"no such key (value {value!r}).{schema.did_you_mean(name, known)}"))
    parts: dict[str, Any] = {group: _read_kind(raw.get(group), group, problems) for group in KINDS}
    top = schema.read(_Top, {name: raw[name] for name in ("mode", "seed") if name in raw}, key="", problems=problems)
    parts["model"] = targets.read(raw.get("model"), key="model", problems=problems)
    parts["optimizer"] = targets.read(raw.get("optimizer"), key="optimizer", problems=problems)
    parts["data"] = _read_data(raw.get("data"), problems)
    if isinstance(parts["trainer"], Fit):
        for index, node in enumerate(parts["trainer"].callbacks):
            targets.read(node, key=f"trainer.callbacks[{index}]", problems=problems)
    if problems or top is None:
        raise ConfigError(problems)
    config = RunConfig(**parts, mode=top.mode, seed=top.seed, raw=raw)
    problems = [*_contradictions(config)]
    if problems:
        raise ConfigError(problems)
    return config


def _read_kind(node: Any, group: str, problems: list[Problem]) -> Any:
    kinds = KINDS[group]
    kind = node.get("kind") if isinstance(node, Mapping) else None
    if kind not in kinds:
        problems.append(Problem(group, f"is {node!r}; choose {group}=NAME with one of {', '.join(kinds)}"))
        return None
    return schema.read(kinds[kind], node, key=group, problems=problems)


def _read_data(node: Any, problems: list[Problem]) -> Data | None:
    if not isinstance(node, Mapping):
        problems.append(Problem("data", f"is {node!r}; choose data=NAME"))
        return None
    own = {name: value for name, value in node.items() if name == "global_batch_size"}
    keys = schema.read(_DataKeys, own, key="data", problems=problems)
    target = targets.read({k: v for k, v in node.items() if k not in own}, key="data", problems=problems)
    path = node.get("path")
    if isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists():
        problems.append(Problem("data.path", f"{path!r} is not there (seen from {Path.cwd()})"))
    return Data(target, keys.global_batch_size) if target and keys else None


def _contradictions(config: RunConfig) -> list[Problem]:
    problems = []
    trainer, evaluation = config.trainer, config.evaluation
    if trainer.run_eagerly and config.parameter_servers:
        problems.append(
            Problem("trainer.run_eagerly", "true cannot be used with parameter servers; debug with cluster=none")
        )
    if isinstance(evaluation, Validation) and not isinstance(trainer, Fit):
        problems.append(
            Problem("evaluation", "'validation' is done by Model.fit; choose trainer=fit, or evaluation=direct")
        )
    if trainer.steps_per_execution > trainer.steps_per_epoch:
        problems.append(
            Problem(
                "trainer.steps_per_execution",
                f"is {trainer.steps_per_execution}, more than trainer.steps_per_epoch={trainer.steps_per_epoch}",
            )
        )
    if isinstance(trainer, Fit) and config.parameter_servers:
        setting = keras_callbacks.Setting(
            sharded=not isinstance(config.partitioner, NoPartitioner),
            scheduled=isinstance(config.optimizer.options.get("learning_rate"), Mapping),
        )
        problems.extend(keras_callbacks.problems(trainer.callbacks, setting))
    return problems
