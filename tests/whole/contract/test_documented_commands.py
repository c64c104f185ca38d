"""The commands in README and docs: all of them are valid, and those of README train, resume, sweep and report.

README's installation and test commands are executed by .ci/run, the tutorials and `init` by test_init.py.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import runpy
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from documented import PAGES, ROOT, blocks, commands, inline_overrides
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from recorded_runs import a_run, a_sweep

from psrun.cli import command_line
from psrun.cli.command_line import find_command
from psrun.config import composition, groups, parse, topology
from psrun.config.run_config import OF_A_RUN, RESUME
from psrun.config.topology import CHIEF, Task
from psrun.errors import ConfigError, ExitCode
from psrun.runs.sweeps import sweep_state

# Executed by test_init.py, test_completion.py (-sc), test_arguments.py (GROUP=?), test_reproduce.py, test_remove.py,
# test_run_commands.py (logs), and below (checkpoint).
ELSEWHERE = ("init", "-sc", "model=?", "--version", "checkpoint", "reproduce", "logs", "rm")
# Need a run with checkpoints; executed after README's commands, which train one.
ON_A_RUN = ("docs/guides/checkpoints.md", "docs/guides/exports.md", "docs/guides/evaluation.md")
AGAIN = ["export", "runs/RUN", "restore=best"]  # an export without restore=best is before it
SHORT = ("trainer.epochs=1", "trainer.steps_per_epoch=4")
FEW = ("data.num_train_examples=500", "data.num_eval_examples=100")  # of generated data
BEST = ("checkpoint.best_metric=val_auc", "checkpoint.best_mode=max")
TRAINED = "runs/first"  # by the commands of README's cluster
ROWS = [["age", "city", "COLUMN", "clicked", "bought", "importance"]] + [
    [20 + n % 40, f"c{n % 3}", n % 2, n % 2, ("no", "yes")[n % 2], 1] for n in range(200)
]


def test_the_command_of_the_picture_in_readme_runs_as_it_is():
    (line,) = [each for each in (ROOT / "README.md").read_text().splitlines() if each.startswith("  psrun cluster=")]
    assert composition.all_problems(shlex.split(line)[1:]) == []


@pytest.mark.parametrize("page", PAGES)
def test_an_override_in_a_sentence_can_be_typed_as_it_is(page):
    """As a shell takes it: it removes quotes that no others surround."""
    for override in inline_overrides((ROOT / page).read_text()):
        OverridesParser.create().parse_override(override)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the runs and files that pages name."""
    for name in ("RUN", "A", "B", "BACK", "first"):
        a_run(tmp_path / "runs" / name)
    a_run(tmp_path / "runs" / "one", step_time={"input_s": 0.0, "traffic_s": 0.004, "compute_s": 0.02, "other_s": 0.0})
    table = yaml.safe_load((ROOT / "conf" / "data" / "table.yaml").read_text())
    clicks = {"data": {**table, "path": "clicks.csv", "label": "clicked"}}
    a_run(tmp_path / "runs" / "clicks", config=clicks, overrides=["data=table"])
    a_study(tmp_path / "runs" / "modes")
    for name, auc in (("NEW", 0.8), ("BASELINE", 0.7)):
        for seed in (1, 2):
            a_run(tmp_path / "runs" / name / str(seed), seed=seed, auc=auc + seed**2 / 100)
    for name in ("SWEEP", "scaling"):
        a_sweep(tmp_path / "runs" / name)
        for unfinished in ("2", "11"):
            shutil.rmtree(tmp_path / "runs" / name / unfinished)
            a_run(tmp_path / "runs" / name / unfinished)
    text = io.StringIO()
    csv.writer(text).writerows(ROWS)
    (tmp_path / "clicks").mkdir()
    for name in ("clicks/train-0.csv.gz", "clicks/eval.csv.gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.getvalue().encode()))
    for name in ("train.csv", "eval.csv", "clicks.csv", "new.csv"):
        (tmp_path / name).write_text(text.getvalue())
    (tmp_path / "ratings").mkdir()
    ratings = "".join(f"u{n % 20},i{n % 7},{n % 5}.5\n" for n in range(100))
    for size in (32, 256, 1024):
        (tmp_path / "ratings" / f"{size}.csv").write_text(f"user,item,rating\n{ratings}")
    (tmp_path / "shop.csv").write_text("user,item,time\nu1,i1,1\nu1,i2,2\n")
    monkeypatch.setattr(sweep_state, "BETWEEN_JOBS_S", 0.0)  # `a_sweep` writes no sweep.json
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)  # which `psrun watch` sets


