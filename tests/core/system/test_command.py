"""psrun as a person uses it: real processes, their output, their exit codes and what they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import psutil
import pytest
from bounds import BOUND_S
from support import HARNESS, REPOSITORY, STEPS, many_epochs

from psrun import __version__
from psrun.cli import command_line
from psrun.errors import ConfigError, ExitCode

pytestmark = pytest.mark.command

OUTSIDE = HARNESS / "outside"  # of another project

QUICK = ["data.num_train_examples=500", "data.num_eval_examples=100", "trainer.epochs=2", "trainer.steps_per_epoch=20"]
RESULT_KEYS = {
    "status", "exit_code", "error", "metrics", "steps", "examples_per_s", "steps_per_s", "time_to_first_step_s",
    "wall_s",
    "cluster", "placement", "evaluation", "checkpoints", "versions", "overrides",
}  # fmt: skip


def test_a_run_reports_on_the_terminal_and_in_its_folder(psrun, tmp_path):
    """The smallest experiment, at its own size."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "keras.py").write_text("raise RuntimeError('a run of tf-keras has imported Keras 3')\n")
    (tmp_path / "broken-1.dist-info").mkdir()  # a run with psrun's own choices does not look for other packages
    (tmp_path / "broken-1.dist-info" / "entry_points.txt").write_text("[psrun.parts]\nbroken = missing:PART\n")
    done = psrun("experiment=smoke", TMPDIR=str(temporary))
    assert done.code == 0, done.stderr
    assert done.stderr == ""
    for part in (
        "embedding on inprocess (2 workers, 2 ps)",
        "on 2 parameter servers",
        "epoch 2/2",
        "completed 40 steps",
        "best: val_loss",
        "next: psrun report ",
    ):
        assert part in done.stdout
    assert "tensorflow" not in done.stdout  # its chatter is in the log
    log = (done.folder / "logs" / "chief-0.log").read_text()
    assert "tensorflow" in log.lower()
    assert "WARNING:tensorflow" not in log
    result = done.result
    assert set(result) >= RESULT_KEYS
    assert (result["status"], result["exit_code"], result["error"]) == ("completed", 0, None)
    assert result["cluster"] == {"topology": "inprocess", "num_workers": 2, "num_ps": 2}
    assert result["steps"] == {"applied": 40, "scheduled": 40, "repeated": 0}
    assert 0 < result["time_to_first_step_s"] < result["wall_s"]
    parts = result["time_to_first_step_by_part_s"]
    assert [*parts] == ["import", "data", "connect", "build", "trace"]
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(result["time_to_first_step_s"], abs=0.005)
    assert result["overrides"] == ["experiment=smoke"]
    assert {row["task"] for row in result["placement"] if row["variable"].startswith("embedding")} == {"ps-0", "ps-1"}
    assert result["evaluation"]["examples_seen"] == result["data"]["num_eval_examples"] == 100
    kinds = [event["event"] for event in done.events]
    each_epoch = ["staleness", "waits", "epoch", "checkpoint", "evaluation"]
    assert [kind for kind in kinds if kind in ("start", "placement", "end", *each_epoch)] == [
        "start", "placement", *each_epoch * 2, "end",
    ]  # fmt: skip
    assert (kinds[0], kinds[-1]) == ("begun", "ended")
    timed = [event["seconds"] for event in done.events if event["event"] in ("epoch", "checkpoint", "evaluation")]
    assert len(timed) == 6
    assert min(timed) > 0
    assert (done.folder / "config.yaml").exists()
    assert (done.folder / ".hydra" / "overrides.yaml").exists()
    assert list(temporary.iterdir()) == []


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
    again = psrun("mode=plan", "seed=3")  # a plan makes room for the next one
    assert (again.code, again.result["overrides"]) == (0, ["mode=plan", "seed=3"])
    assert "seed=3" in (done.folder / ".hydra" / "overrides.yaml").read_text()


