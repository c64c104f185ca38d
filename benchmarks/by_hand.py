"""What all programs by hand share: generated clicks as arrays, options, timed windows. Imports no TensorFlow."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

NUM_FEATURES, NUM_NUMBERS = 26, 13
HIDDEN_UNITS = (128, 64)
DLRM_BOTTOM_UNITS, DLRM_TOP_UNITS = (64,), (64, 32)  # as `psrun.recsys.models.dlrm` has them
NUM_EXAMPLES, NUM_EVAL_EXAMPLES = 65536, 16384
LEARNING_RATE, EPSILON, INITIAL_ACCUMULATOR = 0.05, 1e-7, 0.1  # of Adagrad
ADAM_RATE = 0.001

Examples = tuple[dict[str, np.ndarray], np.ndarray]  # the features by name, and the labels


def generated(
    *,
    rows: int,
    skew: float = 0.0,
    num_examples: int = NUM_EXAMPLES,
    num_eval_examples: int = NUM_EVAL_EXAMPLES,
    seed: int = 1,
) -> tuple[Examples, Examples]:
    """Examples to train on and to evaluate: 26 ids out of one range, 13 numbers, and labels of a known logistic model.

    Args:
      rows: how many ids there are.
      skew: 0 for ids that are all as frequent; else the exponent of Zipf's law (more than 1).
    """
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=rows).astype(np.float32)
    slopes = rng.normal(size=NUM_NUMBERS).astype(np.float32) / np.sqrt(NUM_NUMBERS)

    def examples(count: int) -> Examples:
        size = (count, NUM_FEATURES)
        ids = rng.integers(rows, size=size) if not skew else (rng.zipf(skew, size=size) - 1) % rows
        numbers = rng.normal(size=(count, NUM_NUMBERS)).astype(np.float32)
        logit = weights[ids].sum(1) / np.sqrt(NUM_FEATURES) + numbers @ slopes
        label = rng.random(count) < 1 / (1 + np.exp(-logit))
        return {"ids": ids, "numbers": numbers}, label[:, None].astype(np.float32)

    return examples(num_examples), examples(num_eval_examples)


def of_tables(
    *, num_tables: int, rows: int, width: int = 1, skew: float = 0.0, num_examples: int = NUM_EXAMPLES, seed: int = 1
) -> Examples:
    """Examples with random labels, 13 numbers, and features `c0`, ... of shape (num_examples, width): ids below `rows`.

    Args:
      skew: as in `generated`.
    """
    rng = np.random.default_rng(seed)
    size = (num_examples, num_tables, width)
    ids = rng.integers(rows, size=size) if not skew else (rng.zipf(skew, size=size) - 1) % rows
    features = {f"c{column}": ids[:, column].astype(np.int64) for column in range(num_tables)}
    features["numbers"] = rng.normal(size=(num_examples, NUM_NUMBERS)).astype(np.float32)
    return features, rng.integers(2, size=(num_examples, 1)).astype(np.float32)


Steps = Callable[[int], None]  # does a number of steps


def parsed(description: str | None, kinds: Sequence[str]) -> argparse.Namespace:
    """The options of the command line, with an empty list of `rates`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--num-ps", type=int, default=2)
    parser.add_argument("--optimizer", choices=("adagrad", "adam"), default="adagrad")
    parser.add_argument("--steps", type=int, default=200, help="steps of each window that is timed")
    parser.add_argument("--steps-per-execution", type=int, default=20, help="of packed, fit and local")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--report", type=Path, help="file for steps per second, one number a window")
    options = parser.parse_args()
    options.rates = []
    return options


def timed(train: Steps, options: argparse.Namespace) -> list[float]:
    """Steps a second of each window, after steps to warm up."""
    train(max(40, options.num_workers * options.steps_per_execution))
    rates, cpu_s = [], time.process_time()
    for _ in range(options.windows):
        began_s = time.monotonic()
        train(options.steps)
        rates.append(options.steps / (time.monotonic() - began_s))
    sys.stdout.write(f"cpu {(time.process_time() - cpu_s) / options.windows / options.steps * 1e3:.2f} ms/step ")
    return rates


def report(rates: Sequence[float], options: argparse.Namespace) -> None:
    """Prints the rates, and writes them to the file that the options name."""
    sys.stdout.write(f"{options.kind}: {statistics.median(rates):.1f} steps/s {[*rates]}\n")
    if options.report:
        options.report.write_text(json.dumps(rates), encoding="utf-8")
    sys.stdout.flush()
