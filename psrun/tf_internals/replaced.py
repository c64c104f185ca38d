"""Attributes of objects of TensorFlow and tf-keras that psrun replaces to place variables and to schedule steps.

A name is checked before it is assigned: Python would make a new attribute of one that is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from psrun.tf_internals.required import require

# By name: of what, and what for.
REPLACED = {
    "train_step": "networks: values that their own steps return (`OwnTrainStep`); late gradients (`SimulatedDelay`)",
    "update_state": "metrics: which of them a network's own step updates (`OwnTrainStep`)",
    "result": "metrics: which values of a network's own step are results of them (`OwnTrainStep`)",
    "apply_gradients": "optimizers: the stages of a closure (`Stages`), late gradients, clipping of whole variables",
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
    """Replaces an attribute in this context; the arguments are those of `replace`."""
    own = dict(vars(owner))
    replace(owner, name, around)
    try:
        yield
    finally:
        if name in own:
            setattr(owner, name, own[name])
        else:
            delattr(owner, name)