def a_study(folder: Path) -> None:
    """The runs of README's study: jobs 0 to 2 have one configuration and three seeds, 3 to 5 another one."""
    for job in range(6):
        a_run(folder / str(job), workers=1 + job // 3, seed=1 + job % 3, auc=0.8 + job % 3 / 100 + job / 200)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "tutorials" not in page and commands((ROOT / page).read_text())]
)
def test_commands_of_a_page_are_valid(folder, page):
    """Runs are composed and checked; commands that start no run are executed."""
    text = (ROOT / page).read_text()
    write_files(folder, text)
    for written in commands(text):
        arguments = in_keys([each.replace("s3://BUCKET/", "") for each in written])  # there is no store: here it is
        if arguments[0] in ELSEWHERE or "..." in arguments or _resumes_a_sweep(arguments):
            continue
        try:
            code = execute(arguments) if find_command(arguments[0]) else check(arguments)
        except (ConfigError, SystemExit) as error:
            raise AssertionError(f"psrun {' '.join(arguments)}: {error}") from error
        assert code == ExitCode.DONE, arguments


def in_keys(arguments: list[str]) -> list[str]:
    """The arguments in Hydra's grammar where they begin with a word that stands for keys of a run."""
    word, others = command_line.word_of_run(arguments)
    return others if word is None else command_line.as_keys(word, others)


def write_files(folder: Path, text: str) -> None:
    """The modules and YAML files of a page; a project's conf/ for pages that assume one."""
    for language in ("python", "yaml"):
        for title, code in blocks(text, language):
            if title:
                (folder / title).parent.mkdir(parents=True, exist_ok=True)
                (folder / title).write_text(code)
            elif language == "python" and code.startswith("def "):
                with (folder / "mine.py").open("a") as file:
                    file.write(code)


def _resumes(arguments: list[str]) -> bool:
    return any(each.startswith("resume=") for each in arguments)


def _resumes_a_sweep(arguments: list[str]) -> bool:  # executed by test_multirun.py
    is_sweep = "-m" in arguments or "SWEEP" in " ".join(arguments)
    return is_sweep and _resumes(arguments)


def execute(arguments: list[str]) -> ExitCode:
    if arguments[:2] == ["submit", "slurm"] and "--dry-run" not in arguments:
        arguments = [*arguments, "--dry-run"]
    if arguments[:2] == ["data", "synthesize"]:
        arguments = [*arguments, "--num-examples", "100", "--num-eval-examples", "100"]
    arguments = ["train.csv" if each == "FILE" else each for each in arguments]
    return find_command(arguments[0])(arguments[1:])


def check(arguments: list[str]) -> ExitCode:
    """Composes and checks a run, or the first job of a sweep."""
    given = [each for each in groups.options_first(arguments) if each not in ("-m", "--cfg", "job")]
    values = [value for value in map(_first, given) if value]
    of_psrun = not any(each.startswith(("--config-dir", "resume=")) for each in values)
    composed = composer().compose(values) if of_psrun else command_line.composed(values)
    parse.load(composition.values(composed))
    return ExitCode.DONE


@functools.cache
def composer() -> composition.Composer:
    """Of runs without files of a user: it reads those of psrun once for all pages."""
    return composition.Composer.create([])


def _first(argument: str) -> str:
    """The argument with the first value of its sweep; empty if it is about the sweep itself."""
    if argument.startswith("-") or "=" not in argument:
        return argument
    if argument.startswith(("hydra/", "hydra.sweep", "hydra.launcher")):  # Hydra's own plug-ins are optional
        return ""
    override = OverridesParser.create().parse_override(argument)
    if not override.is_sweep_override():
        return argument
    if override.value_type == ValueType.CHOICE_SWEEP or override.value_type == ValueType.SIMPLE_CHOICE_SWEEP:
        return f"{override.key_or_group}={next(override.sweep_string_iterator())}"
    return f"{override.key_or_group}={override.value().start}"


