"""One run of `psrun cluster=local experiment=flights` through every fault that a run survives, and one without.

    python benchmarks/soak.py [--folder FOLDER]
    python benchmarks/soak.py --kills N [--only PATTERN ...] [--seed SEED] [--folder FOLDER]

The same run twice: the experiment, in epochs of a fifth of the length so that there is time for the faults between
them. Ends with 0 where both runs complete, every fault was noticed and got well again, all steps were applied, and the
test AUCs differ by 0.01 at most. Needs the extra psrun[flights].

With `--kills` other runs, in every mode of consistency, until so many faults were injected at random times: a worker, a
parameter server or the chief is killed, the fork server is killed or stopped, or the run gets SIGINT and is resumed.
Their model counts how often the updates of each example were applied (tests/harness/counting.py). Ends with 0
where the counts of all checkpoints are exact, run.json has every loss, and no process is left.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
import counting
from fault_injection import Cluster
from measured import is_chosen

MAX_DIFFERENCE = 0.01
RUN = (
    "cluster=local", "experiment=flights", "trainer.epochs=20", "trainer.steps_per_epoch=100", "evaluation.every=20",
    "cluster.restart.budget=20", "cluster.restart.max_backoff_s=2", "cluster.restart.heartbeat_timeout_s=8",
    "cluster.restart.progress_timeout_s=10", "data._target_=stalls.Flights",
)  # fmt: skip
_WITHIN_S = 240.0
MODES = {
    "async": (),
    "one step": ("trainer.steps_per_execution=1",),
    "fit": ("trainer=fit",),
    "ssp": ("consistency=ssp", "consistency.staleness=2"),
    "bounded_delay": ("consistency=bounded_delay", "consistency.max_delay=6"),
    "sync": ("consistency=sync",),
    "gba": ("consistency=gba", "consistency.tolerance=2"),
    "k_async": ("consistency=k_async", "consistency.gradients=2"),
    "hybrid": ("consistency=hybrid", "consistency.tolerance=2"),
}
_GRADIENTS = {"sync": 2, "gba": 2, "k_async": 2, "hybrid": 2}  # of an update; of all other modes one
_FAULTS = ("worker-0", "worker-1", "worker-0", "worker-1", "ps-0", "ps-1", "chief-0", "SIGINT")
_FORK_SERVER_FAULTS = {"fork-server killed": signal.SIGKILL, "fork-server stopped": signal.SIGSTOP}
_PER_RUN = 8
_EXAMPLES, _BATCH, _EPOCHS = 9600, 32, 8
_STEPS = _EXAMPLES // _BATCH
# The flights, with a file to be read before the batch 40: a named pipe that nobody writes to stalls the step.
_STALLS = """
import tensorflow as tf
from psrun.recsys.data import flights
class Flights(flights.Flights):
    def train(self, *, batch_size, seed):
        def read(index, batch):
            # Neither a constant, which would be read ahead, nor without use, which would not be read at all.
            path = tf.strings.join([{path!r}, tf.strings.substr(tf.strings.as_string(index), 0, 0)])
            text = tf.cond(index == 40, lambda: tf.io.read_file(path), lambda: "")
            features, label = batch
            return features, label + tf.cast(tf.strings.length(text), label.dtype)  # of an empty file
        return super().train(batch_size=batch_size, seed=seed).enumerate().map(read)
