"""A consistency mode of a user that multiplies all gradients by a number."""

from dataclasses import dataclass

from psrun.config.choices import ConsistencyChoice


@dataclass(frozen=True)
class Damped(ConsistencyChoice):
    implementation = "damped_closures:DampedClosures"
    factor: float
    kind: str = "damped"