@pytest.mark.packaging
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.release)], ids=["a part", "whole"])
def test_readme_can_be_followed_in_a_new_folder(shell, tmp_path, whole):
    """Each command as it is written, at a small size; then what the guides do with a run that was trained.

    The part is without the runs, plans and sweeps whose like other tests run, as nothing follows from them.
    """
    runs = tmp_path / "runs"
    rows = [f"{20 + n % 50},{'ab'[n % 2]},{n % 3 // 2}\n" for n in range(400)]
    for name in ("clicks.csv", "new.csv"):
        (tmp_path / name).write_text("".join(["age,city,clicked\n", *rows]))
    if not whole:
        a_study(runs / "modes")
    for arguments in commands((ROOT / "README.md").read_text()):
        if whole or TRAINED in " ".join(arguments) or arguments[0] == "report":
            shell(shlex.join(["psrun", *_small(arguments)]), tmp_path)
    assert json.loads((tmp_path / TRAINED / "run.json").read_text())["steps"]["applied"] == 8
    assert (tmp_path / "report.html").stat().st_size > 5e5
    statuses = [json.loads(file.read_text())["status"] for file in runs.glob("*/**/run.json")]
    assert statuses == ["completed"] * len(statuses)
    requests = dict(blocks((ROOT / "docs" / "guides" / "exports.md").read_text(), "json"))
    assert np.shape(answers(tmp_path / TRAINED, requests["request.json"])["prediction"]) == (2, 1)
    if whole:
        assert len(statuses) == 12  # the first run, those of the table and of the cluster, nine of the study
        shell("psrun export runs/clicks", tmp_path)
        assert np.shape(answers(runs / "clicks", requests["row.json"])["prediction"]) == (2, 1)

    for name in ("RUN", "A", "B"):
        shutil.copytree(tmp_path / TRAINED, runs / name)
    for page in ON_A_RUN:
        for arguments in commands((ROOT / page).read_text()):
            if arguments[0] == "checkpoint" or (_reads(arguments) and (whole or arguments != AGAIN)):
                shell(shlex.join(["psrun", *arguments]).replace("ckpt-500", "ckpt-8"), tmp_path)


def answers(run: Path, request: str) -> dict[str, Any]:
    """The outputs of a run's only export for a request in rows, as TensorFlow Serving's REST interface reads it."""
    (exported,) = (run / "export").iterdir()
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
    inputs = serve.structured_input_signature[1]
    rows = json.loads(request)["instances"]
    if len(inputs) == 1:
        rows = [dict.fromkeys(inputs, row) for row in rows]
    return serve(**{name: tf.constant([row[name] for row in rows], spec.dtype) for name, spec in inputs.items()})


def _reads(arguments: list[str]) -> bool:
    """Whether a command exports, predicts or evaluates; README's commands train and resume."""
    has_mode = arguments[0] in OF_A_RUN or any(each.startswith("mode=") for each in arguments)
    return has_mode and any("runs/RUN" in each for each in arguments)


def _small(arguments: list[str]) -> list[str]:
    if arguments[0] == RESUME or _resumes(arguments):
        return [*arguments, "trainer.epochs=2"]
    starts_a_run = find_command(arguments[0]) is None or arguments[0] == "train"
    if not starts_a_run:
        return arguments
    given = [*arguments, *SHORT]
    if "data=table" not in arguments:
        given += FEW
    if "cluster=local" in arguments:
        given += BEST
    return given


def test_what_services_set_as_tf_config_names_a_task():
    text = (ROOT / "docs" / "guides" / "engines" / "tf_config.md").read_text()
    tasks = {title: topology.from_tf_config(code).me for title, code in blocks(text, "json")}
    assert tasks == {"vertex.json": Task("worker", 1), "sagemaker.json": CHIEF}


@pytest.mark.tensorflow
def test_a_table_of_pretrained_vectors_begins_with_them(tmp_path):
    write_files(tmp_path, (ROOT / "docs" / "guides" / "own-components.md").read_text())
    page = runpy.run_path(str(tmp_path / "vectors.py"))
    vectors = np.arange(60, dtype=np.float32).reshape(20, 3)
    assert np.array_equal(page["pretrained"](vectors)(tf.range(20)), vectors)
    shard = page["Rows"](vectors)((20, 3), tf.float32, partition_shape=(5, 3), partition_offset=(10, 0))
    assert np.array_equal(shard, vectors[10:15])