"""


def _start(root: Path, *, stalls: bool) -> tuple[Cluster, Path]:
    root.mkdir(parents=True)
    file = root / "read before batch 40"
    if stalls:
        os.mkfifo(file)
    else:
        file.touch()
    (root / "stalls.py").write_text(_STALLS.format(path=str(file)), encoding="utf-8")
    return Cluster(root, *RUN, PYTHONPATH=str(root)), file


def _mend(file: Path) -> None:
    other = file.with_suffix(".file")
    other.touch()
    other.replace(file)


def _faults(cluster: Cluster, file: Path) -> list[tuple[str, Callable[[], object], int]]:
    """The faults in order: name, injection, and number of failures that it causes."""

    def steps_hang() -> None:
        cluster.wait_for("failure", within_s=_WITHIN_S)
        _mend(file)

    def both_workers() -> None:
        for task in ("worker-0", "worker-1"):
            cluster.kill(task)

    return [
        ("the steps hang, every task alive", steps_hang, 1),
        ("worker-1 is killed", lambda: cluster.kill("worker-1"), 1),
        ("ps-0 is killed", lambda: cluster.kill("ps-0"), 1),
        ("chief-0 is killed", lambda: cluster.kill("chief-0"), 1),
        ("worker-0 hangs", lambda: cluster.stop("worker-0"), 1),
        ("ps-1 hangs", lambda: cluster.stop("ps-1"), 1),
        ("chief-0 hangs", lambda: cluster.stop("chief-0"), 1),
        ("both workers are killed", both_workers, 2),
        ("chief-0 gets SIGTERM", lambda: cluster.task("chief-0").send_signal(signal.SIGTERM), 1),
    ]


def _through_all(cluster: Cluster, file: Path, console: Console) -> int:
    """Injects every fault, each after two more checkpoints than the last; how many recoveries there must be."""
    expected = 0
    for name, inject, failures in _faults(cluster, file):
        if expected:
            cluster.wait_for("checkpoint", len(cluster.events("checkpoint")) + 1, within_s=_WITHIN_S)
        inject()
        expected += failures
        cluster.wait_for("recovery", expected, within_s=_WITHIN_S)
        rows = cluster.events("recovery")[expected - failures : expected]
        for row in rows:
            console.print(f"{name}: {row['task']} {row['cause']}; well after {row['seconds']:.1f} s, "
                          f"{row['steps_lost']} steps lost")  # fmt: skip
    return expected


def _count(kills: int, modes: Sequence[str], seed: int, root: Path, console: Console) -> bool:
    """Whether the counts of runs with so many faults are all exact."""
    draw = random.Random(seed)
    done, exact = 0, True
    for number, mode in enumerate(itertools.cycle(modes)):
        if done >= kills:
            return exact
        faults = [draw.choice((*_FAULTS, *_FORK_SERVER_FAULTS)) for _ in range(min(_PER_RUN, kills - done))]
        problems = _problems(root / f"{number} {mode}", mode, faults, draw)
        done += len(faults)
        exact = exact and not problems
        console.print(f"{done} faults  {mode}: {' '.join(faults)}  {problems or 'exact'}")
    raise AssertionError("unreachable")


def _lose_fork_server(cluster: Cluster, signum: int) -> None:
    """Kills or stops the fork server, if there is one."""
    for child in psutil.Process(cluster.process.pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended just now
            title = " ".join(child.cmdline())
            if title.startswith("psrun fork-server"):
                child.send_signal(signum)


def _problems(root: Path, mode: str, faults: Sequence[str], draw: random.Random) -> list[str]:
    """What is wrong with the end and the tables of a run with faults."""
    environment = {"PYTHONPATH": str(Path(counting.__file__).parent)}
    arguments = counting.arguments(
        "cluster=local", f"trainer.epochs={_EPOCHS}", "cluster.slow_workers={0: 0.05, 1: 0.05}",
        "cluster.restart.budget=60", "cluster.restart.max_backoff_s=1", "checkpoint.every_steps=50", *MODES[mode],
        examples=_EXAMPLES, batch=_BATCH,
    )  # fmt: skip
    gradients = _GRADIENTS.get(mode, 1)
    losses = []
    last_step = int(0.9 * _STEPS * _EPOCHS / gradients)
    root.mkdir(parents=True)
    cluster = Cluster(root, *arguments, **environment)
    folder = cluster.folder
    try:
        for fault, step in zip(faults, sorted(draw.randrange(last_step) for _ in faults)):
            cluster.wait_for_step(step)
            if fault in _FORK_SERVER_FAULTS:
                _lose_fork_server(cluster, _FORK_SERVER_FAULTS[fault])
                continue
            if fault != "SIGINT":
                cluster.kill(fault)
                losses.append(fault)
                cluster.wait_for("failure", len(losses))
                continue
            if losses:
                cluster.wait_for("recovery", len(losses))
            cluster.process.send_signal(signal.SIGINT)
            code = cluster.end(within_s=_WITHIN_S)
            cluster.close()
            if code not in (130, 175):
                return [f"exit code {code} after SIGINT: {cluster.stderr[-2000:]}"]
            cluster = Cluster(root, f"resume='{folder}'", **environment)
        cluster.wait_for_step(last_step)
        code = cluster.end(within_s=2 * _WITHIN_S)
        left = cluster.left()
    except AssertionError as error:  # the other modes are still of interest
        return [str(error)]
    finally:
        cluster.close()
    if code:
        return [f"exit code {code}: {cluster.stderr[-2000:]}"]
    of_rows = 1 if mode == "hybrid" else gradients
    problems = counting.wrong(folder / "checkpoints", epochs=_EPOCHS, gradients=gradients, of_rows=of_rows)
    steps = cluster.result["steps"]
    problems += [f"left: {left}"] if left or (folder / ".tasks").exists() else []
    rows = [row["task"] for row in cluster.result["recoveries"]]
    problems += [f"recoveries: {rows} for {losses}"] if sorted(rows) != sorted(losses) else []
    return problems + ([f"steps: {steps}"] if steps["applied"] != _STEPS * _EPOCHS / gradients else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="new folder for all runs (default: a temporary one)")
    parser.add_argument("--kills", type=int, help="count applied updates in runs with so many random faults")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only modes of such names")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    if options.kills is not None:
        with tempfile.TemporaryDirectory(prefix="psrun-soak-") as scratch:
            modes = [mode for mode in MODES if is_chosen(mode, options.only)]
            sys.exit(not _count(options.kills, modes, options.seed, options.folder or Path(scratch), console))
    with tempfile.TemporaryDirectory(prefix="psrun-soak-") as scratch:
        root = options.folder or Path(scratch)
        results = {}
        for name in ("without faults", "with faults"):
            cluster, file = _start(root / name, stalls=name == "with faults")
            try:
                expected = _through_all(cluster, file, console) if name == "with faults" else 0
                code = cluster.end(within_s=2 * _WITHIN_S)
                processes = cluster.left()
            finally:
                cluster.close()
            results[name] = cluster.result
            assert code == 0, f"{name}: exit code {code}\n{cluster.stderr}"
            assert processes == [], f"{name}: left running: {processes}"
            assert len(cluster.result["recoveries"]) == expected, cluster.result["recoveries"]
    table = Table("run", "test AUC", "steps applied", "planned", "recoveries", "wall_s", box=None, pad_edge=False)
    for name, result in results.items():
        steps = result["steps"]
        table.add_row(
            name, f"{result['metrics']['val_auc']:.4f}", str(steps["applied"]), str(steps["scheduled"]),
            str(len(result["recoveries"])), f"{result['wall_s']:.0f}",
        )  # fmt: skip
        assert steps["applied"] >= steps["scheduled"] == 2000, steps
    console.print(table)
    without, with_ = (result["metrics"]["val_auc"] for result in results.values())
    if abs(without - with_) > MAX_DIFFERENCE:
        console.print(f"the test AUCs differ by {abs(without - with_):.4f}, more than {MAX_DIFFERENCE}")
        sys.exit(1)


if __name__ == "__main__":
    main()
