"""Access to internals of Keras 3 with TensorFlow's backend. Imports Keras 3.

Keras 3 keeps each weight in a `keras.Variable`, which holds a TensorFlow variable. Its public API has no access to that
variable, no hook for its creation, and no list of a model's random generators (Keras 3.15; 3.12 is the same).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.core import Variable
from keras.src.models.functional import Functional
from keras.src.random import seed_generator
from keras.src.utils import naming

from psrun.tf_internals.names import require

_active: ContextVar[VariableCreation | None] = ContextVar("variable_creation", default=None)


class VariableCreation:
    """Replaces how Keras makes the TensorFlow variables of its variables.

    Keras passes no shape, so that a strategy would compute the whole value for each shard; and it names a variable that
    is made late after its last part only.

    Args:
      create: makes the TensorFlow variable of a Keras variable, from this, its initializer, called with shape and
        dtype, and a name that no other has.

    Attributes:
      created: the Keras variables that were made in this way, without those of random generators.
    """

    def __init__(self, create: Callable[[Any, Callable[..., Any], str], Any]) -> None:
        self._create = create
        self._names: Counter[str] = Counter()
        self.created: list[Any] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """In this context, of this thread, Keras variables are made by the creator."""
        _install()
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def make(self, variable: Any, initializer: Callable[..., Any]) -> Any:
        """The TensorFlow variable of a Keras variable, under its path, which is numbered if it occurs again."""
        self._names[variable.path] += 1
        number = self._names[variable.path]
        if variable.name != _SEED_STATE:
            self.created.append(variable)
        return self._create(variable, initializer, variable.path if number == 1 else f"{variable.path}_{number}")


_STATELESS_SCOPE = "stateless_scope"
_SEED_STATE = "seed_generator_state"


def _install() -> None:
    """Wraps the two methods by which Keras' variables get their values; without an active context they do as before."""
    if getattr(Variable, "psrun_wrapped", False):
        return
    require(Variable, "_initialize", "_initialize_with_initializer")
    initialize = Variable._initialize
    with_initializer = Variable._initialize_with_initializer

    def from_value(self: Any, value: Any) -> None:
        creation = _active.get()
        if creation is None or hasattr(value, "assign"):
            initialize(self, value)
        else:
            self._shape = tuple(value.shape)
            self._value = creation.make(self, lambda shape, dtype: value)

    def from_initializer(self: Any, initializer: Callable[..., Any]) -> None:
        creation = _active.get()
        if creation is None:
            with_initializer(self, initializer)
        else:
            self._value = creation.make(self, initializer)

    Variable._initialize = from_value
    Variable._initialize_with_initializer = from_initializer
    Variable.psrun_wrapped = True


@contextlib.contextmanager
def creating_now() -> Iterator[None]:
    """In this context variables are made at once, also where Keras only infers shapes, and would make them later."""
    scope = global_state.get_global_attribute(_STATELESS_SCOPE)
    global_state.set_global_attribute(_STATELESS_SCOPE, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(_STATELESS_SCOPE, scope)


def stateless_scope() -> Any:
    """The present `keras.StatelessScope`; None outside of one."""
    return global_state.get_global_attribute(_STATELESS_SCOPE)


def value_of(variable: Any) -> Any:
    """The TensorFlow variable in a Keras variable, perhaps in shards."""
    return variable._value


def layers_within(model: Any) -> list[Any]:
    """All layers of a Keras 3 model, those within other layers and models too, and the model itself."""
    return list(model._flatten_layers())


def stateful_layers(model: Any) -> list[Any]:
    """The recurrent layers of a model that keep their states from batch to batch."""
    recurrent = [layer for layer in layers_within(model) if isinstance(layer, keras.layers.RNN)]
    return [layer for layer in recurrent if layer.stateful and layer.states is not None]


def inputs_of(model: Any) -> list[Any] | None:
    """The inputs of a functional model, or of a Sequential that knows its input; None for other models."""
    known = isinstance(model, Functional) or (isinstance(model, keras.Sequential) and model._functional is not None)
    return list(model.inputs) if known else None


def input_structure(model: Any) -> Any:
    """The inputs of a model as it was given them, such as a dict; None where `inputs_of` is None."""
    return model.input if isinstance(model, Functional) else inputs_of(model)


def argument_of_only_call(layer: Any) -> Any:
    """The first argument of the only call of a layer in functional models; None if there are more calls, or none."""
    if len(layer._inbound_nodes) != 1:
        return None
    return layer._inbound_nodes[0].arguments.args[0]


def producer(tensor: Any) -> Any:
    """The layer that returned a symbolic tensor."""
    return tensor._keras_history.operation


def start_afresh() -> None:
    """Resets the numbers in the names of layers, and the random generator of functions without a seed.

    `keras.utils.clear_session` would also leave the name scope that is open.
    """
    naming.reset_uids()
    use_for_unseeded(None)


def new_name(prefix: str) -> str:
    """A name for a layer, as Keras would number it."""
    return naming.auto_name(prefix)


def names_itself(metric: Any) -> bool:
    """Whether Keras may have named a metric after its class, with a number where there were others before."""
    require(naming, "to_snake_case", "uniquify")
    base = naming.to_snake_case(type(metric).__name__)
    uids = global_state.get_global_attribute("object_name_uids") or {}
    numbers = range(1, uids.get(base, 0))
    return metric.name == base or metric.name in [f"{base}_{number}" for number in numbers]


class FixedSeed(seed_generator.SeedGenerator):
    """A seed that is a tensor: Keras' random functions take a number or a generator."""

    def __init__(self, seed: Any) -> None:
        self._seed = seed

    def next(self, ordered: bool = True) -> Any:
        return self._seed


def seed_generators(model: Any) -> list[Any]:
    """The random generators of all layers of a model, such as those of Dropout."""
    generators = {id(each): each for layer in layers_within(model) for each in layer._seed_generators}
    return list(generators.values())


def use_for_unseeded(generator: Any) -> None:
    """Makes random functions without a seed use the generator, in this thread."""
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)


def compile_settings(model: Any) -> Mapping[str, Any]:
    """The arguments of `model.compile`, with the optimizer as an object; empty if it was not called.

    `get_compile_config`, which is public, has them serialized.
    """
    if not model.compiled:
        return {}
    require(model, "_compile_config")
    return dict(model._compile_config.config)


def function_of(metric: Any) -> Any:
    """The function whose mean a `keras.metrics.MeanMetricWrapper` is."""
    return metric._fn


def clear_losses(model: Any) -> None:
    """Forgets what `add_loss` collected in earlier calls."""
    model._clear_losses()
