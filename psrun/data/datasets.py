"""The data sources of the core: generated examples, and Fashion-MNIST (Xiao, Rasul and Vollgraf 2017)."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import ArraySource, Feature
from psrun.errors import DataError

VOCABULARY = ("avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman")
NAMES_PER_EXAMPLE = 3
NUM_CLASSES = 10
_NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class HeroFeatures(ArraySource):
    """Three hero names per example, drawn with replacement; the label is 1 if one of them is 'avenger'."""

    def __init__(self, *, num_train_examples: int = 10000, num_eval_examples: int = 2000, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(
            features={"features": Feature((NAMES_PER_EXAMPLE,), tf.string, VOCABULARY)},
            task="binary",
            train=_hero_examples(rng, num_train_examples),
            evaluation=_hero_examples(rng, num_eval_examples),
        )


def _hero_examples(rng: np.random.Generator, num_examples: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    ids = rng.integers(len(VOCABULARY), size=(num_examples, NAMES_PER_EXAMPLE))
    labels = np.any(ids == VOCABULARY.index("avenger"), axis=1, keepdims=True)
    return {"features": np.array(VOCABULARY, dtype=bytes)[ids]}, labels.astype(np.float32)


class Regression(ArraySource):
    """y = x . w + sin(3 x_0) + noise, with x uniform in [-1, 1) and w drawn once from the seed.

    Args:
      noise: standard deviation of the Gaussian noise; its square is the lowest possible mean squared error.
    """

    def __init__(
        self,
        *,
        num_features: int = 10,
        num_train_examples: int = 10000,
        num_eval_examples: int = 2000,
        noise: float = 0.1,
        seed: int = 1,
    ) -> None:
        rng = np.random.default_rng(seed)
        weights = rng.normal(size=(num_features, 1)) / np.sqrt(num_features)

        def examples(num_examples: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            x = rng.uniform(-1, 1, size=(num_examples, num_features))
            y = x @ weights + np.sin(3 * x[:, :1]) + noise * rng.normal(size=(num_examples, 1))
            return {"x": x.astype(np.float32)}, y.astype(np.float32)

        super().__init__(
            features={"x": Feature((num_features,), tf.float32)},
            task="regression",
            train=examples(num_train_examples),
            evaluation=examples(num_eval_examples),
            facts={"noise_variance": noise**2},
        )


class FashionMnist(ArraySource):
    """28 x 28 grey images of clothes in 10 classes; pixels scaled to [0, 1].

    Args:
      path: a .npz file with x_train, y_train, x_test, y_test, or a folder with the four idx files, gzipped or not;
        None for Keras' download.

    Raises:
      DataError: the files do not exist, are truncated, or have other content.
    """

    def __init__(self, *, path: str | None = None) -> None:
        x_train, y_train, x_test, y_test = _load_images(path)
        for name, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
            if x.ndim != 3 or len(x) != len(y) or not len(x):
                raise DataError(f"{path}: {name} images {x.shape} and labels {y.shape} do not match")
        super().__init__(
            features={"image": Feature((*x_train.shape[1:], 1), tf.float32)},
            task="multiclass",
            num_classes=NUM_CLASSES,
            train=_image_examples(x_train, y_train),
            evaluation=_image_examples(x_test, y_test),
        )


def _image_examples(images: np.ndarray, labels: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    return {"image": images[..., np.newaxis].astype(np.float32) / 255}, labels.astype(np.int64)


def _load_images(path: str | None) -> list[np.ndarray]:
    try:
        if path is None:
            (x_train, y_train), (x_test, y_test) = tf_keras.datasets.fashion_mnist.load_data()
            return [x_train, y_train, x_test, y_test]
        where = Path(path).expanduser()
        if where.is_dir():
            return [_idx(_either(where / name)) for name in _IDX_FILES]
        with np.load(where) as arrays:
            return [arrays[key] for key in _NPZ_KEYS]
    except (OSError, EOFError, KeyError, ValueError, struct.error, zipfile.BadZipFile) as error:
        hint = "Keras' download failed; set data.path to" if path is None else "expected"
        text = str(error).strip()
        raise DataError(
            f"Fashion-MNIST at {path or 'the download'} cannot be read ({type(error).__name__}: {text}); "
            f"{hint} a .npz with {', '.join(_NPZ_KEYS)} or a folder with {', '.join(_IDX_FILES)}"
        ) from error
    except Exception as error:  # Keras' download raises a bare Exception
        raise DataError(f"Fashion-MNIST could not be downloaded ({error}); set data.path=...") from error


def _either(path: Path) -> Path:
    zipped = path.with_name(path.name + ".gz")
    return path if path.exists() else zipped


def _idx(path: Path) -> np.ndarray:
    """Reads an idx file: two zero bytes, type 8 (unsigned byte), number of axes, each axis' length, the values."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    zero, kind, num_axes = struct.unpack(">HBB", data[:4])
    if zero != 0 or kind != 8:
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    shape = struct.unpack(f">{num_axes}I", data[4 : 4 + 4 * num_axes])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * num_axes).reshape(shape)
