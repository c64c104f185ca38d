"""How fast psrun starts, ends, restarts and sweeps: two versions in turns, or one alone.

    python benchmarks/startup.py [--checkout FOLDER] [--this FOLDER] [--only NAME,...] [--repeat N] [--json FILE]

`--checkout` is another version of psrun, installed in FOLDER/.venv; `--this` may name one, too. In each round, the two
versions do the same thing one right after the other; who goes first changes.

`dlrm` is `cluster=local experiment=dlrm` on 200,000 generated examples, with an empty cache of prepared data and again
with the prepared data: the first seconds by part, and the last ones, from the end of the last epoch to the end of the
command, with the last checkpoint and the last evaluation in them.

The time to the first step begins with the start of the command and ends with the step that `time_to_first_step_s` in
run.json is about. A recovery begins with the signal and ends with the event `recovery`, for which the supervisor reads
heartbeats; these come every half second. A worker serves again once it has written its own first one. Memory is the sum
of the proportional set sizes of all processes of a run, while it trains: other programs that use the same TensorFlow
make it smaller, but not its anonymous part. Processor seconds are those of all processes of a command.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import functools
import itertools
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from measured import BENCHMARKS, Spent, Summary, busy_s, in_turns, python_of, run_python
from recovery import CLUSTER, recovers
from rich.console import Console

sys.path.insert(0, str(BENCHMARKS.parent / "tests" / "harness"))
from bounds import BOUND_S
from fault_injection import Cluster

EPOCHS = 2
STEPS_PER_EPOCH = 20
NUM_EXAMPLES = 200_000
SEEDS = range(1, 9)
_SHORT = (
    "model=embedding", "evaluation=none", "checkpoint=none", "tracker=none", f"trainer.epochs={EPOCHS}",
    f"trainer.steps_per_epoch={STEPS_PER_EPOCH}",
)  # fmt: skip
_TASKS = ("cluster.num_workers=2", "cluster.num_ps=2")
_WITHIN_S = 300.0
_ENDS_WITHIN_S = 10.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
# The greatest ratio that is wanted, to a version in which each task imports TensorFlow by itself.
_TARGETS = {
    "cluster=local: first step (s)": 0.65,
    "worker killed until it trains again (s)": 0.3,
    "ps killed until training goes on (s)": 0.45,
    "memory of a local run (MB)": 0.85,
    "sweep of 8 jobs, cluster=none (s)": 0.55,
    "sweep of 8 jobs, cluster=inprocess (s)": 0.65,
    "cluster=inprocess: first step (s)": 0.85,
}

Figures = Mapping[str, float]
Measurement = Callable[[Path], Figures]  # in an empty folder
Pair = Mapping[str, Measurement]  # by side: first what psrun is compared with, then psrun


# -- what is measured of psrun


def _first_step(cluster: str, checkout: Path, folder: Path) -> Figures:
    """Of a short run."""
    tasks = () if cluster == "none" else _TASKS
    run = folder / "run"
    arguments = ["-m", "psrun", f"cluster={cluster}", *_SHORT, *tasks, f"hydra.run.dir={run}"]
    spent = _run(arguments, folder, python_of(checkout))
    result = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return {
        **_first_seconds(f"cluster={cluster}", result, spent),
        f"cluster={cluster}: whole run (processor s)": spent.cpu_s,
    }


def _first_seconds(what: str, result: Mapping[str, Any], spent: Spent) -> dict[str, float]:
    """The seconds to the first step, and by part where the version records them."""
    before_s = result["started_s"] - spent.began_s
    figures = {f"{what}: first step (s)": before_s + result["time_to_first_step_s"]}
    for part, part_s in (result.get("time_to_first_step_by_part_s") or {}).items():
        figures[f"{what}: first step, {part} (s)"] = part_s
    return figures


def _dlrm(checkout: Path, folder: Path) -> Figures:
    """Of a run whose data is not prepared yet, and of another one with the prepared data."""
    figures: dict[str, float] = {}
    for name in ("dlrm, new data", "dlrm, prepared data"):
        figures |= _first_and_last_seconds(name, checkout, folder)
    return figures


def _first_and_last_seconds(name: str, checkout: Path, folder: Path) -> dict[str, float]:
    run = folder / name.replace(", ", "-").replace(" ", "-")
    examples = _examples()
    data = [f"data.path={examples}/train-*", f"data.eval_path={examples}/eval.tsv", f"data.cache={folder / 'cache'}"]
    arguments = ["-m", "psrun", "experiment=dlrm", "cluster=local", "tracker=none", *data, f"hydra.run.dir={run}"]
    spent = _run(arguments, folder, python_of(checkout))
    result = json.loads((run / "run.json").read_text(encoding="utf-8"))
    figures = _first_seconds(name, result, spent)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = {event["event"]: event for event in map(json.loads, lines)}
    trained_s = result["started_s"] + last["epoch"]["wall_s"]
    figures[f"{name}: after the last step (s)"] = spent.began_s + spent.wall_s - trained_s
    for kind in ("checkpoint", "evaluation"):
        if "seconds" in last[kind]:  # earlier versions did not measure evaluations
            figures[f"{name}: after the last step, {kind} (s)"] = last[kind]["seconds"]
    figures[f"{name}: whole run (s)"] = spent.wall_s
    figures[f"{name}: whole run (processor s)"] = spent.cpu_s
    return figures


@functools.cache
def _examples() -> Path:
    """The folder of generated examples, which both versions read; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="psrun-startup-examples-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    arguments = ["data", "synthesize", "criteo-synthetic", "--num-values", "100", "--num-examples", str(NUM_EXAMPLES)]
    run_python(["-m", "psrun", *arguments], folder, within_s=_WITHIN_S)
    return folder / "criteo-synthetic"


