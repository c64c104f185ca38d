"""The interface of choices that name the module of their code, in psrun or in a user's project."""

from __future__ import annotations

from typing import Any, ClassVar

from psrun import parts


class Choice:
    """One choice of a group: its options, and the answers to what the rest of psrun asks about it.

    Attributes:
      implementation: 'package.module:name' of the code that carries it out; imported when it is needed, because it may
        import TensorFlow.
    """

    implementation: ClassVar[str] = ""

    def load(self) -> Any:
        """Imports and returns the implementation.

        Raises:
          ImportError, AttributeError: it does not exist.
        """
        return parts.load(self.implementation)
