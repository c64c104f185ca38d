"""How far one chief goes: many workers in every consistency mode, and real servers of other processes.

    python benchmarks/scale.py [--many N ...] [--workers N ...] [--seconds S] [--repetitions N] [--experiment NAME]
                               [--json FILE]

First the chief alone: TensorFlow's own threads of workers, which sleep instead of calling a server
(tests/harness/fake_workers.py). What its process takes for a closure in each mode, the start included, is divided by
that of `async` in the same round.

Then real servers, which share eight processes: the seconds to connect, and closures that have nothing to do, as many a
second as there can be. The processor time of the chief for one is the cost of its calls; the servers' own is not in it.
Closures that wait as several packed steps would tell the share of them that is done. A run of psrun on the same servers
tells the seconds until its first step.

A parameter server in a process of its own sends a large variable to a worker, over the loopback interface, and
`mode=plan` tells the bytes of a step of an experiment. Together they show what more workers need than there are here:
see docs/explanation/measurements.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from measured import Summary, in_turns, run_python
from rich.console import Console
from rich.table import Table

HARNESS = Path(__file__).parents[1] / "tests" / "harness"
MANY = (16, 64, 256, 1024)
WORKERS = (16, 64, 128)
PROCESSES = 8  # that share the servers
NUM_PS = 2
WAIT_S = 0.5  # of a closure that waits
WANTED = (64, 256, 1024)
STEPS_S = (0.005, 0.02, 0.1)
LOAD = 0.5  # how busy the chief may be: Python's lock lets it use one core
_OF_STEPS = ("workers", *(f"steps of {1000 * step_s:g} ms" for step_s in STEPS_S))
_MESSAGE_BYTES = 16 * 2**20
Addresses = dict[str, list[str]]


class Rate(NamedTuple):
    """Closures a second, and the processor seconds of the chief for one."""

    per_s: float
    cpu_s: float


class WithServers(NamedTuple):
    """A chief with real servers.

    Attributes:
      connect_s: seconds until it is connected to all of them.
      first_s: seconds until a new function has run on every worker.
      share: of the closures that the workers could do, those that are done.
      parts_s: of a run of psrun: seconds of each part of its time to the first step.
    """

    connect_s: float
    first_s: float
    empty: Rate
    share: float
    parts_s: dict[str, float]


# -- the chief alone


def modes(workers: int = 1) -> dict[str, Any]:
    """The modes whose chiefs are compared, by name: a choice each."""
    from psrun.config import choices

    return {
        "async": choices.Asynchronous("async"),
        "bounded_delay": choices.BoundedDelay("bounded_delay", max_delay=2 * workers),
        "ssp": choices.StaleSynchronous("ssp", staleness=4),
        "sync": choices.Synchronous("sync", backup_workers=0, min_workers=None),
        "gba": choices.GlobalBatch("gba", gradients=None, tolerance=4, decay=1.0),
        "k_async": choices.KAsynchronous("k_async", gradients=8),
        "hybrid": choices.Hybrid("hybrid", "async", "gba", gradients=None, tolerance=None, decay=None),
    }


def chief(workers: int, mode: str, seconds: float) -> Rate:
    """What the closures of a mode take of this process, which has no servers."""
    from fake_workers import Workers

    from psrun.closures.scheduling import AsynchronousClosures, QueuedClosures

    choice = modes(workers)[mode]
    began_s = time.monotonic()
    cpu_s = time.process_time()
    cluster: Any = Workers(workers, lambda worker: time.sleep(WAIT_S))
    closures: Any = (QueuedClosures if choice.averages else AsynchronousClosures)(cluster, choice)
    count = 0
    while time.monotonic() - began_s < seconds or count < 4 * workers:
        if choice.averages:
            closures.deal(None, lambda gradient: closures.schedule_gradient(None, (), gradient), together=False)
            count += len(closures.next_update().numbers)
            closures.applied(seconds=0.0)
        else:
            closures.schedule(None, ())
            count += 1
    took_s = time.monotonic() - began_s
    cpu_s = time.process_time() - cpu_s
    return Rate(count / took_s, cpu_s / count)


def measured_chiefs(options: argparse.Namespace) -> dict[str, dict[int, list[Any]]]:
    """The rates of each mode by the number of workers."""
    chiefs: dict[str, dict[int, list[Any]]] = {mode: {n: [] for n in options.many} for mode in modes()}
    for workers in options.many:
        for turn in in_turns(list(chiefs), options.repetitions):
            for mode in turn:
                arguments = ["--many", str(workers), "--mode", mode, "--seconds", str(options.seconds)]
                chiefs[mode][workers].append(in_a_process("chief", *arguments))
    return chiefs


def show_chiefs(rates: dict[str, dict[int, list[Any]]], console: Console) -> None:
    """Prints the processor time of a closure in each mode, and how many times as long as with `async` it is."""
    console.print("processor ms of the chief per closure, start included; divided by that of async in the same round")
    table = Table("mode", *(f"{workers:,} workers" for workers in rates["async"]), box=None, pad_edge=False)
    for mode, by_workers in rates.items():
        cells = []
        for workers, measured in by_workers.items():
            ratios = [one[1] / other[1] for one, other in zip(measured, rates["async"][workers])]
            cells.append(f"{1000 * statistics.median(one[1] for one in measured):.2f}  x {Summary.of(ratios).text(2)}")
        table.add_row(mode, *cells)
    console.print(table)


# -- real servers


def serve(addresses: Addresses, place: int) -> None:
    """Runs the servers of one of the processes until the standard input is closed."""
    from psrun.cluster import servers

    by_index = {job: dict(enumerate(found)) for job, found in addresses.items()}
    started = []
    for job, found in by_index.items():
        for index in found:
            if index % PROCESSES == place:
                started.append(servers.start(by_index, job, index))
    sys.stdout.write(f"started {len(started)}\n")
    sys.stdout.flush()
    sys.stdin.read()
    end_at_once()


@contextlib.contextmanager
def running_servers(workers: int) -> Iterator[Addresses]:
    """The addresses of servers that run in other processes."""
    import portpicker

    numbers = {"worker": workers, "ps": NUM_PS}
    addresses = {}
    for job, number in numbers.items():
        addresses[job] = [f"localhost:{portpicker.pick_unused_port()}" for _ in range(number)]
    processes = []
    try:
        for place in range(PROCESSES):
            arguments = ["--part", "servers", "--place", str(place), "--addresses", json.dumps(addresses)]
            command = [sys.executable, str(Path(__file__).resolve()), *arguments]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline().startswith(b"started"):
                raise SystemExit("servers did not start")
        yield addresses
    finally:
        for process in processes:
            process.kill()
            process.wait()


def closures(addresses: Addresses, seconds: float) -> dict[str, Any]:
    """What a chief in this process does with servers of other processes."""
    from psrun import process
    from psrun.cluster import strategy
    from psrun.config import choices

    process.prepare()
    import tensorflow as tf

    from psrun.closures.delays import wait
    from psrun.closures.training_closures import InFlightClosures

    workers = len(addresses["worker"])
    began_s = time.monotonic()
    distribution = strategy.parameter_servers(tf.train.ClusterSpec(addresses), choices.NoPartitioner(kind="none"))
    connect_s = time.monotonic() - began_s
    coordinator = distribution.coordinator
    assert coordinator is not None  # as in every cluster with parameter servers

    def waiting(wait_s: float) -> Any:
        @tf.function
        def step() -> None:
            if wait_s:
                wait(tf.constant(wait_s))

        return step.get_concrete_function()

    def rate(closure: Any, within_s: float) -> Rate:
        in_flight = InFlightClosures(distribution)
        count = 0
        began_s = time.monotonic()
        cpu_s = time.process_time()
        while time.monotonic() - began_s < within_s:
            in_flight.add(coordinator.schedule(closure))
            count += 1
        in_flight.join()
        return Rate(count / (time.monotonic() - began_s), (time.process_time() - cpu_s) / count)

    began_s = time.monotonic()
    rate(waiting(0.1), 0.1)
    first_s = time.monotonic() - began_s - 0.1
    empty = waiting(0.0)
    rate(empty, 1.0)
    measured = rate(empty, seconds)
    share = rate(waiting(WAIT_S), max(seconds, 10 * WAIT_S)).per_s * WAIT_S / workers
    return {"connect_s": connect_s, "first_s": first_s, "empty": measured, "share": share}


def first_step(addresses: Addresses, experiment: str) -> dict[str, float]:
    """Runs psrun as the chief of the servers: seconds of each part of its time to the first step."""
    import portpicker

    with tempfile.TemporaryDirectory(prefix="psrun-scale-") as name:
        folder = Path(name)
        _synthesize(folder)
        chief_address = f"localhost:{portpicker.pick_unused_port()}"
        topology = {"cluster": {**addresses, "chief": [chief_address]}, "task": {"type": "chief", "index": 0}}
        arguments = ["cluster=tf_config", f"experiment={experiment}", "trainer.epochs=1", "trainer.steps_per_epoch=200"]
        arguments += ["checkpoint.every_epochs=null", f"hydra.run.dir={folder}/run"]
        run_python(["-m", "psrun", *arguments], folder, more_environment={"TF_CONFIG": json.dumps(topology)})
        return _result(folder)["time_to_first_step_by_part_s"]


def measured_with_servers(options: argparse.Namespace) -> dict[int, list[WithServers]]:
    """By the number of workers, one for each repetition."""
    found: dict[int, list[WithServers]] = {workers: [] for workers in options.workers}
    for turn in in_turns(options.workers, options.repetitions):
        for workers in turn:
            with running_servers(workers) as addresses:
                arguments = ["--addresses", json.dumps(addresses), "--seconds", str(options.seconds)]
                of_closures = in_a_process("closures", *arguments)
            with running_servers(workers) as addresses:
                parts_s = first_step(addresses, options.experiment)
            found[workers].append(WithServers(**of_closures, parts_s=parts_s))
    return found


def show_servers(found: dict[int, list[WithServers]], console: Console) -> None:
    """Prints what was measured and what follows."""
    parts = list(next(iter(found.values()))[0].parts_s)
    heads = ["connect s", "first closures s", "closures/s", "processor ms of one", f"share at {WAIT_S:g} s"]
    table = Table("workers", *heads, *(f"{part} s" for part in parts), box=None, pad_edge=False)
    for workers, rows in found.items():
        columns = [
            Summary.of([row.connect_s for row in rows]).text(1),
            Summary.of([row.first_s for row in rows]).text(1),
            Summary.of([row.empty[0] for row in rows]).text(0),
            Summary.of([1000 * row.empty[1] for row in rows]).text(2),
            Summary.of([row.share for row in rows]).text(2),
        ]
        columns += [Summary.of([row.parts_s[part] for row in rows]).text(1) for part in parts]
        table.add_row(str(workers), *columns)
    console.print(table)
    cpu_s = statistics.median(row.empty[1] for row in found[max(found)])
    console.print(f"\nsteps per execution, a closure taking {1000 * cpu_s:.2f} ms and the chief {LOAD:.0%} busy")
    table = Table(*_OF_STEPS, box=None, pad_edge=False)
    for workers in WANTED:
        table.add_row(str(workers), *(f"{needed_steps(workers, step_s, cpu_s):,}" for step_s in STEPS_S))
    console.print(table)


def needed_steps(workers: int, step_s: float, cpu_s: float) -> int:
    """Steps per execution with which the chief, one core, is busy for no more than LOAD of the time."""
    return max(1, math.ceil(workers * cpu_s / (LOAD * step_s)))


# -- bytes


def bandwidth(reads: int) -> float:
    """Bytes a second that one parameter server, a separate process, sends to one worker on this machine."""
    import tensorflow as tf

    with running_servers(1) as addresses:
        spec = tf.train.ClusterSpec(addresses)
        tf.config.experimental_connect_to_cluster(spec, job_name="chief", protocol="grpc")
        with tf.device("/job:ps/task:1"):  # the worker is in the process of ps 0
            table = tf.Variable(tf.zeros([_MESSAGE_BYTES // 4]))

        @tf.function
        def read() -> tf.Tensor:
            with tf.device("/job:worker/task:0"):
                return tf.reduce_sum(table.read_value()[:1])

        read()
        rates = []
        for _ in range(reads):
            began_s = time.monotonic()
            read().numpy()
            rates.append(_MESSAGE_BYTES / (time.monotonic() - began_s))
        return statistics.median(rates)


def planned(experiment: str) -> dict[str, float]:
    """Bytes that one worker reads and pushes in a step, by `mode=plan` of an experiment with one worker and one ps."""
    with tempfile.TemporaryDirectory(prefix="psrun-scale-") as name:
        folder = Path(name)
        _synthesize(folder)
        arguments = ["mode=plan", f"experiment={experiment}", "cluster=inprocess", "cluster.num_workers=1"]
        run_python(["-m", "psrun", *arguments, "cluster.num_ps=1", f"hydra.run.dir={folder}/run"], folder)
        return _result(folder)["bytes_per_step"]


def show_bandwidth(bytes_per_s: float, traffic: dict[str, float], name: str, console: Console) -> None:
    """Prints the number of parameter servers that an experiment needs."""
    moved = max(traffic["read_bytes"], traffic["pushed_bytes"])
    traffic_text = f"a step of {name} reads {traffic['read_bytes']:,} bytes and pushes {traffic['pushed_bytes']:,}"
    console.print(f"\none ps sends {bytes_per_s / 1e9:.2f} GB/s; {traffic_text}: ps needed for the wider direction")
    table = Table(*_OF_STEPS, box=None, pad_edge=False)
    for workers in WANTED:
        table.add_row(str(workers), *(f"{workers * moved / step_s / bytes_per_s:,.2f}" for step_s in STEPS_S))
    console.print(table)


def _synthesize(folder: Path) -> None:
    """Makes examples: the experiments of a size that matters read them in Criteo's layout."""
    synthesize = ["data", "synthesize", "criteo-synthetic", "--num-values", "100", "--num-examples", "20000"]
    run_python(["-m", "psrun", *synthesize], folder)


