"""Controls how much of TensorFlow is imported, and the modules that AutoGraph writes.

AutoGraph writes modules to a folder of each process, which its end removes, or another process
later. TensorFlow writes them to the folder for temporary files, and removes them when the
interpreter exits: never after a kill (TensorFlow 2.21). Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
import tempfile
import threading
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

from psrun import files
from psrun.tf_internals import names

_GENERATED = "__autograph_generated_file"
# Imported by TensorFlow, tf-keras, TensorBoard and SciPy for what a run rarely does: a fifth of the time of
# `import tensorflow`, and 38 MB (TensorFlow 2.21, tf-keras 2.21, TensorBoard 2.21, SciPy 1.17).
_RARELY_USED = (
    "fsspec",
    "h5py",
    "numpy.f2py",
    "numpy.testing",
    "pandas",
    "requests",
    "scipy.linalg",
    "scipy.ndimage",
)
# The runtime with all kernels: a sixth of the processor time of the import (TensorFlow 2.21).
_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
_UNLOADED = "__psrun_unloaded__"
_LOADING = threading.RLock()
_LOADER = "tensorflow.python.autograph.pyct.loader"
_FOLDER_PREFIX = "psrun-autograph-"  # of a folder that is locked as long as its process lives
_NEW_FOLDER_PREFIX = "psrun-new-"  # of a folder that is not locked yet
_folders: dict[int, Path] = {}  # by process id: a forked process makes its own


def remove_generated_files() -> None:
    """Removes the modules that AutoGraph wrote to the folder for temporary files, and their bytecode.

    TensorFlow removes the modules when the interpreter exits, which `os._exit` skips, and never their bytecode
    (TensorFlow 2.21).
    """
    specs = [module.__spec__ for name, module in sys.modules.copy().items() if name.startswith(_GENERATED)]
    files = {file for spec in specs if spec is not None for file in (spec.origin, spec.cached) if file}
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)
    for folder in {os.path.dirname(file) for file in files}:
        if os.path.basename(folder) == "__pycache__":
            with contextlib.suppress(OSError):  # others have files in it
                os.rmdir(folder)


class _LazyModule(types.ModuleType):
    """A module that is loaded at the first use of a name that it defines, or of a module in it.

    Those of Python's LazyLoader are also loaded by a second `import`, and by a look at the file of each module, which
    AutoGraph takes (Python 3.11).
    """

    def __getattr__(self, name: str) -> Any:
        with _LOADING:
            if self.__dict__.pop(_UNLOADED, False):
                spec = self.__spec__
                assert spec is not None
                assert spec.loader is not None
                if spec.submodule_search_locations is not None:
                    self.__path__ = spec.submodule_search_locations
                spec.loader.exec_module(self)
                self.__class__ = types.ModuleType  # type: ignore[assignment]
        return types.ModuleType.__getattribute__(self, name)


class _LazyLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        module.__dict__.pop("__path__", None)  # so that an import of a module in it loads this one first
        module.__dict__[_UNLOADED] = True


class _LazyFinder:
    """Finds only modules that are rarely used, for `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _RARELY_USED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def lazy_imports() -> Iterator[None]:
    """Within it, modules that TensorFlow imports but a run rarely uses are only found; they load when they are used."""
    sys.meta_path.insert(0, _LazyFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_LazyFinder)


def load_libraries() -> threading.Thread:
    """Begins to load TensorFlow's libraries, which a later import of TensorFlow finds loaded; returns the thread.

    Call it once the environment variables of TensorFlow are set. The thread does not hold Python's lock meanwhile, as
    the import would: other imports go on. It does nothing where TensorFlow has no such libraries.
    """
    thread = threading.Thread(target=_load_libraries, name="psrun-libraries", daemon=True)
    thread.start()
    return thread


def _load_libraries() -> None:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None:
        return
    system = ctypes.CDLL(None)  # a call of its function releases Python's lock; `ctypes.CDLL(path)` does not
    system.dlopen.restype = ctypes.c_void_p
    for folder in spec.submodule_search_locations or ():
        for name in _LIBRARIES:
            system.dlopen(os.fsencode(Path(folder, name)), ctypes.c_int(os.RTLD_NOW))  # None if there is no such file


def import_without_keras() -> None:
    """Makes a later `import tensorflow` leave Keras out, unless Keras is imported already.

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
    module.__spec__ = spec
    module.__file__ = spec.origin
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


def keep_generated_files_together() -> None:
    """Lets AutoGraph write to the folder of this process from now on, if it is imported."""
    loader = sys.modules.get(_LOADER)
    if loader is not None and not isinstance(loader.tempfile, types.SimpleNamespace):
        names.replace(loader, "tempfile", lambda _: types.SimpleNamespace(NamedTemporaryFile=_temporary_file))


def _temporary_file(**options: Any) -> Any:
    return tempfile.NamedTemporaryFile(dir=_own_folder(), **options)


def _own_folder() -> Path:
    """The folder of this process. The first call removes the folders of processes that were killed."""
    folder = _folders.get(os.getpid())
    if folder is None:
        remove_abandoned_folders()
        new = Path(tempfile.mkdtemp(prefix=_NEW_FOLDER_PREFIX))
        files.hold(new)
        folder = new.rename(new.with_name(new.name.replace(_NEW_FOLDER_PREFIX, _FOLDER_PREFIX, 1)))
        _folders[os.getpid()] = folder
    return folder


def remove_generated_folder() -> None:
    """Removes the folder of this process, if there is one."""
    folder = _folders.pop(os.getpid(), None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders() -> None:
    """Removes the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or on a file system without locks
            if not files.is_locked(folder):
                shutil.rmtree(folder)