def _faults(checkout: Path, folder: Path) -> Figures:
    """Of a local cluster: its memory, and how long it takes to recover."""
    cluster = Cluster(folder, *CLUSTER, "cluster.restart.backoff_s=0", python=python_of(checkout))
    try:
        cluster.wait_for("checkpoint", 2)
        memory = _memory(cluster)
        worker_s = recovers(cluster, "worker-1", "kill")
        serves_s = _serves_again_s(cluster, "worker-1")
        cluster.wait_for("recovery", 2)
        ps_s = recovers(cluster, "ps-0", "kill")
    finally:
        cluster.close()
    return {
        **memory,
        "worker killed until it trains again (s)": worker_s,
        "worker killed until it serves again (s)": serves_s,
        "ps killed until training goes on (s)": ps_s,
    }


def _serves_again_s(cluster: Cluster, task: str) -> float:
    """Kills a task; seconds until its replacement has written its first heartbeat."""
    heartbeat = cluster.folder / ".tasks" / f"{task}.json"
    lost = cluster.kill(task)
    began_s = time.monotonic()
    while time.monotonic() - began_s < BOUND_S:
        with contextlib.suppress(OSError):  # there is none
            if json.loads(heartbeat.read_text(encoding="utf-8"))["pid"] != lost.pid:
                return time.monotonic() - began_s
        time.sleep(0.005)
    raise RuntimeError(f"{task} has not come back within {BOUND_S:.0f} s")