def _result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))


def in_a_process(what: str, *arguments: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="psrun-scale-") as folder:
        report = Path(folder) / "found.json"
        run_python([str(Path(__file__).resolve()), "--part", what, "--report", str(report), *arguments], Path(folder))
        return json.loads(report.read_text(encoding="utf-8"))


def end_at_once() -> None:
    """Letting go of a coordinator the ordinary way takes up to a minute."""
    from psrun import process

    sys.stdout.flush()
    process.leave(0)


def main() -> None:
    options = _parsed()
    if options.part == "servers":
        serve(options.addresses, options.place)
    if options.part:
        sys.path.insert(0, str(HARNESS))
        parts: dict[str, Callable[[], Any]] = {
            "closures": lambda: closures(options.addresses, options.seconds),
            "bandwidth": lambda: bandwidth(50),
            "chief": lambda: chief(options.many[0], options.mode, options.seconds),
        }
        options.report.write_text(json.dumps(parts[options.part]()), encoding="utf-8")
        end_at_once()
    console = Console(highlight=False, width=200)
    report: dict[str, Any] = {}
    if options.many:
        report["chiefs"] = measured_chiefs(options)
        show_chiefs(report["chiefs"], console)
    if options.workers:
        with_servers = measured_with_servers(options)
        show_servers(with_servers, console)
        bandwidths = [in_a_process("bandwidth") for _ in range(options.repetitions)]
        traffic = planned(options.experiment)
        show_bandwidth(statistics.median(bandwidths), traffic, options.experiment, console)
        rows = {workers: [row._asdict() for row in found] for workers, found in with_servers.items()}
        report |= {"with_servers": rows, "sent_bytes_per_s": bandwidths, "bytes_per_step": traffic}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    many = "workers of a chief without servers"
    parser.add_argument("--many", type=int, nargs="*", default=MANY, metavar="N", help=many)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS, metavar="N", help="real servers")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each that is timed")
    parser.add_argument("--repetitions", type=int, default=3, help="of each measurement")
    parser.add_argument("--experiment", default="dlrm", help="whose first step is timed, and whose bytes are counted")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    # For the processes that are timed.
    parts = ("servers", "closures", "bandwidth", "chief")
    parser.add_argument("--part", choices=parts, help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="async", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
