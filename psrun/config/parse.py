"""Parses a composed configuration into a `RunConfig`, or one error with all problems. No TensorFlow.

The resolvers of OmegaConf depend on the number of replicas:

${num_replicas:}                     the number of model replicas that train in step
${scaled:0.01}                       the number multiplied by the number of replicas
${by_batch_size:{32: 0.1, 64: 0.2}}  the value for data.global_batch_size
"""

from __future__ import annotations

import dataclasses
import glob
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from psrun import parts
from psrun.config import advice, choices, groups, rules, schema, targets, topology
from psrun.config.choices import KINDS
from psrun.config.run_config import (
    MODES,
    Data,
    EarlyStopping,
    ExportKeys,
    LowerLearningRate,
    ModelKeys,
    PredictKeys,
    ProfileKeys,
    RunConfig,
    RunKeys,
    SweepKeys,
    SystemKeys,
)
from psrun.config.schema import AUTO, at_least, one_of
from psrun.config.targets import Target
from psrun.errors import ConfigError, Problem

_UNDECIDED = (None, AUTO)  # batch sizes that are not decided yet
_ON_THIS_MACHINE = ("inprocess", "local", "multi_worker_mirrored")
TOP = ("mode", "seed", "run", "resume", "restore", "task", "export", "predict", "early_stopping", "reduce_lr", "sweep",
       "system", "profile")  # fmt: skip
RECORDED = (  # hold when resumed
    *KINDS, "model", "data", "optimizer", "table_optimizer", "seed", "run", "export", "early_stopping", "reduce_lr",
    "system", "profile"
)  # fmt: skip
GROUPS = (*KINDS, "model", "data", "optimizer", "table_optimizer")
_KNOWN_OPTIMIZERS = ("psrun.", "tf_keras.")  # these require a learning rate; others may not
_OF_MODELS = frozenset(field.name for field in dataclasses.fields(ModelKeys))


def register_resolvers() -> None:
    """Registers the resolvers with OmegaConf."""
    add_resolver("num_replicas", _num_replicas)
    add_resolver("scaled", _scaled)
    add_resolver("by_batch_size", _by_batch_size)


def add_resolver(name: str, resolver: Callable[..., Any], *, use_cache: bool = False) -> None:
    """Registers a resolver with OmegaConf 2.3, or with 2.4, which warns of the old name and checks annotations."""
    if "annotation_validation" in inspect.signature(OmegaConf.register_resolver).parameters:
        options: dict[str, Any] = {"replace": True, "use_cache": use_cache, "annotation_validation": "off"}
        OmegaConf.register_resolver(name, resolver, **options)
    else:
        OmegaConf.register_new_resolver(name, resolver, replace=True, use_cache=use_cache)


def num_replicas(cluster: Mapping[str, Any]) -> int:
    """The number of replicas that share a batch: with parameter servers the replicas of one worker, else all.

    Args:
      cluster: the configuration of the cluster, as plain values.

    Raises:
      ConfigError: the number is unknown until TensorFlow runs.
    """
    kind = cluster.get("kind")
    count = cluster.get("num_replicas")
    if isinstance(count, int):
        return count
    known = isinstance(kind, str) and choices.of_kind("cluster", kind) is not None  # `load` reports unknown kinds
    if not known or kind in ("none", "one_device"):
        return 1
    if kind == "multi_worker_mirrored":
        if not topology.gpus_here():
            return int(cluster.get("num_workers", 1))
        message = (
            "runs on a machine with GPUs: the number of replicas is unknown until it runs; set data.global_batch_size"
        )
        raise ConfigError([Problem("cluster", message)])
    per_worker = cluster.get("replicas_per_worker")
    if isinstance(per_worker, int):
        return per_worker
    if kind in _ON_THIS_MACHINE and not topology.gpus_here():
        return 1
    message = (
        "is null, but other values depend on it: the workers' number of GPUs is unknown until they run; set a number"
    )
    raise ConfigError([Problem("cluster.replicas_per_worker", message)])


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """The configuration with `global_batch_size` derived from `batch_size_per_replica` if only that is a number.

    Raises:
      ConfigError: the number of replicas is unknown until TensorFlow runs.
    """
    data = values.get("data")
    cluster = values.get("cluster")
    if not isinstance(data, dict) or not isinstance(cluster, Mapping):
        return values
    per_replica = data.get("batch_size_per_replica")
    if data.get("global_batch_size") not in _UNDECIDED or not isinstance(per_replica, int):
        return values
    return {**values, "data": {**data, "global_batch_size": per_replica * num_replicas(cluster)}}