def test_a_refused_run_does_not_block_its_folder(psrun):
    refused = psrun("mode=plan", "model.metrics=[nosuch]", "run.name=first")
    assert (refused.code, refused.result["status"], refused.result["exit_code"]) == (2, "failed", 2)
    assert psrun("mode=plan", "seed=x").code == 2  # is refused again
    done = psrun("mode=plan", "seed=3")
    assert (done.code, done.result["status"], done.result["overrides"]) == (0, "completed", ["mode=plan", "seed=3"])
    assert [event["event"] for event in done.events].count("begun") == 1
    assert not (done.folder / "notes.json").exists()


def test_version_and_help_take_no_tensorflow(psrun, tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('imported')\n")
    assert psrun("--version").stdout.strip() == f"psrun {__version__}"
    shown = psrun("--help", COLUMNS="80").stdout
    lines = shown.splitlines()
    assert len(lines) <= 24  # a screen
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("  psrun ")]) == 5  # to copy
    groups = {path.name for path in (REPOSITORY / "conf").iterdir() if path.is_dir() and path.name.isalpha()}
    assert groups | set(command_line.command_words()) <= set(shown.replace(";", " ").split())


def test_all_mistakes_are_reported_at_once_with_exit_code_2(psrun):
    """What psrun says about each: test_messages_core.py."""
    done = psrun("trainer.epoch=3", "model=embeding", "modle=x", "cluster.num_workers=0", "trainer.epochs=null")
    keys = [line.partition(": ")[0] for line in done.stderr.removeprefix("psrun: ").splitlines()]
    assert sorted(keys) == ["cluster.num_workers", "model", "modle", "trainer.epoch", "trainer.epochs"]
    assert "Traceback" not in done.stderr + done.stdout
    assert done.code == 2
    refused = psrun("evaluation=validation")  # found when the run has a folder
    assert (refused.code, refused.result["status"], refused.result["exit_code"]) == (2, "failed", 2)
    assert refused.result["error"]["type"] == "ConfigError"


def test_a_failure_has_its_traceback_in_the_log_only(psrun):
    done = psrun("model=dense", "cluster=none", "optimizer=sgd", "optimizer.learning_rate=1e20", "trainer.epochs=2")
    assert done.code == 1
    assert "the loss became" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    log = (done.folder / "logs" / "chief-0.log").read_text()
    assert "Traceback" in log
    assert "WARNING:tensorflow" not in log
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


def test_ctrl_c_in_a_terminal_ends_a_run_that_shows_a_live_line(tmp_path):
    """SIGTERM ends runs in the tests of clusters."""
    pexpect = pytest.importorskip("pexpect")
    few = [
        "cluster.num_ps=1",
        "cluster.num_workers=1",
        "evaluation=none",
        many_epochs(50),
        "trainer.steps_per_epoch=50",
    ]
    command = ["-m", "psrun", *few, f"hydra.run.dir={tmp_path / 'run'}"]
    child = pexpect.spawn(
        sys.executable, command, cwd=tmp_path, dimensions=(40, 140), timeout=BOUND_S, encoding="utf-8"
    )
    try:
        child.expect(r"epoch \d+/\d+  step")
        child.expect("epoch 2/")
        child.sendintr()
        child.expect("interrupted by SIGINT")
        child.expect_exact("to resume: psrun resume run\r\n")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    assert child.exitstatus == 130
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert result["status"] == "interrupted"
    assert result["steps"]["applied"] >= 50
    assert not psutil.pid_exists(child.pid)


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