def _memory(cluster: Cluster) -> Figures:
    """Proportional set sizes, summed over all processes, in 10**6 bytes."""
    cluster.look(now=True)
    sums_kb = Counter[str]()
    for each in (cluster.process, *cluster.left()):
        with contextlib.suppress(OSError):  # it has ended just now
            lines = Path(f"/proc/{each.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
            sums_kb.update({key.rstrip(":"): int(number) for key, number, _ in map(str.split, lines)})
    return {
        "memory of a local run (MB)": sums_kb["Pss"] * 1024 / 1e6,
        "anonymous memory of a local run (MB)": sums_kb["Pss_Anon"] * 1024 / 1e6,
    }


def _sweep(cluster: str, checkout: Path, folder: Path) -> Figures:
    """Of a sweep over seeds, two jobs at a time.

    Raises:
      RuntimeError: a job was not completed.
    """
    tasks = () if cluster == "none" else _TASKS
    seeds = f"seed={','.join(map(str, SEEDS))}"
    where = folder / "sweep"
    arguments = ["-m", "psrun", "-m", f"cluster={cluster}", *_SHORT, *tasks, seeds, "sweep.max_parallel=2"]
    spent = _run([*arguments, f"hydra.sweep.dir={where}"], folder, python_of(checkout))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in where.glob("*/run.json")]
    completed = [result for result in results if result["status"] == "completed"]
    if len(completed) != len(SEEDS):
        raise RuntimeError(f"{len(completed)} of {len(SEEDS)} jobs of the sweep were completed")
    return _sweep_figures(cluster, spent)


def _sweep_figures(cluster: str, spent: Spent) -> Figures:
    name = f"sweep of {len(SEEDS)} jobs, cluster={cluster}"
    return {f"{name} (s)": spent.wall_s, f"{name} (processor s)": spent.cpu_s}


def _help(checkout: Path, folder: Path) -> Figures:
    return {"--help (processor s)": _run(["-m", "psrun", "--help"], folder, python_of(checkout)).cpu_s}


def _error(checkout: Path, folder: Path) -> Figures:
    """Of a value that is checked once the configuration is composed."""
    arguments = ["-m", "psrun", "trainer.epochs=-1", f"hydra.run.dir={folder / 'run'}"]
    return {"error of the configuration (processor s)": _run(arguments, folder, python_of(checkout), code=2).cpu_s}


_OF_VERSIONS: Mapping[str, Callable[[Path, Path], Figures]] = {
    "local": functools.partial(_first_step, "local"),
    "faults": _faults,
    "sweep-none": functools.partial(_sweep, "none"),
    "sweep-inprocess": functools.partial(_sweep, "inprocess"),
    "inprocess": functools.partial(_first_step, "inprocess"),
    "none": functools.partial(_first_step, "none"),
    "dlrm": _dlrm,
    "help": _help,
    "error": _error,
}


# -- processes


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Processes that lose their parent become children of this one; all that are left at the end are killed."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        yield
    finally:
        _kill(psutil.Process().children(recursive=True))


def _run(arguments: Sequence[str], folder: Path, python: str, *, code: int = 0) -> Spent:
    """As `run_python`; the processor time includes that of processes that have lost their parent."""
    spent = run_python(arguments, folder, python=python, expected_code=code, within_s=_WITHIN_S)
    return spent._replace(cpu_s=spent.cpu_s + _orphans_cpu_s())


def _orphans_cpu_s() -> float:
    """Waits for the processes that have lost their parent; their processor seconds.

    Raises:
      RuntimeError: one of them does not end.
    """
    cpu_s = 0.0
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:  # there is none
            return cpu_s
        if pid:
            cpu_s += usage.ru_utime + usage.ru_stime
        elif time.monotonic() > deadline_s:
            left = psutil.Process().children(recursive=True)
            commands = [shlex.join(each.cmdline()) for each in left]
            raise RuntimeError(f"processes were left behind: {commands}")
        else:
            time.sleep(0.01)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(processes, timeout=_ENDS_WITHIN_S)


# -- comparison