def _num_replicas(*, _root_: DictConfig) -> int:
    cluster: Any = OmegaConf.to_container(_root_.cluster, resolve=True)
    return num_replicas(cluster)


def _scaled(value: Any, *, _root_: DictConfig) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"${{scaled:{value}}} requires a number, such as ${{scaled:0.01}}")
    return value * _num_replicas(_root_=_root_)


def _by_batch_size(table: Any, *, _root_: DictConfig) -> Any:
    if not isinstance(table, Mapping) or not table:
        raise ConfigError("${by_batch_size:...} requires a mapping, such as ${by_batch_size:{32: 0.1, 64: 0.2}}")
    size = OmegaConf.select(_root_, "data.global_batch_size")
    per_replica = OmegaConf.select(_root_, "data.batch_size_per_replica")
    if size in _UNDECIDED and isinstance(per_replica, int):
        size = per_replica * _num_replicas(_root_=_root_)
    if size not in table:
        sizes = ", ".join(map(str, table))
        raise ConfigError(
            [Problem("data.global_batch_size", f"is {size}, but ${{by_batch_size:...}} has only {sizes}")]
        )
    return table[size]


@dataclass(frozen=True)
class _HookKeys:
    every_epochs: int | None = at_least(1, default=None)
    every_steps: int | None = at_least(1, default=None)
    every_s: float | None = at_least(0.1, default=None)


@dataclass(frozen=True)
class _DataKeys:
    global_batch_size: int | str = at_least(1, or_else=schema.AUTO)
    batch_size_per_replica: int | None = at_least(1, default=None)
    visitation: str = one_of("once", "every_worker", default="every_worker")
    sharding: str | None = one_of("auto", "file", "data", "off", None, default=None)
    label_vocabulary: Any = None


OF_DATA = frozenset(field.name for field in dataclasses.fields(_DataKeys))
_PERIODS = tuple(field.name for field in dataclasses.fields(_HookKeys))


@dataclass(frozen=True)
class _Top:
    run: RunKeys
    task: choices.TaskKeys
    export: ExportKeys
    predict: PredictKeys
    early_stopping: EarlyStopping
    reduce_lr: LowerLearningRate
    sweep: SweepKeys
    system: SystemKeys
    profile: ProfileKeys
    resume: str | None
    restore: Any
    mode: str = one_of(*MODES)
    seed: int = at_least(0, at_most=2**32 - 1)  # NumPy's and Keras' seeds have 32 bits