def test_components_of_a_user_train_and_evaluate_without_touching_psrun(psrun, tmp_path):
    """A model, data and callbacks in one module, and an evaluation mode of another project."""
    (tmp_path / "mine.py").write_text(MINE)
    for group, text in {"model": "_target_: mine.line\nwidth: 4\n",
                        "data": "_target_: mine.Doubled\nglobal_batch_size: 16\n"}.items():  # fmt: skip
        (tmp_path / "myconf" / group).mkdir(parents=True)
        (tmp_path / "myconf" / group / "mine.yaml").write_text(text)
    written = "{_target_: tf_keras.callbacks.CSVLogger, filename: '${hydra:runtime.output_dir}/epochs.csv'}"
    done = psrun(
        "--config-dir", "myconf", "--config-dir", str(OUTSIDE / "toy" / "conf"), "model=mine", "data=mine",
        "model.width=8", "evaluation=quick", "evaluation.every=2", "trainer=fit", "trainer.epochs=3",
        "trainer.steps_per_epoch=20",
        f"trainer.callbacks=[{{_target_: mine.EpochPrinter}},{written}]", f"hydra.run.dir={tmp_path / 'run'}",
        PYTHONPATH=str(OUTSIDE),
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "end of epoch 0 ['loss', 'mae']" in done.stdout
    assert "end of epoch 1 ['loss', 'mae', 'val_loss', 'val_mae']" in done.stdout
    assert len((done.folder / "epochs.csv").read_text().splitlines()) == 4
    evaluations = [event for event in done.events if event["event"] == "evaluation"]
    assert all(event["seconds"] > 0 for event in evaluations)
    assert [event["step"] for event in evaluations] == [40, 60]  # every second epoch, and after the last one
    assert done.result["evaluation"]["mode"] == "quick"
    assert done.result["metrics"]["val_loss"] < 0.5


@pytest.mark.inprocess
def test_a_batchwise_callback_of_a_person_is_refused_before_training(train):
    with pytest.raises(ConfigError, match="Batchwise"):
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


@pytest.mark.parametrize("arguments", [["--help"], pytest.param(["--cfg", "job"], marks=pytest.mark.thorough)])
def test_standard_output_that_cannot_be_written_is_a_named_error(tmp_path, arguments):
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
def test_output_that_cannot_be_written_does_not_end_the_training(tmp_path):
    """More in test_process.py."""
    command = [sys.executable, "-m", "psrun", "cluster=none", "model=dense", "trainer.steps_per_epoch=5",
               "trainer.epochs=2", "evaluation=none", "hydra.run.dir=run"]  # fmt: skip
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=BOUND_S)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (result["status"], result["steps"]["applied"]) == ("completed", 10)  # and epochs of 5 steps need no more


@pytest.mark.thorough
def test_what_was_planned_or_refused_leaves_no_folder_but_where_one_was_named(psrun, tmp_path):
    quick = ["--config-dir", ".", "model=dense", "cluster=none"]  # an option keeps the fixture from naming a folder
    assert psrun("mode=plan", *quick).code == 0
    assert psrun("trainer.epochs=0", *quick).code == 2
    assert (
        psrun("early_stopping.metric=val_x", "early_stopping.mode=max", *quick).code == 2
    )  # after TensorFlow's import
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_run_of_before_there_were_two_optimizers_goes_on_with_two_on_another_cluster(psrun):
    first = psrun("optimizer=adam", "trainer.epochs=1", "trainer.steps_per_epoch=20")
    for file in ("config.yaml", ".hydra/hydra.yaml", ".hydra/config.yaml"):
        path = first.folder / file
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "table_optimizer" not in line))
    resumed = f"resume={first.folder}"
    assert psrun(resumed, "trainer.epochs=2").code == 0
    layout = ("cluster=local", "cluster.num_workers=1", "partitioner=fixed_shards", "partitioner.num_shards=2")
    done = psrun(resumed, "trainer.epochs=3", "table_optimizer=sparse_adagrad", *layout)
    assert "the slots of tables start anew" in done.stdout + done.stderr
    last = psrun(resumed, "trainer.epochs=4", "cluster=inprocess", "partitioner=none")  # with two, and their slots
    assert (last.code, first.result["steps"]["applied"]) == (0, 80)
    assert "start anew" not in last.stdout + last.stderr
    assert any(each["variable"] == "accumulator/embedding/embeddings" for each in first.result["placement"])
