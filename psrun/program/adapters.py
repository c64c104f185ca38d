"""The door for models of other libraries than tf-keras: parts adapt them. Imports none of these libraries."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tf_keras

from psrun import parts
from psrun.models.model import Model


@dataclass(frozen=True)
class ModelFunction:
    """A model function with its arguments.

    Attributes:
      load: imports the module of the function.
      call: returns what the function returns.
      seed: for the initial values of the model.
    """

    load: Callable[[], Any]
    call: Callable[[], Any]
    seed: int


class Adapter(abc.ABC):
    """Makes models, losses and metrics of a library trainable by tf-keras. It returns all others unchanged.

    A part names its adapter in `psrun.parts.Part.models`. psrun asks the adapters of its own parts about every model.
    It asks the adapters of other packages about a model that is still unknown, and then about its loss and metrics.
    """

    @abc.abstractmethod
    def adapt(self, function: ModelFunction) -> Any:
        """Calls a model function.

        Returns:
          What the function returned. For a model of the library, a `psrun.models.model.Model` or a `tf_keras.Model`.

        Raises:
          ConfigError: the model cannot be trained.
        """

    def loss(self, loss: Any) -> Any:
        """A loss, or losses by output, as `tf_keras.Model.compile` takes them."""
        return loss

    def metrics(self, metrics: Any) -> Any:
        """Metrics, or metrics by output, as `tf_keras.Model.compile` takes them. Raises ConfigError."""
        return metrics


def own() -> list[Adapter]:
    """The adapters of psrun's own parts."""
    return _adapters(parts.own())


def others() -> list[Adapter]:
    """The adapters of other packages."""
    return _adapters(parts.others())


def _adapters(offered: Iterable[parts.Part]) -> list[Adapter]:
    return [parts.load(part.models)() for part in offered if part.models]


def adapted(adapters: Sequence[Adapter], function: ModelFunction) -> Any:
    """What a model function returns, changed by each adapter that knows it."""
    for adapter in adapters:
        function = replace(function, call=functools.partial(adapter.adapt, function))
    return function.call()


def is_model(returned: Any) -> bool:
    """Whether a model function returned what tf-keras trains."""
    network = returned.network if isinstance(returned, Model) else returned
    return isinstance(network, tf_keras.Model)


def loss(adapters: Sequence[Adapter], given: Any) -> Any:
    """A loss, or losses by output, changed by each adapter that knows them."""
    for adapter in adapters:
        given = adapter.loss(given)
    return given


def metrics(adapters: Sequence[Adapter], given: Any) -> Any:
    """Metrics, or metrics by output, changed by each adapter that knows them."""
    for adapter in adapters:
        given = adapter.metrics(given)
    return given