def load(raw: Mapping[str, Any], *, elsewhere: bool = False) -> RunConfig:
    """The run that `raw` describes.

    Args:
      raw: the composed configuration as plain values, interpolations resolved, missing values as '???'.
      elsewhere: whether the run is on other hosts: local files are then not checked.

    Raises:
      ConfigError: lists all problems by key.
    """
    problems: list[Problem] = []
    try:
        raw = completed(dict(raw))
    except ConfigError as error:
        placeholder = {"global_batch_size": 1, "batch_size_per_replica": None}  # to check the other keys, too
        raw = {**raw, "data": {**raw["data"], **placeholder}}
        problems += error.problems
    problems += _unknown_keys(raw)
    one = [group for group in KINDS if group not in groups.SEVERAL_CHOICES]
    read: dict[str, Any] = {}
    for group in one:
        read[group] = _read_kind(raw.get(group), group, group, problems)
    read["trackers"] = _read_trackers(raw.get("tracker"), problems)
    read["trainer"] = _with_hooks(read["trainer"], problems)
    top = schema.read(_Top, {name: raw[name] for name in TOP if name in raw}, key="", problems=problems)
    read["model"], read["model_keys"] = _read_model(raw.get("model"), problems)
    read["optimizer"] = _read_optimizer(raw.get("optimizer"), "optimizer", problems)
    read["table_optimizer"] = None
    if raw.get("table_optimizer") is not None:  # runs of earlier versions lack it
        read["table_optimizer"] = _read_optimizer(raw["table_optimizer"], "table_optimizer", problems)
    read["submission"] = _read_submission(raw, problems)
    of_data: list[Problem] = []
    read["data"] = _read_data(raw.get("data"), raw.get("cluster"), of_data, elsewhere=elsewhere)
    if read["data"] is not None and not of_data and not elsewhere:
        of_data += _before_loading(read["data"].target, read["evaluation"])
    problems += [_with_example(problem, raw) for problem in of_data]
    if isinstance(read["trainer"], choices.Fit):
        _check_callbacks(read["trainer"].callbacks, "trainer", problems)
    if isinstance(read["evaluation"], choices.Sidecar):
        _check_callbacks(read["evaluation"].callbacks, "evaluation", problems)
    if problems or top is None:
        raise ConfigError(problems)
    values = {field.name: getattr(top, field.name) for field in dataclasses.fields(top)}
    config = RunConfig(**{**read, **values, "restore": str(top.restore)}, raw=raw)
    if config.consistency.averages and config.trainer.steps_per_execution in (None, AUTO):
        trainer = dataclasses.replace(config.trainer, steps_per_execution=1)
        config = dataclasses.replace(config, trainer=trainer)
    problems += rules.problems(config)
    if problems:
        raise ConfigError(problems)
    return config


def _check_callbacks(callbacks: Sequence[Any], group: str, problems: list[Problem]) -> None:
    """Adds the problems of the `_target_` of each Keras callback."""
    for index, node in enumerate(callbacks):
        key = f"{group}.callbacks[{index}]"
        target = targets.read(node, key=key, problems=problems)
        if target is not None and (problem := rules.problem_of_keras3(target.name, "callbacks")):
            problems.append(Problem(f"{key}._target_", problem))


def _unknown_keys(raw: Mapping[str, Any]) -> list[Problem]:
    """The problems with keys at the root that neither psrun nor an engine has."""
    kind = _kind_of_the_cluster(raw)
    names = []
    for name in _others(raw):
        # The settings of an engine that is not here: the problem with the cluster says so.
        is_of_missing_engine = name == kind and choices.of_kind("cluster", name) is None
        if not is_of_missing_engine and parts.settings(name) is None:
            names.append(name)
    if not names:
        return []
    valid_keys = {*GROUPS, *TOP, *parts.engines_with_settings()}
    return [_unknown(name, raw[name], valid_keys, raw) for name in names]


def _others(raw: Mapping[str, Any]) -> list[str]:
    """The keys at the root that are not the core's."""
    return [name for name in raw if name not in GROUPS and name not in TOP]


def _kind_of_the_cluster(raw: Mapping[str, Any]) -> str | None:
    cluster = raw.get("cluster")
    kind = cluster.get("kind") if isinstance(cluster, Mapping) else None
    return kind if isinstance(kind, str) else None