def main() -> None:
    options = _options()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    load = os.getloadavg()[0]
    with _adopting():
        figures = _measured(_pairs(options), options.repeat, console)
    console.print(f"\n`{shlex.join(['python', *sys.argv])}`, load of the machine before: {load:.1f}")
    for sides, group in itertools.groupby(figures.items(), key=lambda item: tuple(item[1])):
        console.print(f"\n{_table(sides, dict(group), _TARGETS)}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="of the version to compare with; by default there is none")
    parser.add_argument("--this", type=Path, default=BENCHMARKS.parent, help="checkout of the version to measure")
    parser.add_argument("--only", default="", metavar="NAME,...", help=f"of {', '.join(_OF_VERSIONS)}; by default all")
    parser.add_argument("--repeat", type=int, default=5, help="number of rounds")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    return parser.parse_args()


def _pairs(options: argparse.Namespace) -> dict[str, Pair]:
    """What is to be measured, by name."""
    this = options.this.resolve()
    sides = {f"psrun {_prepared(this)}": this}
    if options.checkout is not None:
        checkout = options.checkout.resolve()
        sides = {f"other psrun {_prepared(checkout)}": checkout, **sides}
    chosen = options.only.split(",") if options.only else [*_OF_VERSIONS]
    if unknown := set(chosen) - _OF_VERSIONS.keys():
        raise SystemExit(f"--only: unknown names: {', '.join(sorted(unknown))}; there are {', '.join(_OF_VERSIONS)}")
    pairs: dict[str, Pair] = {}
    for name in chosen:
        measure = _OF_VERSIONS[name]
        pairs[name] = {side: functools.partial(measure, folder) for side, folder in sides.items()}
    return pairs


def _prepared(checkout: Path) -> str:
    """Compiles the modules of a checkout, as an installation does, and returns its commit.

    Raises:
      SystemExit: its Python runs the psrun of another folder.
    """
    python = python_of(checkout)
    show = "import importlib.util as u; print(u.find_spec('psrun').origin)"
    found = subprocess.run([python, "-c", show], cwd=BENCHMARKS, check=True, capture_output=True, text=True)
    origin = found.stdout.strip()
    if not Path(origin).is_relative_to(checkout):
        raise SystemExit(f"{python} runs {origin}, not the psrun of {checkout}")
    subprocess.run([python, "-m", "compileall", "-q", str(checkout / "psrun")], check=True)
    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()


def _measured(pairs: Mapping[str, Pair], rounds: int, console: Console) -> dict[str, dict[str, list[float]]]:
    """The values of each round, by figure and side."""
    figures: dict[str, dict[str, list[float]]] = {}
    orders = {name: [*in_turns([*pair], rounds)] for name, pair in pairs.items()}
    for index in range(rounds):
        for name, pair in pairs.items():
            for side in orders[name][index]:
                before_s = _others_cpu_s()
                with tempfile.TemporaryDirectory(prefix="psrun-startup-") as folder:
                    measured = pair[side](Path(folder))
                    _orphans_cpu_s()  # those of a cluster that was killed
                others_s = _others_cpu_s() - before_s
                for figure, value in measured.items():
                    figures.setdefault(figure, {}).setdefault(side, []).append(value)
                shown = ", ".join(f"{figure} {value:.2f}" for figure, value in measured.items())
                console.print(
                    f"round {index + 1}, {side}: {shown}; processor seconds of everything else {others_s:.1f}"
                )
    return figures


def _others_cpu_s() -> float:
    """Processor seconds of everything on this machine but this process and its children that have ended."""
    return busy_s() - sum(os.times()[:4])


def _table(
    sides: tuple[str, ...], figures: Mapping[str, Mapping[str, Sequence[float]]], targets: Mapping[str, float]
) -> str:
    """Markdown: the medians of both sides, the ratio of the medians, and the range of the rounds' ratios.

    Of a single side: its median and range.
    """
    if len(sides) == 1:
        return _table_of_one(sides[0], figures)
    other, this = sides
    heads = ["", other, this, "ratio of medians (of rounds)", *(["target"] if targets else [])]
    rows = [heads, ["---"] * len(heads)]
    for figure, values in figures.items():
        medians = [statistics.median(values[side]) for side in sides]
        ratios = [after / before for before, after in zip(values[other], values[this])]
        ratio = f"{medians[1] / medians[0]:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        target = [f"{targets[figure]:.2f}" if figure in targets else ""] if targets else []
        rows.append([figure, *(f"{median:,.2f}" for median in medians), ratio, *target])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _table_of_one(side: str, figures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    rows = [["", side], ["---", "---"]]
    for figure, values in figures.items():
        rows.append([figure, str(Summary.of(values[side]))])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


if __name__ == "__main__":
    main()
