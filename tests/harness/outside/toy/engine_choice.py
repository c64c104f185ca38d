"""A cluster of another package: its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from psrun.config.choices import Local


@dataclass(frozen=True)
class Marked(Local):
    implementation: ClassVar[str] = "toy.engine:open_backend"
    mark: str = field(kw_only=True)
