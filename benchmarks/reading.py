"""How many examples a second a worker reads that only counts them: psrun's way beside plain tf.data by hand.

    python benchmarks/reading.py [--repetitions N] [--json FILE]

One worker in this process, rows in Criteo's layout, batches of 1024, in turns. psrun reads its prepared set in a random
order, batches as the chief deals them. By hand the same records are read one after the other; so are TFRecords of one
example each, as most people have them; and the text, split and turned into numbers. Nothing of that is shuffled.
Preparing is what psrun does once with the text: it also checks every field and writes the set.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from measured import Goal, Summary, in_turns, show_goals
from rich.console import Console

from psrun.cluster import strategy
from psrun.config import choices
from psrun.data import blocks, criteo, files, synthesis
from psrun.training.input_streams import DealtInput, Stream

BATCH, STEPS = 1024, 10
PSRUN, PREPARES = "psrun, prepared", "psrun prepares"
RECORDS, EXAMPLES, TEXT = "by hand, the same records", "by hand, an example a record", "by hand, text"
GOALS = (Goal(PSRUN, EXAMPLES, 0.95), Goal(PSRUN, TEXT, 0.95))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-examples", type=int, default=400_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way in each round")
    parser.add_argument("--json", type=Path, help="writes all rounds to a file")
    options = parser.parse_args()
    console = Console(highlight=False)
    cluster = choices.InProcess("inprocess", 1, 1, "greedy", False)
    strategy.prepare(cluster, None)
    coordinator = strategy.connect(cluster, choices.NoPartitioner("none")).coordinator
    with tempfile.TemporaryDirectory() as temporary:
        ways = measurements(Path(temporary), options, coordinator)
        rounds = []
        for names in in_turns(list(ways), options.repetitions + 1):
            rounds.append({name: ways[name]() for name in names})
            console.print("  ".join(f"{name} {rate:,.0f}" for name, rate in rounds[-1].items()))
    del rounds[0]  # it warms up
    for name in ways:
        summary = Summary.of([rates[name] for rates in rounds])
        console.print(f"{name:30} {summary.median:10,.0f} examples/s ({summary.least:,.0f} to {summary.most:,.0f})")
    goals = show_goals(GOALS, rounds, console)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "goals": goals}, indent=2) + "\n")


def measurements(folder: Path, options: argparse.Namespace, coordinator: Any) -> dict[str, Callable[[], float]]:
    """Functions that measure each way once, in examples per second."""
    synthesis.write(folder / "rows", synthesis.Recipe(options.num_examples, 0), num_files=4)
    pattern = f"{folder}/rows/train-*"
    source = criteo.Criteo(path=pattern, cache=str(folder / "cache"))
    single = folder / "single.tfrecord"
    write_single(source, single)

    def prepares() -> float:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            criteo.Criteo(path=pattern, cache=cache)
        return options.num_examples / (time.monotonic() - began_s)

    feeds = {
        PSRUN: DealtInput(dealt(source), 0),
        RECORDS: Stream(records(source._train)),
        EXAMPLES: Stream(examples(source._train, single)),
        TEXT: Stream(text(files.find(pattern))),
    }
    return {PREPARES: prepares} | {
        name: counting(coordinator, feed, options.seconds) for name, feed in feeds.items()
    }  # fmt: skip


def counting(coordinator: Any, feed: Stream, seconds: float) -> Callable[[], float]:
    """A function that measures for some seconds how many examples per second a worker counts."""
    iterator = feed.iterator(coordinator)

    def steps(source: Any, *arguments: tf.Tensor) -> tf.Tensor:
        feed.begin(STEPS, *arguments)
        take, count = feed.taker(source, 0, *arguments), tf.constant(0)
        for _ in range(STEPS):
            features, label = take()
            # The size of each, so that none of them is left out of the graph.
            with tf.control_dependencies([tf.size(values) for values in features.values()]):
                count += tf.size(label)
        return count

    closure = tf.function(steps).get_concrete_function(iterator._values[0]._type_spec, *feed.specs)

    def rate() -> float:
        began_s, count = time.monotonic(), 0
        while time.monotonic() - began_s < seconds:
            results = [coordinator.schedule(closure, args=(iterator, *feed.arguments(STEPS))) for _ in range(4)]
            coordinator.join()
            count += sum(int(result.fetch()) for result in results)
        return count / (time.monotonic() - began_s)

    return rate


def dealt(source: criteo.Criteo) -> Callable[..., tf.data.Dataset]:
    def dataset(context: Any, numbers: Any) -> tf.data.Dataset:
        order = source.order(BATCH, whole_passes=True)
        return source.batches(numbers(), order, tf.constant(1, tf.int64)).prefetch(2)

    return dataset


def records(of: blocks.Blocks) -> Callable[..., tf.data.Dataset]:
    """Whole records of a prepared set, one after the other."""
    return parsed(of, of.path, rows=blocks.ROWS)


def examples(of: blocks.Blocks, single: Path) -> Callable[..., tf.data.Dataset]:
    """Records of an example each."""
    return parsed(of, str(single), rows=1)


def parsed(of: blocks.Blocks, path: str, *, rows: int) -> Callable[..., tf.data.Dataset]:
    specs = {
        name: tf.io.FixedLenFeature([rows * column.width], blocks.TYPES[column.dtype])
        for name, column in of.columns.items()
    }

    def example(serialized: tf.Tensor) -> Any:
        fields = tf.io.parse_example(serialized, specs)
        columns = {name: tf.reshape(fields[name], [-1, of.columns[name].width]) for name in specs}
        return {name: values for name, values in columns.items() if name != "label"}, columns["label"]

    def dataset(context: Any, numbers: Any) -> tf.data.Dataset:
        serialized = tf.data.TFRecordDataset(path).repeat().batch(BATCH // rows)
        return serialized.map(example, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    return dataset


def write_single(source: criteo.Criteo, path: Path) -> None:
    """The examples of a source, each in its own record."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _, _, columns in source._train.in_order(BATCH).as_numpy_iterator():
            for row in range(len(columns["label"])):
                example = tf.train.Example()
                for name, values in columns.items():
                    feature = example.features.feature[name]
                    kind = feature.bytes_list if values.dtype == object else feature.float_list
                    kind.value.extend(values[row].tolist())
                writer.write(example.SerializeToString())


def text(names: list[str]) -> Callable[..., tf.data.Dataset]:
    """Lines split and turned into numbers, with nothing shuffled or checked."""

    def example(lines: tf.Tensor) -> Any:
        fields = tf.reshape(tf.strings.split(lines, "\t").flat_values, [-1, criteo.NUM_FIELDS])
        numbers = tf.strings.to_number(tf.where(fields[:, :14] == "", "0", fields[:, :14]))
        names = criteo.CATEGORIES
        return {"counts": numbers[:, 1:], **{name: fields[:, 14 + i, None] for i, name in enumerate(names)}}, numbers[
            :, :1
        ]

    def dataset(context: Any, numbers: Any) -> tf.data.Dataset:
        lines = tf.data.TextLineDataset(names).repeat().batch(BATCH)
        return lines.map(example, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    return dataset


if __name__ == "__main__":
    main()
