"""How far one coordinator goes: TensorFlow's own, with workers that only wait as long as their steps would take.

    python benchmarks/scale.py [--workers N ...] [--waits S ...] [--seconds S] [--repetitions N] [--experiment NAME]
                               [--many N ...] [--json FILE]

A process for each number of workers, which are servers inside it. First closures that have nothing to do, as many a
second as there can be, then closures that wait (a sleep in Python, which takes no core) as several packed steps would:
what share of those that the workers could do is done. What follows is reckoned from the processor time of a closure,
the servers' part of it included, which other programs on the machine change least. A parameter server in a process of
its own sends a large variable to a worker, over the loopback interface. `mode=plan` tells the bytes of a step of an
experiment. Together they show what more workers need than there are here: see docs/explanation/measurements.md.

With `--many`, it also measures the chief alone, in every consistency mode: TensorFlow's own threads of workers, which
sleep instead of calling a server (tests/harness/fake_workers.py). The start is counted, too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measured import Summary, in_turns, run_python
from rich.console import Console
from rich.table import Table

WORKERS = (2, 8, 32, 64)
WAITS_S = (0.1, 0.5)
WANTED = (64, 256, 1024)
STEPS_S = (0.005, 0.02, 0.1)
_OF_STEPS = ("workers", *(f"steps of {1000 * step_s:g} ms" for step_s in STEPS_S))
MANY = (16, 64, 256, 1024)
_SLEEP_S = 0.5
LOAD = 0.5  # how busy the coordinator may be: Python's lock lets it use one core
Rates = dict[int, dict[str, list[Any]]]  # of each process that was timed, by workers and wait, as of `timed`
_MESSAGE_BYTES = 16 * 2**20


class Rate(NamedTuple):
    """Closures a second, and processor seconds of one."""

    per_s: float
    cpu_s: float


def timed(workers: int, waits_s: Sequence[float], seconds: float) -> dict[str, Rate]:
    """Runs the cluster in this process: what there was, by how long each closure waits."""
    from psrun import process
    from psrun.cluster import strategy
    from psrun.config import choices

    process.prepare()
    import tensorflow as tf

    from psrun.closures.training_closures import InFlightClosures
    from psrun.cluster import servers

    servers.NUM_INTER_OP_THREADS += 2 * workers  # each that waits holds one
    cluster = choices.InProcess(kind="inprocess", num_workers=workers, num_ps=1, placement="greedy", isolate=False)
    strategy.prepare(cluster, None)
    distribution = strategy.connect(cluster, choices.NoPartitioner(kind="none"))
    coordinator = distribution.coordinator
    assert coordinator is not None  # as in every cluster with parameter servers

    def waiting(wait_s: float) -> Any:
        @tf.function
        def wait() -> None:
            if wait_s:
                tf.numpy_function(lambda: time.sleep(wait_s), [], [], stateful=True)

        return wait.get_concrete_function()

    rates = {}
    for wait_s in (0.0, *waits_s):
        closure, in_flight = waiting(wait_s), InFlightClosures(distribution)
        for _ in range(4 * workers):
            in_flight.add(coordinator.schedule(closure))
        in_flight.join()
        count, began_s, cpu_s = 0, time.monotonic(), time.process_time()
        while time.monotonic() - began_s < max(seconds, 10 * wait_s):
            in_flight.add(coordinator.schedule(closure))
            count += 1
        in_flight.join()
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        rates[str(wait_s)] = Rate(count / took_s, cpu_s / count)
    return rates


def modes() -> dict[str, Any]:
    """The modes whose chiefs are compared, by name: a choice each."""
    from psrun.config import choices

    return {
        "async": choices.Asynchronous("async"),
        "ssp": choices.StaleSynchronous("ssp", staleness=4),
        "sync": choices.Synchronous("sync", backup_workers=0, min_workers=None),
        "gba": choices.GlobalBatch("gba", gradients=None, tolerance=4, decay=1.0),
    }


def chief(workers: int, mode: str, seconds: float) -> Rate:
    """What the closures of a mode take of this process, which has no servers."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
    from fake_workers import Workers

    from psrun.closures.scheduling import AsynchronousClosures, QueuedClosures

    choice = modes()[mode]
    began_s, cpu_s = time.monotonic(), time.process_time()
    cluster: Any = Workers(workers, lambda worker: time.sleep(_SLEEP_S))
    closures: Any = (QueuedClosures if choice.averages else AsynchronousClosures)(cluster, choice)
    count = 0
    while time.monotonic() - began_s < seconds or count < 4 * workers:
        if choice.averages:
            closures.deal(None, lambda gradient: closures.schedule_gradient(None, (), gradient), together=False)
            count += len(closures.next_update().numbers)
            closures.applied()
        else:
            closures.schedule(None, ())
            count += 1
    took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    return Rate(count / took_s, cpu_s / count)