def _unknown(name: str, value: Any, valid_keys: set[str], raw: Mapping[str, Any]) -> Problem:
    if isinstance(value, Mapping) and name == "experiment":
        keys = ", ".join(f"experiment.{key}" for key in value)
        return Problem(name, f"the experiment file {groups.NEEDS_GLOBAL_PACKAGE}; it currently sets {keys}")
    if name == "experiment":
        return Problem(name, f"is {value!r} in a YAML file; choose it on the command line, or in a defaults list")
    known = {key: node for key, node in raw.items() if key in valid_keys}
    hint = f" A file of your own group {groups.NEEDS_GLOBAL_PACKAGE}." if isinstance(value, Mapping) else ""
    guess = "" if schema.is_near(name, valid_keys) else advice.place_of(name, known)
    guess = guess or schema.did_you_mean(name, valid_keys)
    return Problem(name, f"no such key (value {value!r}).{guess}{hint}")


def _read_kind(node: Any, group: str, key: str, problems: list[Problem]) -> Any:
    """The choice of a group that lies at `key`."""
    kind = node.get("kind") if isinstance(node, Mapping) else None
    if isinstance(node, Mapping) and "_target_" in node and group in _OWN:
        return _OWN[group](node, problems)
    if isinstance(node, Mapping) and "_target_" in node and group in choices.BASES:
        return _read_own_choice(node, group, key, problems)
    if isinstance(node, str):
        problems.append(groups.problem_of_word(group, node))
        return None
    choice = choices.of_kind(group, kind) if isinstance(kind, str) else None
    if choice is None:
        names = ", ".join(choices.kinds(group))
        message = f"is {node!r}; choose {group}=NAME with one of {names}"
        problems.append(Problem(key, parts.with_missing(message)))
        return None
    return schema.read(choice, node, key=key, problems=problems)


def _read_trackers(node: Any, problems: list[Problem]) -> dict[str, choices.TrackerChoice]:
    """The trackers by name. A file of the group without its place has its keys where the names should be."""
    if isinstance(node, str):
        problems.append(groups.problem_of_word("tracker", node))
        return {}
    if not isinstance(node, Mapping) or not node:
        problems.append(
            Problem("tracker", f"is {node!r}; choose tracker=NAME with one of {', '.join(choices.kinds('tracker'))}")
        )
        return {}
    if misplaced := [name for name in ("kind", "_target_") if name in node]:
        message = f"has the key {misplaced[0]} of a single tracker: its file {groups.NEEDS_OWN_PACKAGE}"
        problems.append(Problem("tracker", message))
        return {}
    read = {name: _read_kind(each, "tracker", f"tracker.{name}", problems) for name, each in node.items()}
    return {name: tracker for name, tracker in read.items() if tracker is not None}


def _read_own_choice(node: Mapping[str, Any], group: str, key: str, problems: list[Problem]) -> Any:
    """The choice whose dataclass `_target_` names: of a cluster, a tracker, a consistency or an evaluation mode."""
    base = choices.BASES[group]
    target = Target(str(node["_target_"]), {}, key)
    try:
        found = targets.find(target)
    except ConfigError as error:
        problems += error.problems
        return None
    is_choice = isinstance(found, type) and issubclass(found, base)
    if not is_choice or not dataclasses.is_dataclass(found):
        message = f"{target.name} is no dataclass derived from psrun.config.choices.{base.__name__}"
        problems.append(Problem(f"{key}._target_", message))
        return None
    options = {name: value for name, value in node.items() if name != "_target_"}
    return schema.read(found, options, key=key, problems=problems)


def _read_model(node: Any, problems: list[Problem]) -> tuple[Target | None, ModelKeys | None]:
    """The model function with its options, and the keys that psrun reads.

    conf/model_keys.yaml sets these keys to null for every model. If the function has a parameter of the same name,
    null means not set, unless the parameter is required.
    """
    if not isinstance(node, Mapping):
        return targets.read(node, key="model", problems=problems), None
    required = targets.parameters_of(str(node.get("_target_")))
    own = {name: value for name, value in node.items() if name in _OF_MODELS and name not in required}
    options = {
        name: value
        for name, value in node.items()
        if name not in own and (name not in _OF_MODELS or value is not None or required[name])
    }
    keys = schema.read(ModelKeys, own, key="model", problems=problems)
    problems += rules.problems_of_model_keys(keys) if keys else []
    found: list[Problem] = []
    target = targets.read(options, key="model", problems=found, others=_OF_MODELS)
    for problem in found:
        name = problem.key.removeprefix("model.")
        instead = None if name in required else advice.of_compile(name)
        problems.append(problem if instead is None else Problem(problem.key, instead))
    return target, keys


