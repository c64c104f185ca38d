"""DLRM by psrun, beside the same training by other libraries and by hand.

    python benchmarks/peers.py [--rounds N] [--only PATTERN ...] [--json FILE] [--write PAGE]
    python benchmarks/peers.py --check

26 tables of 20,000 x 16, batches of 1,024, Adagrad on the rows of the batch, all data in memory. Each round runs every
way once, in a fresh process, one after the other; who goes first changes. Ratios are taken within a round. Processor
times are of the process and all that it started. A way whose package is missing is a row that says so.

`--check` compares the first losses of each peer with a loop in NumPy and float64, from the same weights and batches.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measured import (
    BENCHMARKS,
    Goal,
    Measurements,
    Psrun,
    Setting,
    Spent,
    Summary,
    Way,
    Windows,
    is_chosen,
    run_python,
    show_goals,
    write_between,
)
from rich.console import Console

_PAGE_WIDTH = 132  # of the text of the documentation
BASE = "psrun, `cluster=none`"
LOCAL = "psrun, `cluster=local`, 2 workers, 2 ps"
# Packages that a peer needs, without a version in the table.
_HELPERS = ("jaxlib", "tensordict", "torchmetrics")
GOALS = (
    Goal(BASE, "JAX by hand", 1.0),
    Goal(BASE, "floor: C and BLAS", 0.33),
    Goal(LOCAL, BASE, 0.9),
)


@dataclass(frozen=True)
class Peer:
    """A kind of a program that dlrm_by_hand.py makes.

    Attributes:
      packages: by their names on PyPI, with the module that each brings.
      commands: that must be there.
    """

    name: str
    program: str
    kind: str
    setting: Setting
    packages: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()

    def run(self, folder: Path) -> tuple[Windows, Spent]:
        setting, report = self.setting, folder / "report.json"
        windows = (f"--steps={setting.steps}", f"--windows={setting.windows}", f"--report={report}")
        spent = run_python([*self._command(), *windows], folder)
        return Windows(**json.loads(report.read_text(encoding="utf-8"))), spent

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, folder: Path) -> str:
        """Compares losses; returns what that printed.

        Raises:
          RuntimeError: they are not equal.
        """
        run_python([*self._command(), "--check"], folder)
        return (folder / "output.log").read_text(encoding="utf-8").splitlines()[-1]

    def _command(self) -> list[str]:
        setting = self.setting
        return [
            str(BENCHMARKS / self.program), self.kind, f"--rows={setting.rows}", f"--batch-size={setting.batch}",
        ]  # fmt: skip

    def missing(self) -> str | None:
        """What is not installed."""
        for package, module in self.packages:
            if importlib.util.find_spec(module) is None:
                return package
        for command in self.commands:
            if shutil.which(command) is None:
                return command
        return None


def psrun_ways(setting: Setting) -> list[Way]:
    """With the defaults, but for the cluster."""
    none = Psrun(BASE, setting, model="dlrm_tables", cluster="none")
    local = Psrun(LOCAL, setting, model="dlrm_tables", cluster="local")
    bfloat16 = Psrun(
        f"{LOCAL}, `wire=bfloat16`", setting, model="dlrm_tables", cluster="local", overrides=("+model.wire=bfloat16",)
    )
    return [none, local, bfloat16]


def peers(setting: Setting) -> list[Peer]:
    jax = (("jax", "jax"), ("jaxlib", "jaxlib"))
    tf_keras, keras = (("tf-keras", "tf_keras"),), (("keras", "keras"),)
    torch = (("torch", "torch"),)
    fbgemm = (*torch, ("fbgemm-gpu-cpu", "fbgemm_gpu"))
    torchrec = (*fbgemm, ("torchrec", "torchrec"), ("tensordict", "tensordict"), ("torchmetrics", "torchmetrics"))
    in_keras, in_torch = "keras_by_hand.py", "torch_dlrm_by_hand.py"
    return [
        Peer("tf_keras, `fit`", in_keras, "tf_keras", setting, packages=tf_keras),
        Peer("Keras 3 on TensorFlow, `fit`", in_keras, "keras3_tensorflow", setting, packages=keras),
        Peer("Keras 3 on JAX, `fit`", in_keras, "keras3_jax", setting, packages=(*keras, *jax)),
        Peer("PyTorch, `EmbeddingBag`", in_torch, "torch", setting, packages=torch),
        Peer("TorchRec, fused", in_torch, "torchrec", setting, packages=torchrec),
        Peer("fbgemm by hand", in_torch, "fbgemm", setting, packages=fbgemm),
        Peer("JAX by hand", "jax_by_hand.py", "jax", setting, packages=jax),
        Peer("floor: C and BLAS", "floor_by_hand.py", "floor", setting, commands=("cc",)),
    ]


def markdown(names: Sequence[str], measurements: Measurements, missing: dict[str, str]) -> str:
    """The table of the documentation: a row for each name."""
    rates, times = measurements.summaries(), measurements.processor_times()
    lines = [
        f"| way | steps/s | steps/s of {BASE}, divided by it | processor ms per step |",
        "| --- | --- | --- | --- |",
    ]
    for name in names:
        if name in missing:
            lines.append(f"| {name} | not installed: {missing[name]} | | |")
        elif name in rates:
            ratio = Goal(BASE, name, 0.0).ratio(measurements.rounds())
            cells = (rates[name].text(1), _cell(ratio, 2), _cell(times.get(name), 1))
            lines.append(f"| {name} | {' | '.join(cells)} |")
        else:
            lines.append(f"| {name} | failed | | |")
    return "\n".join(lines)


def _cell(summary: Summary | None, digits: int) -> str:
    return "" if summary is None else summary.text(digits)


def _setting_line(setting: Setting, rounds: int, chosen: Sequence[Peer]) -> str:
    """What was measured with which versions."""
    versions = {"tensorflow": importlib.metadata.version("tensorflow"), "numpy": importlib.metadata.version("numpy")}
    for peer in chosen:
        for package, _ in peer.packages:
            if package in _HELPERS:
                continue
            versions[package] = importlib.metadata.version(package)
    listed = ", ".join(f"{package} {version}" for package, version in versions.items())
    line = (
        f"Rounds: {rounds}; windows of {setting.steps:,} steps: {setting.windows}; batch size: {setting.batch:,}; "
        f"cores: {os.cpu_count()}; {listed}:"
    )
    return textwrap.fill(line, _PAGE_WIDTH)


def check(chosen: Sequence[Peer], console: Console) -> bool:
    """Whether the losses of all peers are equal to a loop in float64."""
    equal = True
    for peer in chosen:
        try:
            with tempfile.TemporaryDirectory(prefix="psrun-peers-") as folder:
                console.print(f"{peer.name}: {peer.check(Path(folder))}", markup=False)
        except RuntimeError as error:
            console.print(f"{peer.name}: {error}", markup=False)
            equal = False
    return equal


def main() -> None:
    options = _parsed()
    console = Console(highlight=False, width=120)
    setting = Setting(rows=options.rows, batch=options.batch_size, steps=options.steps, windows=options.windows)
    others = [peer for peer in peers(setting) if is_chosen(peer.name, options.only)]
    missing = {peer.name: what for peer in others if (what := peer.missing())}
    installed = [peer for peer in others if peer.name not in missing]
    for name, what in missing.items():
        console.print(f"{name}: not installed: {what}", markup=False)
    if options.check:
        sys.exit(0 if check(installed, console) else 1)
    own = [way for way in psrun_ways(setting) if is_chosen(way.name, options.only)]
    measurements = Measurements([*own, *installed])
    try:
        measurements.measure(options.rounds, console)
    finally:
        names = [way.name for way in own]
        names += [peer.name for peer in others]
        table = markdown(names, measurements, missing)
        text = f"{_setting_line(setting, options.rounds, installed)}\n\n{table}"
        console.print(text, markup=False, soft_wrap=True)
        goals = show_goals(GOALS, measurements.rounds(), console)
    if options.json:
        record = {**measurements.plain(), "missing": missing, "goals": goals}
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.write:
        write_between(options.write, "peers", text)
    sys.exit(1 if measurements.failed else 0)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000, help="of each window that is timed")
    parser.add_argument("--windows", type=int, default=3, help="that are timed in each process")
    parser.add_argument("--rows", type=int, default=20_000, help="of each table")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--only", default=["*"], nargs="+", metavar="PATTERN", help="only ways of such names: '*JAX*'")
    parser.add_argument("--check", action="store_true", help="only compare the first losses of the peers with float64")
    parser.add_argument("--json", type=Path, help="file for every measurement")
    parser.add_argument("--write", type=Path, help="page that gets the table, between <!-- peers --> and its end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