def bandwidth(reads: int) -> float:
    """Bytes a second that one parameter server, a separate process, sends to one worker on this machine."""
    import portpicker
    import tensorflow as tf

    addresses = {
        "ps": [f"localhost:{portpicker.pick_unused_port()}"],
        "worker": [f"localhost:{portpicker.pick_unused_port()}"],
    }
    code = (
        "import sys, json, tensorflow as tf; tf.distribute.Server(tf.train.ClusterSpec(json.loads(sys.argv[1])), "
        "job_name='ps', task_index=0).join()"
    )
    server = subprocess.Popen([sys.executable, "-c", code, json.dumps(addresses)])
    try:
        spec = tf.train.ClusterSpec(addresses)
        tf.distribute.Server(spec, job_name="worker", task_index=0)
        tf.config.experimental_connect_to_cluster(spec, job_name="chief", protocol="grpc")
        with tf.device("/job:ps/task:0"):
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
    finally:
        server.kill()
        server.wait()


def planned(experiment: str) -> dict[str, float]:
    """Bytes that one worker reads and pushes in a step, by `mode=plan` of an experiment with one worker and one ps.

    The experiments of a size that matters read made-up examples in Criteo's layout.
    """
    with tempfile.TemporaryDirectory(prefix="psrun-scale-") as folder:
        synthesize = ["data", "synthesize", "criteo-synthetic", "--num-values", "100", "--num-examples", "2000"]
        run_python(["-m", "psrun", *synthesize], Path(folder))
        arguments = ["mode=plan", f"experiment={experiment}", "cluster=inprocess", "cluster.num_workers=1"]
        run_python(["-m", "psrun", *arguments, "cluster.num_ps=1", f"hydra.run.dir={folder}/run"], Path(folder))
        result = json.loads((Path(folder) / "run" / "run.json").read_text(encoding="utf-8"))
        return result["bytes_per_step"]


def in_a_process(what: str, *arguments: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="psrun-scale-") as folder:
        report = Path(folder) / "found.json"
        run_python([str(Path(__file__).resolve()), "--part", what, "--report", str(report), *arguments], Path(folder))
        return json.loads(report.read_text(encoding="utf-8"))


def needed_steps(workers: int, step_s: float, cpu_s: float) -> int:
    """Steps per execution with which the coordinator, one core, is busy for no more than LOAD of the time."""
    return max(1, math.ceil(workers * cpu_s / (LOAD * step_s)))