def _read_optimizer(node: Any, key: str, problems: list[Problem]) -> Target | None:
    target = targets.read(node, key=key, problems=problems)
    if target is None:
        return None
    if problem := rules.problem_of_keras3(target.name, "optimizers"):
        problems.append(Problem(f"{key}._target_", problem))
    if problem := rules.problem_of_legacy_optimizer(target.name):
        problems.append(Problem(f"{key}._target_", problem))
    if key == "table_optimizer":
        problems += rules.clips_of_tables(target.options)
    is_known = target.name.startswith(_KNOWN_OPTIMIZERS)
    is_required = is_known and "learning_rate" in target.options
    rate = target.options.get("learning_rate")
    problems += _check_learning_rate(rate, f"{key}.learning_rate", is_required=is_required)
    if is_known:
        problems += _lists_of_numbers(target)
    return target


def _check_learning_rate(rate: Any, key: str, *, is_required: bool) -> Iterator[Problem]:
    if isinstance(rate, Mapping):
        if "_target_" not in rate:
            yield Problem(key, f"is {dict(rate)}, must be a number, or a schedule with a _target_")
        elif problem := rules.problem_of_keras3(str(rate["_target_"]), "optimizers.schedules"):
            yield Problem(f"{key}._target_", problem)
    elif rate == schema.MISSING:
        yield Problem(key, f"is required; set {key}=...")
    elif isinstance(rate, bool | str):
        if rate != AUTO:
            yield Problem(key, f"is {rate!r}, must be a number, such as {key}=0.01, or auto")
    elif rate is None:
        if is_required:
            yield Problem(key, f"is null, must be a number, such as {key}=0.01")
    elif isinstance(rate, int | float) and not 0 <= rate < math.inf:
        yield Problem(key, f"is {rate}, must be a number of 0 or more")


def _lists_of_numbers(optimizer: Target) -> Iterator[Problem]:
    """Options that are lists: meant for a sweep. No optimizer of tf-keras has an option that is a list of numbers."""
    for name, value in optimizer.options.items():
        if isinstance(value, list | tuple) and all(isinstance(each, int | float) for each in value):
            key = f"{optimizer.key}.{name}"
            values = ",".join(map(str, value))
            advice = f"to sweep over values, add -m and write {key}={values}"
            yield Problem(key, f"is {list(value)}, must be a single number; {advice}")


def _read_own_partitioner(node: Mapping[str, Any], problems: list[Problem]) -> choices.OwnPartitioner | None:
    key = "partitioner"
    if "kind" in node:
        message = f"has a _target_ and kind={node['kind']}; choose partitioner=custom to use a _target_"
        problems.append(Problem(key, message))
        return None
    called_with = choices.OwnPartitioner.PARAMETERS
    target = targets.read(node, key=key, problems=problems, called_with=called_with)
    return choices.OwnPartitioner(target) if target else None


def _read_own_loop(node: Mapping[str, Any], problems: list[Problem]) -> choices.OwnLoop | None:
    key = "trainer"
    kind = node.get("kind")
    if kind != "own_loop":
        problems.append(Problem(key, f"has a _target_ and kind={kind}; choose trainer=own_loop to use a _target_"))
        return None
    common = {field.name for field in dataclasses.fields(choices.CustomLoop)}
    own, options = _parted(node, common)
    keys = schema.read(choices.CustomLoop, own, key=key, problems=problems)
    called_with = choices.OwnLoop.PARAMETERS
    target = targets.read(options, key=key, problems=problems, others=common, called_with=called_with)
    return choices.OwnLoop(**vars(keys), target=target) if keys and target else None


