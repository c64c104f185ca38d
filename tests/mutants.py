"""Whether the tests turn red for faults that psrun once had: puts each back into a copy, and runs the tests for it.

    python tests/mutants.py                 # all of them
    python tests/mutants.py data launch     # of two areas
    python tests/mutants.py launch:idle -v  # those with `idle` in their names, with what pytest prints

The faults are in tests/mutants/AREA.yaml, a list of

    - name: a-few-words               # unique in the area
      fault: What was wrong, as a user saw it.
      file: psrun/launch/supervisor.py
      old: a text that is in the file once
      new: the text that has the fault
      tests: [tests/core/simulation/test_supervisor.py]  # files, or tests of pytest

Ends with 1 where a fault is not caught, a list does not fit the code, or tests fail without a fault.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

REPOSITORY = Path(__file__).parents[1]
LISTS = Path(__file__).parent / "mutants"
TIMEOUT_S = 600
IMPORTED_ONCE = ("numpy", "pyarrow", "pytest", "hypothesis", "hydra", "tensorflow", "tf_keras")
# Exit codes of pytest.
PASSED = 0
FAILED = 1


@dataclass(frozen=True)
class Mutant:
    """A fault and the tests that must find it."""

    area: str
    name: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.area}:{self.name}"

    def misfit(self, root: Path) -> str | None:
        """Why the mutant does not fit the checkout at `root`; None if it does."""
        path = root / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        if self.old == self.new:
            return "it changes nothing"
        count = path.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"`old` is {count} times in {self.file}"
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        return f"there is no {', '.join(missing)}" if missing or not self.tests else None


def read(folder: Path = LISTS) -> list[Mutant]:
    """The mutants of all areas."""
    mutants = []
    for path in sorted(folder.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
            tests = tuple(entry.pop("tests"))
            mutants.append(Mutant(area=path.stem, tests=tests, **entry))
    return mutants


# Forked from a process that has imported TensorFlow: half of a mutant's time was its import.
PROCESSES = multiprocessing.get_context("forkserver")


def _run_pytest(root: Path, output: Path, arguments: list[str]) -> None:
    """Runs pytest in the copy at `root`; ends the process with pytest's code."""
    os.setsid()  # what the tests start is ended with it after TIMEOUT_S
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(root)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.path[0] = str(root)
    importlib.invalidate_caches()
    import pytest

    os._exit(pytest.main(["-x", "-m", "not release", "-p", "no:cacheprovider", *arguments]))


class Copy:
    """A copy of the checkout in which one mutant at a time is tested."""

    _times_s = itertools.count(int(time.time()) + 10)

    def __init__(self, root: Path) -> None:
        self._root = root
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in listed.stdout.splitlines():
            source = REPOSITORY / name
            if source.is_symlink() or source.is_file():  # conf/experiment is a link to a folder
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, root / name, follow_symlinks=False)
        (root / "psrun" / "conf").symlink_to(root / "conf")  # as an installation has it

    def test(self, mutant: Mutant) -> tuple[int | None, str]:
        """The exit code of pytest with the fault, None after `TIMEOUT_S`, and what it printed."""
        path = self._root / mutant.file
        text = path.read_text(encoding="utf-8")
        self._write(path, text.replace(mutant.old, mutant.new))
        try:
            return self.run(mutant.tests)
        finally:
            self._write(path, text)

    def run(self, tests: tuple[str, ...], *options: str) -> tuple[int | None, str]:
        """The exit code of pytest over `tests`, None after `TIMEOUT_S`, and what it printed."""
        output = self._root / "output.txt"
        process = PROCESSES.Process(target=_run_pytest, args=(self._root, output, [*options, *tests]))
        process.start()
        process.join(TIMEOUT_S)
        code = process.exitcode
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        return code, output.read_text(encoding="utf-8", errors="replace")

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: Python takes its bytecode for current if the time in seconds and the size are."""
        path.write_text(text, encoding="utf-8")
        written_s = next(self._times_s)
        os.utime(path, (written_s, written_s))


def selected(mutants: list[Mutant], patterns: list[str]) -> list[Mutant]:
    """Those of the given areas, or with `AREA:PART` those of the area whose name has the part."""
    chosen = [pattern.partition(":") for pattern in patterns]
    return [each for each in mutants if any(each.area == area and part in each.name for area, _, part in chosen)]


def report(mutants: list[Mutant], jobs: int, verbose: bool) -> Iterator[str]:
    """Tests all mutants; prints a line for each, and yields those that are not caught."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for index in range(jobs):
            copies.put(Copy(Path(scratch) / str(index)))

        def tested(mutant: Mutant) -> tuple[Mutant, int | None, str, float]:
            copy = copies.get()
            began_s = time.monotonic()
            code, printed = copy.test(mutant)
            copies.put(copy)
            return mutant, code, printed, time.monotonic() - began_s

        for mutant, code, printed, seconds in pool.map(tested, mutants):
            caught = code in (FAILED, None)
            result = "caught" if caught else "SURVIVED" if code == PASSED else f"BROKEN (pytest ended with {code})"
            print(f"{seconds:6.1f} s  {result:8}  {mutant}", flush=True)
            if verbose or (not caught and code != PASSED):
                print(printed, flush=True)
            if not caught:
                yield str(mutant)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", metavar="AREA[:PART]")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="what pytest prints")
    arguments = parser.parse_args()
    PROCESSES.set_forkserver_preload(list(IMPORTED_ONCE))
    mutants = read()
    if arguments.which:
        mutants = selected(mutants, arguments.which)
    misfits = [f"{mutant}: {why}" for mutant in mutants if (why := mutant.misfit(REPOSITORY))]
    if misfits or not mutants:
        print("\n".join(misfits) or "there is no such mutant")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
        code, printed = Copy(Path(scratch) / "copy").run(tests, "-n", str(arguments.jobs))
    if code != PASSED:
        print(f"{printed}\nthe tests fail without a fault")
        return 1
    survivors = list(report(mutants, arguments.jobs, arguments.verbose))
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} faults are caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