def show(rates: Rates, waits_s: Sequence[float], console: Console) -> None:
    """Prints what was measured and what follows."""
    shares = (f"share at {wait_s:g} s" for wait_s in waits_s)
    table = Table("workers", "closures/s", "processor ms of one", *shares, box=None, pad_edge=False)
    for workers, by_wait in rates.items():
        nothing = [Summary.of(values) for values in zip(*by_wait["0.0"])]
        cells = [nothing[0].text(0), Summary(*(1000 * value for value in vars(nothing[1]).values())).text(2)]
        for wait_s in waits_s:
            cells.append(Summary.of([rate[0] * wait_s / workers for rate in by_wait[str(wait_s)]]).text(2))
        table.add_row(str(workers), *cells)
    console.print(table)
    cpu_s = max(statistics.median(rate[1] for rate in by_wait["0.0"]) for by_wait in rates.values())
    console.print(f"\nsteps per execution, a closure taking {1000 * cpu_s:.2f} ms and the coordinator {LOAD:.0%} busy")
    table = Table(*_OF_STEPS, box=None, pad_edge=False)
    for workers in WANTED:
        table.add_row(str(workers), *(f"{needed_steps(workers, step_s, cpu_s):,}" for step_s in STEPS_S))
    console.print(table)


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
    console.print("\nprocessor ms of the chief per closure, start included; divided by that of async in the same round")
    table = Table("mode", *(f"{workers:,} workers" for workers in rates["async"]), box=None, pad_edge=False)
    for mode, by_workers in rates.items():
        cells = []
        for workers, measured in by_workers.items():
            ratios = [one[1] / other[1] for one, other in zip(measured, rates["async"][workers])]
            cells.append(f"{1000 * statistics.median(one[1] for one in measured):.2f}  x {Summary.of(ratios).text(2)}")
        table.add_row(mode, *cells)
    console.print(table)


def show_bandwidth(bytes_per_s: float, traffic: dict[str, float], name: str, console: Console) -> None:
    moved = max(traffic["read_bytes"], traffic["pushed_bytes"])
    traffic_text = f"a step of {name} reads {traffic['read_bytes']:,} bytes and pushes {traffic['pushed_bytes']:,}"
    console.print(f"\none ps sends {bytes_per_s / 1e9:.2f} GB/s; {traffic_text}: ps needed for the wider direction")
    table = Table(*_OF_STEPS, box=None, pad_edge=False)
    for workers in WANTED:
        table.add_row(str(workers), *(f"{workers * moved / step_s / bytes_per_s:,.2f}" for step_s in STEPS_S))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--waits", type=float, nargs="+", default=WAITS_S, metavar="S", help="of a closure")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each that is timed")
    parser.add_argument("--repetitions", type=int, default=3, help="processes for each number of workers")
    parser.add_argument("--experiment", default="dlrm", help="whose bytes a step are counted")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    parser.add_argument(
        "--many", type=int, nargs="*", default=MANY, metavar="N", help="workers of a chief without servers"
    )
    parser.add_argument("--part", choices=("rates", "bandwidth", "chief"), help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="async", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)  # the process that is timed writes it
    options = parser.parse_args()
    if options.part:
        parts: dict[str, Callable[[], Any]] = {
            "rates": lambda: timed(options.workers[0], options.waits, options.seconds),
            "bandwidth": lambda: bandwidth(50),
            "chief": lambda: chief(options.many[0], options.mode, options.seconds),
        }
        options.report.write_text(json.dumps(parts[options.part]()), encoding="utf-8")
        end_at_once()
    console = Console(highlight=False, width=120)
    chiefs = measured_chiefs(options)
    if options.many:
        show_chiefs(chiefs, console)
    if not options.workers:
        return
    traffic = planned(options.experiment)
    rates: Rates = {n: {str(s): [] for s in (0.0, *options.waits)} for n in options.workers}
    bandwidths: list[float] = []
    for sizes in in_turns(options.workers, options.repetitions):
        bandwidths.append(in_a_process("bandwidth"))
        for workers in sizes:
            waits = [str(wait_s) for wait_s in options.waits]
            arguments = ["--workers", str(workers), "--seconds", str(options.seconds), "--waits", *waits]
            for wait, rate in in_a_process("rates", *arguments).items():
                rates[workers][wait].append(rate)
    show(rates, options.waits, console)
    show_bandwidth(statistics.median(bandwidths), traffic, options.experiment, console)
    if options.json:
        report = {"chiefs": chiefs, "rates": rates, "sent_bytes_per_s": bandwidths, "bytes_per_step": traffic}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def end_at_once() -> None:
    """Letting go of a coordinator the ordinary way takes up to a minute."""
    from psrun import process

    sys.stdout.flush()
    process.leave(0)


if __name__ == "__main__":
    main()