def _parted(node: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of a node with one of the names, and its other keys."""
    own = {}
    others = {}
    for name, value in node.items():
        if name in names:
            own[name] = value
        else:
            others[name] = value
    return own, others


_OWN = {"partitioner": _read_own_partitioner, "trainer": _read_own_loop}


def _with_hooks(trainer: Any, problems: list[Problem]) -> Any:
    """The trainer with its hooks as `choices.Hook`."""
    if trainer is None:
        return None
    hooks = [_read_hook(node, f"trainer.hooks[{index}]", problems) for index, node in enumerate(trainer.hooks)]
    return dataclasses.replace(trainer, hooks=hooks)


def _read_hook(node: Any, key: str, problems: list[Problem]) -> choices.Hook | None:
    periods: Mapping[str, Any] = {}
    options = node
    if isinstance(node, Mapping):
        periods, options = _parted(node, _PERIODS)
    called_with = choices.Hook.PARAMETERS
    target = targets.read(options, key=key, problems=problems, others=_PERIODS, called_with=called_with)
    keys = schema.read(_HookKeys, periods, key=key, problems=problems)
    if target and keys and sum(value is not None for value in vars(keys).values()) != 1:
        problems.append(Problem(key, f"needs exactly one of {', '.join(_PERIODS)}; has {periods or 'none'}"))
    return choices.Hook(target, **vars(keys)) if target and keys else None


def _read_submission(raw: Mapping[str, Any], problems: list[Problem]) -> Any:
    """The settings of the engine; only the engine of the cluster may have some."""
    kind = _kind_of_the_cluster(raw)
    for name in _others(raw):
        if name != kind and parts.settings(name) is not None:
            problems.append(Problem(name, f"requires cluster={name}; got cluster={kind}: remove it"))
    if kind is None or kind in KINDS["cluster"]:
        return None
    settings = parts.settings(kind)
    if settings is None:
        return None
    node = raw.get(kind)
    if not isinstance(node, Mapping):
        problems.append(Problem(kind, f"is {node!r}, must be a mapping of settings; choose cluster={kind}"))
        return None
    return schema.read(settings, node, key=kind, problems=problems)


def _read_data(node: Any, cluster: Any, problems: list[Problem], *, elsewhere: bool) -> Data | None:
    """The data of a run; None, with problems added, if they are not valid. `cluster` has the number of replicas."""
    if isinstance(node, str):
        problems.append(groups.problem_of_word("data", node))
        return None
    if not isinstance(node, Mapping):
        problems.append(Problem("data", f"is {node!r}; choose data=NAME"))
        return None
    own, options = _parted(node, OF_DATA)
    if own.get("sharding") is False:  # YAML's `off`
        own["sharding"] = "off"
    vocabulary = _label_vocabulary(own.pop("label_vocabulary", None), problems)
    _check_batch_size(own, cluster, problems)
    keys = schema.read(_DataKeys, own, key="data", problems=problems)
    target = targets.read(options, key="data", problems=problems, others=OF_DATA)
    if not elsewhere:
        problems += _missing_files(node)
    if target is None or keys is None:
        return None
    values = {**dataclasses.asdict(keys), "label_vocabulary": vocabulary}
    del values["batch_size_per_replica"]  # the global one follows from it
    return Data(target, **values)


def _before_loading(data: Target, evaluation: Any) -> list[Problem]:
    """The problems that the data's own check finds without TensorFlow; see `psrun.data.source.DataSource`."""
    name = targets.checked_by(data)
    if name is None:
        return []
    features: dict[str, str] = {}
    if isinstance(evaluation, choices.EvaluationChoice):
        single = {"user": evaluation.user, "item": evaluation.item}
        features |= {f"evaluation.{key}": feature for key, feature in single.items() if feature is not None}
        for key in ("by", "item_features"):
            for index, feature in enumerate(getattr(evaluation, key)):
                features[f"evaluation.{key}[{index}]"] = feature
    check = targets.find(Target(name, {}, "data"))
    problems: list[Problem] = check(data.options, features)
    return problems


def _with_example(problem: Problem, raw: Mapping[str, Any]) -> Problem:
    """The problem; where there is no path, with an experiment that has data, and where no label, with both remedies."""
    if problem.key == "data.label" and problem.message.startswith("is required"):
        return Problem(problem.key, f"{problem.message}, or to null if each row is an interaction without a label")
    if problem.key != "data.path" or not problem.message.startswith("is required"):
        return problem
    example = advice.example_with_data(raw.get("model"), raw.get("data"))
    return Problem(problem.key, f"{problem.message}; {example}") if example else problem


def _check_batch_size(data: dict[str, Any], cluster: Any, problems: list[Problem]) -> None:
    """Adds a problem if both batch sizes are missing, or contradict each other."""
    key = "data.global_batch_size"
    per_replica = data.get("batch_size_per_replica")
    size = data.get("global_batch_size")
    if per_replica is None and size is None:
        remedy = f"set {key}=..."
        if "global_batch_size" not in data:  # in the file of a data choice of one's own
            remedy = f"add the line 'global_batch_size: auto' to the file of the data, or set +{key}=64"
        problems.append(Problem(key, f"is required; {remedy}"))
        data["global_batch_size"] = schema.AUTO
    if not isinstance(per_replica, int) or not isinstance(size, int) or not isinstance(cluster, Mapping):
        return
    try:
        replicas = num_replicas(cluster)
    except ConfigError as error:
        problems += error.problems
        return
    if size != per_replica * replicas:
        message = f"is {size}, but {replicas} x data.batch_size_per_replica={per_replica} is {per_replica * replicas}"
        problems.append(Problem(key, f"{message}: set one of them to null"))


def _missing_files(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Data paths that do not exist on this machine. TensorFlow checks those of remote file systems."""
    for name in ("path", "eval_path"):
        path = data.get(name)
        if not isinstance(path, str) or path == schema.MISSING or "://" in path:
            continue
        key = f"data.{name}"
        local = str(Path(path).expanduser())
        if Path(local).exists():  # its name may look like a pattern
            continue
        is_pattern = any(mark in path for mark in "*?[")
        if is_pattern and next(glob.iglob(local), None) is not None:
            continue
        made_by = advice.command_that_makes(path)  # reads all experiments
        remedy = f"; to make it: {made_by}" if made_by else ""
        if is_pattern:
            yield Problem(key, f"no file matches {path!r} (current folder: {Path.cwd()}){remedy}")
        else:
            guess = remedy or f".{schema.file_meant(local)}"
            yield Problem(key, f"{path!r} does not exist (current folder: {Path.cwd()}){guess}".removesuffix("."))


def _label_vocabulary(value: Any, problems: list[Problem]) -> Any:
    """The values as a tuple, all strings or all integers; otherwise adds a problem."""
    if value is None:
        return None
    key = "data.label_vocabulary"
    example = "a list of strings or of integers, such as [no, yes]"
    if not isinstance(value, list) or len(value) < 2:
        problems.append(Problem(key, f"is {value!r}, must be null or {example}, with at least 2 values"))
        return None
    # YAML reads an unquoted `no` as false and `yes` as true.
    values = [{False: "no", True: "yes"}[each] if isinstance(each, bool) else each for each in value]
    kinds = {type(each) for each in values}
    if kinds not in ({str}, {int}) or "" in values:
        problems.append(Problem(key, f"is {value!r}, must be {example}; quote strings that look like numbers"))
    elif twice := sorted({each for each in values if values.count(each) > 1}):
        problems.append(Problem(key, f"lists {', '.join(map(repr, twice))} more than once; remove the duplicates"))
    return tuple(values)
