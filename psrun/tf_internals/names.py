"""Private names: whether they exist, the attributes that psrun replaces, the names of shards.

psrun replaces attributes of objects of TensorFlow and tf-keras to place variables and to schedule
steps. A name is checked before it is assigned: Python would make a new attribute of one that is
gone. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

_SHARD = re.compile(r"^(?P<variable>.+)/part_(?P<shard>\d+)$")
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")  # the public options of optimizers that clip gradients
# By name: of what, and what for.
REPLACED = {
    "train_step": "networks: values that their own steps return (`OwnTrainStep`)",
    "update_state": "metrics: which of them a network's own step updates (`OwnTrainStep`)",
    "result": "metrics: which values of a network's own step are results of them (`OwnTrainStep`)",
    "apply_gradients": "optimizers: the stages of a closure (`Stages`), clipping of whole variables",
    "_internal_apply_gradients": "optimizers: the stages of a closure, once gradients are added up and clipped",
    "_clip_gradients": "optimizers: clipping of whole variables, which Keras clips shard by shard",
    "_use_weight_decay": "optimizers: names of variables instead of names of shards",
    "update_step": "SGD: a momentum of 0, which loses updates of other workers",
    "_v": "variables of parameter servers: what they wrap, while the steps of a closure are traced",
    "assign": "variables of replicas: each adds what it has added, instead of the sum of states",
    "_aggregation": "variables of replicas: a learning rate, which all of them assign alike",
    "__class__": "a coordinator's queue of closures; its handler of failures, which waits for one worker at a time; "
    "strategies whose workers have a replica on each of some devices",
    "_config": "the context of TensorFlow: whether idle threads of servers spin",
    "_set_num_gpus": "strategies: the number of these devices",
    "_create_variable": "strategies: the placement of variables",
    "_variable_count": "strategies: the parameter server of the next variable",
    "_variable_partitioner": "strategies: variables that are whole, or cut over all parameter servers",
    "_shared_name": "initial values of lookup tables: one name for each, or servers would share them",
    "tempfile": "AutoGraph's loader: the modules that it writes lie in a folder of the process",
    "resource_handle": "lookup tables of workers: the one of the worker, also in a branch or a loop",
}


def require(holder: Any, *names: str) -> None:
    """Checks private names that are about to be assigned: Python would make a new attribute of one that is gone.

    Raises:
      RuntimeError: `holder` lacks one of the names.
    """
    missing = [name for name in names if not hasattr(holder, name)]
    if missing:
        kind = holder if isinstance(holder, type) else type(holder)
        metadata = importlib.import_module("importlib.metadata")  # 45 ms of each command that needs no name
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("tensorflow", "tf-keras"))
        raise RuntimeError(f"{kind.__module__}.{kind.__qualname__} has no {', '.join(missing)}; installed: {versions}")


def split_name(name: str) -> tuple[str, int]:
    """'table/part_1:0' is shard 1 of 'table'."""
    name = name.partition(":")[0]
    match = _SHARD.match(name)
    return (match["variable"], int(match["shard"])) if match else (name, 0)


def name_of(variable: Any) -> str:
    """The name of a variable, whole or in shards; for a shard, the name of its variable."""
    return split_name((getattr(variable, "variables", None) or [variable])[0].name)[0]


def replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replaces an attribute for good.

    Args:
      around: makes the replacement from the present value.
    """
    assert name in REPLACED, f"list {name} in {__name__}"
    require(owner, name)
    setattr(owner, name, around(getattr(owner, name)))


@contextlib.contextmanager
def replaced(owner: Any, name: str, around: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an attribute in this context; it takes the arguments of `replace`."""
    own = dict(vars(owner))
    replace(owner, name, around)
    try:
        yield
    finally:
        if name in own:
            setattr(owner, name, own[name])
        else:
            delattr(owner, name)
