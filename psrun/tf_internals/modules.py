"""Controls how much of TensorFlow is imported, and its entries of `sys.modules`. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NoReturn

_GENERATED = "__autograph_generated_file"
# Imported by TensorFlow, tf-keras and SciPy for what a run rarely does: a sixth of the time of `import tensorflow`, and
# 38 MB (TensorFlow 2.21, tf-keras 2.21, SciPy 1.17, which reads every attribute of NumPy).
_RARELY_USED = ("numpy.f2py", "numpy.testing", "pandas", "scipy.linalg", "scipy.ndimage")


def remove_generated_files() -> None:
    """Removes the modules that AutoGraph wrote to the folder for temporary files, and their bytecode.

    TensorFlow removes the modules when the interpreter exits, which `os._exit` skips, and never their bytecode
    (TensorFlow 2.21).
    """
    specs = [module.__spec__ for name, module in [*sys.modules.items()] if name.startswith(_GENERATED)]
    files = {file for spec in specs if spec is not None for file in (spec.origin, spec.cached) if file}
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)
    for folder in {os.path.dirname(file) for file in files}:
        if os.path.basename(folder) == "__pycache__":
            with contextlib.suppress(OSError):  # others have files in it
                os.rmdir(folder)


class _LazyFinder:
    """A finder for `sys.meta_path` that makes rarely used modules load at the first use of one of their attributes."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _RARELY_USED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def lazy_imports() -> Iterator[None]:
    """Within it, modules that TensorFlow's packages import but rarely use load only when they are used.

    A module that is not installed is missing as ever.
    """
    sys.meta_path.insert(0, _LazyFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_LazyFinder)


def import_without_keras() -> None:
    """Makes a later `import tensorflow` leave Keras out.

    TensorFlow imports Keras where it can, which takes a fifth of the whole import; a server never uses it. There is no
    switch for it (TensorFlow 2.21, with TF_USE_LEGACY_KERAS set).
    """
    sys.modules.setdefault("tf_keras", None)  # type: ignore[arg-type]


def import_for_servers() -> None:
    """Makes modules below `tensorflow` importable without the package's public API, which a server never uses.

    The API takes four fifths of the time of `import tensorflow`, and half of its memory; the runtime with all its
    kernels is one library, which `tensorflow.python` loads. Plug-ins are loaded by the API: with one, TensorFlow is
    imported whole (TensorFlow 2.21).
    """
    import_without_keras()
    spec = importlib.util.find_spec("tensorflow")
    if "tensorflow" in sys.modules or spec is None or _has_plugins(list(spec.submodule_search_locations or ())):
        return
    module = types.ModuleType("tensorflow")
    module.__spec__, module.__file__ = spec, spec.origin
    module.__path__ = spec.submodule_search_locations or []
    module.__getattr__ = _missing  # type: ignore[method-assign]
    sys.modules["tensorflow"] = module


def _has_plugins(tensorflow: list[str]) -> bool:
    """Whether `import tensorflow` would load libraries besides its own."""
    schemes = sysconfig.get_scheme_names()
    installed = {sysconfig.get_path(kind, scheme) for scheme in schemes for kind in ("purelib", "platlib")}
    folders = [Path(each, "tensorflow-plugins") for each in {*sys.path, *site.getsitepackages(), *installed}]
    kernels = [Path(each, "core", "kernels") for each in tensorflow]
    libraries = os.environ.get("TF_PLUGGABLE_DEVICE_LIBRARY_PATH") or os.environ.get("TF_USE_MODULAR_FILESYSTEM")
    return bool(libraries) or any(folder.exists() for folder in (*folders, *kernels))


def _missing(name: str) -> NoReturn:
    raise AttributeError(f"tensorflow.{name}: this process only serves, and does not import TensorFlow's public API")
