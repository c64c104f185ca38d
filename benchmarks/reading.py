"""What reading costs: preparing files once, beside pyarrow alone, and the batches of a worker from prepared rows.

    python benchmarks/reading.py [--repetitions N] [--checkout FOLDER] [--json FILE]

Preparation: 200,000 rows of 40 columns as Criteo has them (13 counts, 26 categories of 1,000 values), with a header as
CSV, gzipped and as Parquet, or without a header for data=criteo; and as CSV with 13 numbers with four decimals in place
of the counts. data=table does what a new run does: it guesses the features, checks and splits the rows, and prepares
them. pyarrow alone reads the same file into NumPy arrays. Each time is the processor time of one call in a process of
its own that has imported everything before; in turns. `--checkout` measures another version of psrun in FOLDER, too.

Batches: one worker in this process that only counts examples, batches of 1024. psrun reads its prepared rows in a
random order, batches as the chief deals them. By hand: TFRecords of one example each, as most people have them, and the
text, split and turned into numbers, both in the order of the file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measured import BENCHMARKS, Goal, Summary, in_turns, show_goals
from rich.console import Console

BATCH, STEPS = 1024, 10
NUM_ROWS = 200_000
COLUMNS = ("label", *(f"I{number}" for number in range(1, 14)), *(f"C{number}" for number in range(1, 27)))
FILES = {
    "csv": "rows.csv",
    "gzip": "rows.csv.gz",
    "parquet": "rows.parquet",
    "numbers": "numbers.csv",
    "criteo": "rows.tsv",
}
FORMS = ("csv", "gzip", "parquet", "numbers")  # with a header
SPLIT = 0.1  # as of data=table
PSRUN, EXAMPLES, TEXT = "psrun, prepared", "by hand, an example a record", "by hand, text"
GOALS = (
    Goal("table csv", "pyarrow csv", 0.6),
    Goal("table numbers", "pyarrow numbers", 0.6),
    Goal("table parquet", "pyarrow parquet", 0.6),
    Goal(PSRUN, EXAMPLES, 0.95),
    Goal(PSRUN, TEXT, 0.95),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way to read batches in each round")
    parser.add_argument("--checkout", type=Path, help="another version of psrun")
    parser.add_argument("--json", type=Path, help="writes all rounds to a file")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(f"{processor_s(options.one[0], Path(options.one[1]))}\n")
        return
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_files(folder)
        ways = {**preparations(folder, options.checkout), **batches(folder, options.seconds)}
        rounds = []
        for names in in_turns(list(ways), options.repetitions + 1):
            rounds.append({name: ways[name]() for name in names})
            console.print("  ".join(f"{name} {rate:,.0f}" for name, rate in rounds[-1].items()))
    del rounds[0]  # it warms up
    for name in ways:
        summary = Summary.of([rates[name] for rates in rounds])
        console.print(f"{name:34} {summary.median:10,.0f} rows/s ({summary.least:,.0f} to {summary.most:,.0f})")
    goals = show_goals(GOALS, rounds, console)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rounds, "goals": goals}, indent=2) + "\n")


def write_files(folder: Path) -> None:
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    from psrun.tables import synthesis

    synthesis.write(folder / "synthetic", synthesis.Recipe(NUM_ROWS, 0), num_files=1)
    (rows,) = (folder / "synthetic").glob("train-*")
    text = rows.read_text()
    (folder / FILES["criteo"]).write_text(text)
    (folder / FILES["csv"]).write_text(",".join(COLUMNS) + "\n" + text.replace("\t", ","))
    (folder / FILES["gzip"]).write_bytes(gzip.compress((folder / FILES["csv"]).read_bytes(), compresslevel=4))
    table = csv.read_csv(folder / FILES["csv"])
    parquet.write_table(table, folder / FILES["parquet"])
    numbers = np.random.default_rng(0).normal(size=(13, NUM_ROWS)).round(4)
    for place, values in enumerate(numbers, 1):
        table = table.set_column(place, COLUMNS[place], pa.array(values))
    csv.write_csv(table, folder / FILES["numbers"], csv.WriteOptions(quoting_style="none"))


def preparations(folder: Path, checkout: Path | None) -> dict[str, Callable[[], float]]:
    """Functions that measure how many rows a second of processor time gives."""
    versions = {"": BENCHMARKS.parent, **({"before: ": checkout.resolve()} if checkout else {})}
    ways = [*(f"table {each}" for each in FORMS), "criteo criteo"]
    measures: dict[str, Callable[[], float]] = {}
    for name, version in versions.items():
        for way in ways:
            measures[name + way] = rate_of(way, folder, version)
    for form in FORMS:
        measures[f"pyarrow {form}"] = rate_of(f"pyarrow {form}", folder, BENCHMARKS.parent)
    return measures


def rate_of(way: str, folder: Path, version: Path) -> Callable[[], float]:
    benchmarks = version / "benchmarks"  # its own script: modules have other names in other versions
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(version), str(benchmarks)))}
    command = [sys.executable, str(benchmarks / "reading.py"), "--one", way, str(folder)]

    def rate() -> float:
        finished = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return NUM_ROWS / float(finished.stdout.splitlines()[-1])

    return rate


def processor_s(way: str, folder: Path) -> float:
    """The processor time of one call, after one on a few rows."""
    what, form = way.split()
    path = folder / FILES[form]
    small = folder / f"small-{os.getpid()}" / path.name
    small.parent.mkdir()
    read = read_by_pyarrow if what == "pyarrow" else prepare(what, folder)
    if form != "parquet":
        opened: Any = gzip.open if form == "gzip" else open
        with opened(path, "rt") as source, opened(small, "wt") as target:
            target.writelines(line for line, _ in zip(source, range(2000)))
        read(small)
    began_s = time.process_time()
    read(path)
    return time.process_time() - began_s


def read_by_pyarrow(path: Path) -> list[Any]:
    from pyarrow import csv, parquet

    table = parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    return [column.to_numpy() for column in table.columns]


def prepare(what: str, folder: Path) -> Callable[[Path], Any]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from psrun.recsys.data.criteo import Criteo
    from psrun.tables.table import Table

    def call(path: Path) -> Any:
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            if what == "criteo":
                return Criteo(path=str(path), cache=cache)
            return Table(path=str(path), label="label", cache=cache, split=SPLIT)

    return call


def batches(folder: Path, seconds: float) -> dict[str, Callable[[], float]]:
    """Functions that measure how many examples a second a worker counts."""
    import tensorflow as tf

    from psrun.closures.input_streams import DealtInput, NextBatches, Stream
    from psrun.cluster import strategy
    from psrun.config import choices
    from psrun.data.source import converted_batches
    from psrun.recsys.data import criteo

    cluster = choices.InProcess("inprocess", num_workers=1, num_ps=1, placement="greedy", isolate=False)
    strategy.prepare(cluster, None)
    coordinator = strategy.connect(cluster, choices.NoPartitioner("none")).coordinator
    source = criteo.Criteo(path=str(folder / FILES["criteo"]), cache=str(folder / "cache"))
    single = folder / "single.tfrecord"
    write_single(source, single)

    def with_number(number: Any, examples: Any, batch: Any) -> Any:
        return number, batch

    def dealt(context: Any, numbers: Any) -> Any:
        order = source.order(BATCH, whole_passes=True)
        seed = tf.constant(1, tf.int64)
        return converted_batches(source, numbers(), order, seed, with_number).prefetch(2)

    feeds: Mapping[str, Any] = {
        PSRUN: DealtInput(dealt, NextBatches(0)),
        EXAMPLES: Stream(examples(source.training_rows, single)),
        TEXT: Stream(text(folder / FILES["criteo"])),
    }
    return {name: counting(coordinator, feed, seconds) for name, feed in feeds.items()}


def counting(coordinator: Any, feed: Any, seconds: float) -> Callable[[], float]:
    """A function that measures for some seconds how many examples per second a worker counts."""
    import tensorflow as tf

    iterator = feed.iterator(coordinator)

    def steps(source: Any, *arguments: Any) -> Any:
        inputs = dict(zip(feed.inputs(), arguments))
        feed.begin(STEPS, inputs)
        take, count = feed.taker(source, 0, inputs), tf.constant(0)
        for _ in range(STEPS):
            features, label = take()
            # The size of each, so that none of them is left out of the graph.
            with tf.control_dependencies([tf.size(values) for values in features.values()]):
                count += tf.size(label)
        return count

    closure = tf.function(steps).get_concrete_function(iterator._values[0]._type_spec, *feed.inputs().values())

    def rate() -> float:
        began_s, count = time.monotonic(), 0
        while time.monotonic() - began_s < seconds:
            results = [coordinator.schedule(closure, args=(iterator, *feed.deal(STEPS).values())) for _ in range(4)]
            coordinator.join()
            count += sum(int(result.fetch()) for result in results)
        return count / (time.monotonic() - began_s)

    return rate


def examples(rows: Any, single: Path) -> Callable[..., Any]:
    """Records of an example each."""
    import tensorflow as tf

    from psrun.tables.prepared_rows import TYPES

    specs = {name: tf.io.FixedLenFeature([column.width], TYPES[column.dtype]) for name, column in rows.columns.items()}

    def example(serialized: Any) -> Any:
        columns = tf.io.parse_example(serialized, specs)
        return {name: values for name, values in columns.items() if name != "label"}, columns["label"]

    def dataset(context: Any, numbers: Any) -> Any:
        serialized = tf.data.TFRecordDataset(str(single)).repeat().batch(BATCH)
        return serialized.map(example, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    return dataset


def write_single(source: Any, path: Path) -> None:
    """The examples of a source, each in its own record."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for _, _, columns in source.training_rows.in_order(BATCH).as_numpy_iterator():
            for row in range(len(columns["label"])):
                example = tf.train.Example()
                for name, values in columns.items():
                    feature = example.features.feature[name]
                    kind = feature.bytes_list if values.dtype == object else feature.float_list
                    kind.value.extend(values[row].tolist())
                writer.write(example.SerializeToString())


def text(path: Path) -> Callable[..., Any]:
    """Lines split and turned into numbers, with nothing shuffled or checked."""
    import tensorflow as tf

    def example(lines: Any) -> Any:
        fields = tf.reshape(tf.strings.split(lines, "\t").flat_values, [-1, len(COLUMNS)])
        numbers = tf.strings.to_number(tf.where(fields[:, :14] == "", "0", fields[:, :14]))
        names = {f"C{index + 1}": fields[:, 14 + index, None] for index in range(26)}
        return {"counts": numbers[:, 1:], **names}, numbers[:, :1]

    def dataset(context: Any, numbers: Any) -> Any:
        lines = tf.data.TextLineDataset(str(path)).repeat().batch(BATCH)
        return lines.map(example, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    return dataset


if __name__ == "__main__":
    main()
