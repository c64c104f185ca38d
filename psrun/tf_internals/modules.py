"""What TensorFlow does to `sys.modules`. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import os
import sys

_GENERATED = "__autograph_generated_file"


def remove_generated_files() -> None:
    """Removes the modules that AutoGraph wrote to the folder for temporary files.

    TensorFlow removes them when the interpreter exits, which `os._exit` skips (TensorFlow 2.21).
    """
    for name in [name for name in sys.modules if name.startswith(_GENERATED)]:
        with contextlib.suppress(OSError, TypeError):
            os.unlink(sys.modules[name].__file__)  # type: ignore[arg-type]


def import_without_keras() -> None:
    """Makes a later `import tensorflow` leave Keras out.

    TensorFlow imports Keras where it can, which takes a fifth of the whole import; a server never uses it. There is no
    switch for it (TensorFlow 2.21, with TF_USE_LEGACY_KERAS set).
    """
    sys.modules["tf_keras"] = None  # type: ignore[assignment]
