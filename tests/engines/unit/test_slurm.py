"""Slurm without Slurm: the job from SLURM_*, the batch script, how it is followed, and all bad input."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console
from rich.text import Text
from support import raw_config, run_config

from psrun.config.groups import quoted
from psrun.config.topology import Task
from psrun.engines import submit
from psrun.engines.slurm import allocation, batch_job, choice, commands, task_step
from psrun.errors import ClusterError, ConfigError, ExitCode, PsrunError
from psrun.launch.backend import TaskProcess
from psrun.results import run_folder, run_state, task_files
from psrun.roles import run_process
from psrun.roles.table import identify
from psrun.runs import remove, stop
from psrun.runs.listing import commands as listing
from psrun.runs.listing import entries
from psrun.runs.sweeps import hydra_sweeps, runner
from psrun.runs.sweeps.sweep import LOG, Job, Sweep
from psrun.runs.watch import commands as watch
from psrun.runs.watch.run import RunView

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_JOB_NODELIST": "n[0-3]",
    "SLURM_TASKS_PER_NODE": "2,1(x3)",
}
HETEROGENEOUS = {
    **JOB,
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n0",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "3,1",
    "SLURM_CPUS_PER_TASK_HET_GROUP_0": "1",
    "SLURM_CPUS_PER_TASK_HET_GROUP_1": "4",
    "SLURM_MEM_PER_NODE_HET_GROUP_1": "100",
}


def test_only_a_job_that_starts_again_waits_for_the_folder():
    run = run_config("cluster=slurm")
    first, again = (identify(run, {**JOB, "SLURM_RESTART_COUNT": count}) for count in ("0", "1"))
    assert first.role == again.role == "supervisor"
    assert (first.patience_s, again.patience_s > 0) == (0, True)
    assert (first.start, again.start) == ("slurm-7.0", "slurm-7.1")


def test_a_process_that_is_no_task_of_slurm_has_a_cluster_of_its_own_choice():
    assert identify(run_config("cluster=slurm", "mode=plan"), {}).role == "planner"
    assert identify(run_config("cluster=inprocess"), JOB).role == "coordinator"
    assert identify(run_config("cluster=local"), JOB).role == "supervisor"


def test_one_task_reports_for_all_that_srun_has_started_them():
    with pytest.raises(SystemExit) as raised:
        identify(run_config("cluster=slurm"), {**JOB, "SLURM_STEP_ID": "0", "SLURM_PROCID": "2"})
    assert raised.value.code == ExitCode.USAGE


def test_a_script_that_runs_again_has_the_same_folder():
    assert allocation.run_name(JOB) == allocation.run_name({**JOB, "SLURM_RESTART_COUNT": "2"})
    assert allocation.run_name({}) is None


def test_a_step_has_tasks_of_all_components_in_their_order():
    job = allocation.job_of(run_config("cluster=slurm"), HETEROGENEOUS)
    assert job.num_tasks == (1, 4)
    first = ["--het-group=0", "--ntasks=1", "--cpus-per-task=1"]
    second = ["--het-group=1", "--ntasks=3", "--cpus-per-task=4", "--mem=0"]
    assert allocation.options(job, 4, HETEROGENEOUS) == [(first, 1), (second, 3)]
    assert allocation.options(job, 1, HETEROGENEOUS) == [(first, 1)]
    job = allocation.job_of(run_config("cluster=slurm"), JOB)
    assert allocation.options(job, 4, JOB) == [(["--ntasks=4", "--cpus-per-task=1"], 4)]


def test_a_run_names_its_tasks():
    run = run_config("cluster=slurm", "cluster.num_ps=1", "cluster.num_workers=2", "evaluation=sidecar")
    assert allocation.described(run) == "chief, 1 ps, 2 workers, evaluator"


# -- the batch script


def rendered(*overrides: str, folder: Path = Path("/shared/a run")) -> str:
    run = run_config("cluster=slurm", *overrides)
    message = ["cluster=slurm", f"hydra.run.dir='{folder}'"]
    return batch_job.script(run, message, where=Path("/home/me"), folder=folder, name="psrun-a")


def test_the_script():
    text = rendered("slurm.time='2:00:00'", "slurm.partition=gpu", "slurm.nodes=3", "slurm.memory_per_cpu=4G")
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in ("time=2:00:00", "partition=gpu", "nodes=3", "mem-per-cpu=4G", "ntasks=5", "requeue",
                   "signal=B:USR1@120", 'output="/shared/a run/logs/slurm.log"', "open-mode=append"):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert "account" not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_name_of_a_folder_is_no_pattern_and_one_line():
    assert "#SBATCH --output=/a/50%%j/logs/slurm.log" in rendered(folder=Path("/a/50%j"))
    for folder in ("/a/b\nc", "/a/b\\c"):
        with pytest.raises(ConfigError, match=r"hydra\.run\.dir: is "):
            rendered(folder=Path(folder))


@pytest.mark.parametrize("path", ["a b", "it's", 'say "so"', "a#b", "$HOME", "`id`", "a;b", "a\tb", "ü"])
def test_a_folder_of_any_name_arrives_where_it_is_read(path):
    """As sbatch reads its comments (get_argument of its opt.c), and as the shell and Hydra read the command."""
    folder = Path("/shared") / path
    message = [f"hydra.run.dir={quoted(folder)}"]
    text = batch_job.script(run_config("cluster=slurm"), message, where=folder, folder=folder, name=path)
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    given = dict(shlex.split(option, comments=True)[0].partition("=")[::2] for option in options)
    assert (given["--chdir"], given["--job-name"]) == (str(folder), path)
    assert given["--output"] == f"{folder}/logs/slurm.log"
    body = text.replace("exec ", "printf '%s\\n' ")
    out = subprocess.run(["bash", "-c", body], capture_output=True, text=True, check=True).stdout.splitlines()
    parsed = OverridesParser.create().parse_override(out[-1])
    assert parsed.value() == str(folder)


def test_arguments_arrive_in_the_tasks_as_they_were_given():
    text = rendered("slurm.setup=['export A=1']", "slurm.options=['--constraint=ib']")
    assert "#SBATCH --constraint=ib" in text
    body = text.replace("exec ", "printf '%s\\n' ").replace("#SBATCH", "#")
    out = subprocess.run(["bash", "-c", body], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[-2:] == ["cluster=slurm", "hydra.run.dir='/shared/a run'"]


# -- psrun submit slurm


@pytest.fixture
def submitted(tmp_path, monkeypatch, capsys):
    """Submits in a folder of its own; returns what is printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert submit.main(["slurm", *arguments]) == ExitCode.DONE
        return capsys.readouterr().out

    return run


def test_a_dry_run_leaves_nothing_behind(tmp_path, submitted):
    text = submitted("--dry-run", "model=dense", "cluster.num_workers=3")
    assert "#SBATCH --ntasks=6" in text
    assert "model=dense cluster.num_workers=3 cluster=slurm" in text
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_has_the_same_tasks(tmp_path, submitted):
    (tmp_path / "run.json").write_text('{"overrides": ["cluster=local", "cluster.num_workers=4", "model=dense"]}')
    text = submitted("--dry-run", f"resume={tmp_path}", "slurm.time=5")
    assert "#SBATCH --ntasks=7" in text
    assert f"psrun resume={tmp_path} slurm.time=5 cluster=slurm\n" in text


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Replaces a command of Slurm with a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
        monkeypatch.setattr(commands, "QUEUE", commands._Queue())

    make("squeue", "exit 0")
    return make


def test_the_states_of_a_slurm_job(fake):
    fake("scontrol", "echo 'JobId=7 JobName=a JobState=PENDING Reason=Priority ExitCode=0:0'")
    assert commands.look("7") == commands.JobState("PENDING", "Priority", "0:0")
    fake("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert not commands.look("7").is_alive
    with pytest.raises(ClusterError, match="the job cannot be requeued: slurm_load_jobs error: Invalid job id"):
        commands.requeue("7")
    fake("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ClusterError, match="did not report the state of job 7: Unable to contact"):
        commands.look("7")


def test_a_submitted_job_that_is_not_followed(fake, tmp_path, submitted):
    fake("sbatch", "grep -q ntasks=5 \"$2\" && echo '12;cluster'")
    fake("scontrol", "exit 1")
    text = submitted("--no-follow", "hydra.run.dir=one", "run.name=first")
    assert "Slurm job 12" in text
    assert f"psrun stop {tmp_path}/one" in text
    assert (tmp_path / "one" / "slurm.sh").exists()
    row = entries.of_run(str(tmp_path / "one")).row
    assert [row[name] for name in ("status", "name", "engine", "where")] == ["pending", "first", "slurm", "job 12"]
    with pytest.raises(ConfigError, match="waits for its Slurm job; psrun stop cancels it"):
        remove.main(["one", "--yes"])
    fake("squeue", f"echo '12|PENDING|Priority|N/A|{tmp_path}/one/slurm.sh'")
    row = entries.of_run(str(tmp_path / "one")).row
    assert (row["status"], row["where"]) == ("pending", "Slurm job 12: pending (Priority)")
    with pytest.raises(ConfigError, match=r"has Slurm job 12 already, pending \(Priority\)"):
        submit.main(["slurm", "--no-follow", "hydra.run.dir=one"])


@pytest.fixture
def requeued(fake, tmp_path, monkeypatch):
    """A run whose job 7 was requeued at the time limit, in runs/one of the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "one"
    process = {"slurm_job": "7", "host": "n0", "pid": 1}
    slurm = {"topology": "slurm"}
    ended(folder, status="interrupted", exit_code=175, process=process, cluster=slurm, overrides=["cluster=slurm"])
    fake("squeue", "echo '7|PENDING|BeginTime|2026-11-29T18:19:32|/home/me/run.sh'")
    return folder


def test_a_requeued_run_is_neither_removed_nor_submitted_again(requeued, fake, capsys):
    row = entries.of_run(str(requeued)).row
    assert row["status"] == "pending"
    assert row["where"] == "Slurm job 7: pending (BeginTime) until 2026-11-29T18:19:32"
    with pytest.raises(ConfigError, match=r"has Slurm job 7, pending \(BeginTime\).*; psrun stop cancels it"):
        remove.main(["one", "--yes"])
    fake("sbatch", "exit 1")
    fake("scontrol", "exit 1")
    with pytest.raises(ConfigError, match=r"Slurm job 7 already, .*psrun watch .*psrun stop .*one first"):
        submit.main(["slurm", "resume=one"])
    fake("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ConfigError, match="may have a job: Slurm does not show its queue: Unable to contact"):
        remove.main(["one", "--yes"])
    assert entries.of_run(str(requeued)).row["status"] == "interrupted"
    assert listing.main([]) == ExitCode.DONE
    assert capsys.readouterr().err.count("warning: Slurm does not show its queue: Unable to contact") == 1
    fake("squeue", "exit 0")
    remove.main(["one", "--yes"])
    assert not requeued.exists()


def test_a_requeued_run_is_watched_until_it_ends(requeued, capsys):
    end = threading.Timer(1.5, lambda: ended(requeued, cluster={"topology": "slurm"}, process={"slurm_job": "7"}))
    end.start()
    assert watch.main(["one"]) == ExitCode.DONE
    end.join()
    printed = capsys.readouterr().out
    assert "Slurm job 7 is pending (BeginTime) until 2026-11-29T18:19:32: the run resumes by itself" in printed
    assert "to resume:" not in printed


def test_all_jobs_of_a_run_are_stopped_the_waiting_ones_first(requeued, fake, tmp_path, capsys):
    ended(requeued, status="running", exit_code=None, process={"slurm_job": "7"}, cluster={"topology": "slurm"})
    queue = tmp_path / "queue"
    queue.write_text(f"7|RUNNING|None|N/A|{requeued}/slurm.sh\n8|PENDING|Priority|N/A|{requeued}/slurm.sh\n")
    result = '{"status": "interrupted", "exit_code": 130}'
    fake("squeue", f"cat {queue}")
    fake(
        "scancel",
        f"echo $* >> {tmp_path}/cancelled; for last; do :; done; sed -i /^$last/d {queue}; "
        f"echo '{result}' > {requeued}/run.json",
    )
    assert stop.main(["one"]) == 0
    assert (tmp_path / "cancelled").read_text() == "8\n--batch --signal=INT 7\n"
    assert "interrupted" in capsys.readouterr().out


def test_a_run_that_is_stopped_now_gets_the_signal_twice(requeued, fake, tmp_path):
    """A second Ctrl-C ends psrun at once; Slurm's own end of a job would let it save."""
    ended(requeued, status="running", exit_code=None, process={"slurm_job": "7"}, cluster={"topology": "slurm"})
    fake("squeue", f"test -e {tmp_path}/over || echo '7|RUNNING|None|N/A|{requeued}/slurm.sh'")
    result = '{"status": "interrupted", "exit_code": 130}'
    fake("scancel", f"echo $* >> {tmp_path}/cancelled; touch {tmp_path}/over; echo '{result}' > {requeued}/run.json")
    assert stop.main(["one", "--now"]) == 0
    signalled = "--batch --signal=INT 7\n"
    assert (tmp_path / "cancelled").read_text() == f"{signalled}{signalled}7\n"


def test_a_job_that_continues_with_other_work_does_not_hold_a_run(requeued, fake):
    """As a script of one's own that trains several runs in one job."""
    fake("squeue", "echo '7|RUNNING|None|N/A|/home/me/run.sh'")
    ended(requeued, process={"slurm_job": "7"}, cluster={"topology": "slurm"})
    remove.main(["one", "--yes"])


def test_a_job_that_waits_or_has_ended_before_the_run_began_is_cancelled(fake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "one"
    run.mkdir()
    run_folder.record_submission(run, cluster="slurm", job={"slurm_job": "12"})
    fake("scancel", "echo 'Invalid job id specified' >&2; exit 1")
    fake("scontrol", "echo 'JobState=CONFIGURING'")
    assert stop.main(["one"]) == 1
    assert "job 12 cannot be cancelled: Invalid job id specified" in capsys.readouterr().out
    fake("scontrol", "echo 'JobState=FAILED ExitCode=3:0'")
    assert stop.main(["one"]) == 0
    assert run_state.look(run).status == "not run"
    with pytest.raises(PsrunError, match="has the status not run"):
        watch.main(["one", "--wait", "60"])
    run_folder.record_submission(run, cluster="slurm", job={"slurm_job": "13"})
    fake("scancel", f"echo $* > {tmp_path}/cancelled")
    assert stop.main(["one", "--now"]) == 0
    assert (tmp_path / "cancelled").read_text() == "13\n"
    (run / "run.json").write_text("{")  # it has begun, and was damaged
    assert run_state.look(run).status == "unknown"
    remove.main(["one", "--yes"])


def test_a_job_knows_nothing_of_the_one_that_it_was_submitted_from(fake, tmp_path, monkeypatch):
    """As from a shell that salloc or srun --pty has started."""
    fake("sbatch", f"env > {tmp_path}/environment; echo 12")
    client = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_TIME_FORMAT": "relative", "SBATCH_QOS": "low"}
    inner = {"SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "quiet", "SLURM_MEM_PER_NODE": "1", "SLURM_RESTART_COUNT": "1"}

    def environment() -> set[str]:
        assert commands.submit(tmp_path / "slurm.sh") == "12"
        lines = (tmp_path / "environment").read_text().splitlines()
        return {line.partition("=")[0] for line in lines} & {*client, *inner}

    for name, value in client.items():
        monkeypatch.setenv(name, value)
    assert environment() == set(client)
    for name, value in inner.items():
        monkeypatch.setenv(name, value)
    assert environment() == {"SLURM_CONF", "SBATCH_QOS"}


@pytest.mark.usefixtures("soon")
def test_a_job_that_has_gone_without_a_run(fake, tmp_path):
    fake("scontrol", "echo 'JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0'")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "slurm.log").write_text("\n".join(map(str, range(9))))
    following = batch_job.FollowedJob(tmp_path, "7", Console(file=io.StringIO()), None)
    with pytest.raises(PsrunError) as raised:
        following.follow()
    first, *lines = str(raised.value).splitlines()
    assert "before the run started: FAILED, exit code 3:0 (log: " in first
    assert run_state.look(tmp_path).status == "not run"
    assert lines == ["4", "5", "6", "7", "8"]


@pytest.fixture
def soon(monkeypatch):
    """Slurm is polled more often."""
    monkeypatch.setattr(batch_job, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(batch_job, "_REQUEUED_WITHIN_S", 0.5)


def ended(folder: Path, **values: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"status": "completed", "exit_code": 0, **values}))


@pytest.mark.usefixtures("soon")
def test_an_evaluation_is_followed_where_it_is_written(fake, tmp_path, submitted):
    ended(tmp_path / "run", overrides=["cluster=local", "model=dense"])
    before = (tmp_path / "run" / "run.json").read_bytes()
    result = '{"status": "completed", "exit_code": 0}'
    fake("sbatch", f"echo 12; echo '{result}' > run/evaluations/cluster/run.json")
    fake("scontrol", "echo 'JobState=COMPLETED ExitCode=0:0'")
    submitted("resume=run", "mode=evaluate")
    text = (tmp_path / "run" / "evaluations" / "cluster" / "slurm.sh").read_text()
    assert f"--output={tmp_path}/run/evaluations/cluster/logs/slurm.log" in text
    assert "--job-name=psrun-run\n" in text
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert not (tmp_path / "run" / "slurm.sh").exists()


@pytest.mark.usefixtures("soon")
def test_a_run_that_was_restored_did_not_continue(fake, tmp_path):
    """As a configuration does that the checkpoint does not fit: run.json is then as it was before the job."""
    ended(tmp_path, status="interrupted", exit_code=175)
    before = (tmp_path / "run.json").read_bytes()
    ended(tmp_path, status="running")
    fake("scontrol", "echo 'JobState=FAILED ExitCode=2:0'")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "slurm.log").write_text("psrun: model.units does not fit\n")
    following = batch_job.FollowedJob(tmp_path, "7", Console(file=io.StringIO()), before)
    (tmp_path / "before").write_bytes(before)
    put_back = threading.Timer(1.0, lambda: (tmp_path / "before").rename(tmp_path / "run.json"))
    put_back.start()
    with pytest.raises(PsrunError, match=r"(?s)without starting the run: FAILED, exit code 2:0 .*does not fit"):
        following.follow()
    put_back.join()


@pytest.mark.usefixtures("soon")
def test_slurm_may_be_silent_for_a_while(fake, tmp_path, monkeypatch):
    message = io.StringIO()
    ended(tmp_path)
    fake(
        "scontrol",
        f"cd {tmp_path}; echo x >> asked; if [ $(wc -l < asked) -lt 4 ]; then echo 'Socket timed out' >&2; exit 1; fi; "
        "echo 'JobState=COMPLETED ExitCode=0:0'",
    )
    assert batch_job.FollowedJob(tmp_path, "7", Console(file=message, width=200), None).follow() == ExitCode.DONE
    assert message.getvalue().count("did not report the state of job 7: Socket timed out") == 1
    monkeypatch.setattr(batch_job, "_SLURM_SILENT_S", 0.2)
    fake("scontrol", "echo 'Socket timed out' >&2; exit 1")
    with pytest.raises(ClusterError, match=f"Socket timed out; the job may continue: psrun watch {tmp_path}"):
        batch_job.FollowedJob(tmp_path, "7", Console(file=message), None).follow()


# -- steps


def test_a_process_that_another_one_replaces_ends(tmp_path, monkeypatch):
    assert task_files.is_replaced(tmp_path, "ps-0", "slurm-7.0")
    task_files.claim(tmp_path, "ps-0", "slurm-7.0")
    assert not task_files.is_replaced(tmp_path, "ps-0", "slurm-7.0")
    task_files.claim(tmp_path, "ps-0", "slurm-7.1")
    assert task_files.is_replaced(tmp_path, "ps-0", "slurm-7.0")
    nothing = iter([([], [], [])] * 3)
    monkeypatch.setattr(task_step, "select", SimpleNamespace(select=lambda *_: next(nothing)))
    monkeypatch.setattr(task_step, "_LOOK_EVERY_S", -1.0)
    task_step.TaskStep(Task("ps", 0), tmp_path, "slurm-7.0").serve()  # ends


def test_the_address_of_an_interface():
    assert task_step.host_of("lo") == "127.0.0.1"
    with pytest.raises(ValueError, match=r"is 'ib9'; node .* has .*lo"):
        task_step.host_of("ib9")


@pytest.mark.parametrize(("job", "gpus_of_it"), [("worker", "0,1"), ("ps", "-1")])
def test_a_task_has_the_gpus_that_the_engine_gives_it(monkeypatch, tmp_path, job, gpus_of_it):
    """As many as there are, however many other workers the run has elsewhere."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    addresses = {Task(name, index): f"h:{index}" for name in ("worker", "ps") for index in range(4)}
    environments: list[str] = []
    task = Task(job, 3)
    started = TaskProcess(task, addresses, tmp_path, lambda folder, environment, log: environments.append(environment),
                          shares_gpus_with=[])  # fmt: skip
    started.start()
    assert environments[0]["CUDA_VISIBLE_DEVICES"] == gpus_of_it


def test_a_resumed_run_that_was_removed_does_not_begin_again(tmp_path):
    run = SimpleNamespace(resume=str(tmp_path), mode="train", raw={})
    me = identify(run_config("cluster=slurm"), JOB)
    with pytest.raises(ConfigError, match=r"resume: .* no longer holds a run: it was removed"):
        run_process._folder(run, me, tmp_path)
    assert not (tmp_path / "config.yaml").exists()


# -- what is refused before Slurm is asked, and what Slurm refuses


@pytest.mark.parametrize("time", ["30", "30:15", "2:00:00", "1-12", "1-12:30", "1-12:30:00", "UNLIMITED"])
def test_a_time_limit_of_slurm(time):
    assert f"#SBATCH --time={time}" in rendered(f"slurm.time='{time}'")


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("29:15", 1800), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("1-0:0:1", 86460),
     ("0", 0), ("UNLIMITED", 0)],
)  # fmt: skip
def test_a_time_limit_in_seconds(time, seconds):
    assert choice.limit_s(time) == seconds


def test_a_time_limit_that_leaves_no_time_to_train_is_refused(submitted):
    refused = r"slurm\.time: is 1: 1 min is not longer than slurm\.warn_s=120 s, the time to save before the limit"
    with pytest.raises(ConfigError, match=refused):
        submitted("--dry-run", "slurm.time=1")
    with pytest.raises(ConfigError, match=r"slurm\.time: .* 5 min is not longer than slurm\.warn_s=600 s"):
        submitted("--dry-run", "slurm.warn_s=600", "slurm.time=5")
    for given in (["slurm.time=0"], ["slurm.time=3"], ["slurm.time=1", "slurm.warn_s=30"]):
        assert "#SBATCH --time=" in submitted("--dry-run", *given)


@pytest.mark.usefixtures("soon")
def test_a_time_limit_before_psrun_has_begun_is_named(fake, tmp_path):
    fake("scontrol", "echo 'JobState=FAILED Reason=NonZeroExitCode ExitCode=0:10'")
    following = batch_job.FollowedJob(tmp_path, "7", Console(file=io.StringIO()), None)
    with pytest.raises(PsrunError, match=r"its time limit came too early: set slurm\.time higher"):
        following.follow()


def test_a_completed_run_is_not_submitted_again(tmp_path, submitted):
    folder = run_folder.RunFolder.create(tmp_path / "one", raw=raw_config("cluster=slurm", "trainer.epochs=3"))
    folder.emit("begun", started_s=0.0, overrides=["cluster=slurm", "trainer.epochs=3"])
    folder.emit("epoch", step=40, epoch=3, epochs=3, metrics={"loss": 0.5})
    folder.emit("ended", status="completed", exit_code=0, wall_s=3.0)
    more = r"resume: the run was complete after epoch 3; .*: psrun submit slurm resume=one trainer\.epochs=6"
    with pytest.raises(ConfigError, match=more):
        submitted("resume=one")
    with pytest.raises(ConfigError, match=more):
        submitted("--dry-run", "resume=one")
    assert "trainer.epochs=6" in submitted("--dry-run", "resume=one", "trainer.epochs=6")


def test_values_that_sbatch_would_refuse_are_refused_with_their_forms(submitted):
    with pytest.raises(ConfigError) as raised:
        submitted("--dry-run", "slurm.time=2h", "slurm.nodes=0")
    messages = {problem.key: problem.message for problem in raised.value.problems}
    assert messages["slurm.nodes"] == "is 0, must be 1 or more"
    with pytest.raises(ConfigError, match=r"slurm\.time: is '2h'; write minutes \(90\), MM:SS, HH:MM:SS"):
        submitted("--dry-run", "slurm.time=2h")


def test_a_rejected_job_leaves_no_folder(fake, tmp_path, submitted):
    fake("sbatch", "echo 'invalid partition specified: gpu' >&2; exit 1")
    fake("scontrol", "exit 1")
    with pytest.raises(ClusterError, match="Slurm rejected the job: invalid partition"):
        submitted("hydra.run.dir=new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with pytest.raises(ClusterError, match="Slurm rejected the job"):
        submitted("hydra.run.dir=old")
    assert (tmp_path / "old" / "slurm.sh").exists()
    fake("squeue", f"echo '7|PENDING|None|N/A|{tmp_path}/lost/slurm.sh'")  # sbatch did not get the answer
    fake("sbatch", f"echo 'Socket timed out' >&2; touch {tmp_path}/asked; exit 1")
    fake("squeue", f"test ! -e {tmp_path}/asked || echo '7|PENDING|None|N/A|{tmp_path}/lost/slurm.sh'")
    with pytest.raises(ClusterError, match="Socket timed out"):
        submitted("hydra.run.dir=lost")
    assert (tmp_path / "lost" / "slurm.sh").exists()
    assert run_state.look(tmp_path / "lost").status == "pending"
    with pytest.raises(ConfigError, match="waits for its Slurm job; psrun stop cancels it"):
        remove.main(["lost", "--yes"])
    fake("squeue", "exit 0")
    assert stop.main(["lost"]) == 0
    remove.main(["lost", "--yes"])


@pytest.mark.parametrize(
    "answer",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: fatal: Could not establish a configuration source",
        "sbatch: fatal: Unable to process configuration file",
    ],
)
def test_a_job_that_was_not_sent_leaves_no_folder(answer, fake, tmp_path, submitted):
    for name in ("sbatch", "scontrol", "squeue"):
        fake(name, f"echo '{answer}' >&2; exit 1")
    with pytest.raises(ClusterError, match=r"Slurm cannot be reached: sbatch: .*; nothing was submitted"):
        submitted("hydra.run.dir=new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--dryrun", r"submit has no option --dryrun; did you mean --dry-run\?"),
        ("--partition=main", r"no option --partition=main; use slurm\.partition=main"),
        ("--constraint=ib", r"\"slurm\.options=\['--constraint=ib'\]\""),
        ("seed=1,2", r"seed: has several values, 1,2; to sweep over them: psrun -m hydra/launcher=submitit_slurm"),
        ("slurm.options=[--mem=2G,--no-kill]", r"quote each of them: \"slurm\.options=\['--mem=2G','--no-kill'\]\""),
    ],
)
def test_what_belongs_elsewhere_is_named(given, message, submitted):
    with pytest.raises(ConfigError, match=message):
        submitted("--dry-run", given)


def test_a_forgotten_engine_is_named():
    with pytest.raises(ConfigError, match=r"needs an engine, .*: write psrun submit slurm model=dense --dry-run$"):
        submit.main(["model=dense", "--dry-run"])


def test_the_command_for_slurm_has_no_quotes_without_need(monkeypatch):
    monkeypatch.setattr("sys.argv", ["psrun", "resume='runs/one'", "cluster=slurm"])
    with pytest.raises(ConfigError, match=r"use psrun submit slurm resume=runs/one$"):
        allocation.job_of(run_config("cluster=slurm"), {})


def test_a_run_that_ended_before_its_chief_recorded_the_cluster_resumes_on_slurm(tmp_path):
    ended(tmp_path, status="interrupted", exit_code=130)
    run_folder.record_submission(tmp_path, cluster="slurm", job={"slurm_job": "12"})
    assert run_state.resume_command(tmp_path) == f"psrun submit slurm resume={tmp_path}"


def test_a_run_that_is_resumed_outside_of_slurm_has_its_command(monkeypatch):
    command = r"use psrun submit slurm resume=runs/one trainer\.epochs=3$"
    for arguments in (["resume", "runs/one", "trainer.epochs=3"], ["resume=runs/one", "trainer.epochs=3"]):
        monkeypatch.setattr("sys.argv", ["psrun", *arguments, "cluster=slurm"])
        with pytest.raises(ConfigError, match=command):
            allocation.job_of(run_config("cluster=slurm"), {})


@pytest.mark.usefixtures("soon")
def test_a_job_that_waits_shows_what_it_asks_for(fake, tmp_path):
    fake("scontrol", "echo 'JobState=PENDING Reason=PartitionConfig'")
    run = run_config("cluster=slurm", "slurm.nodes=9", "slurm.memory_per_cpu=4G", "slurm.cpus_per_task=2")
    console = Console(file=io.StringIO(), width=200)
    following = batch_job.FollowedJob(tmp_path, "7", console, None, asked=batch_job._asked(run))
    following._look()
    text = "job 7 pending (PartitionConfig); it asks for 5 tasks of 2 cores, 4G for each core, on 9 nodes"
    assert text in console.file.getvalue()


@pytest.mark.usefixtures("soon")
def test_a_requeued_job_shows_until_when_it_waits(fake, tmp_path):
    fake("scontrol", "echo 'JobState=PENDING Reason=BeginTime StartTime=2026-11-29T18:19:32'")
    console = Console(file=io.StringIO(), width=200)
    following = batch_job.FollowedJob(tmp_path, "7", console, None, asked="5 tasks")
    following._look()
    assert console.file.getvalue() == "job 7 pending (BeginTime) until 2026-11-29T18:19:32\n"


def test_a_run_that_waits_to_start_again_shows_no_tasks(tmp_path):
    ended(tmp_path, status="interrupted", exit_code=175)
    shown: list[bool] = []

    def continues(run: object) -> bool:
        shown.append(view._sink._live is not None)
        return len(shown) < 2

    view = RunView(tmp_path, Console(file=io.StringIO(), force_terminal=True), wait_s=1.0, continues=continues)
    view._sink.view(Text("ps-0 serving"))
    assert view.follow() == ExitCode.RESTART
    assert shown == [True, False]


# -- the jobs of a sweep by submitit


@pytest.fixture
def sweep(fake, tmp_path, monkeypatch):
    """An interrupted sweep by submitit; its job 0 is recorded as running on node n9, and last wrote long ago."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(tmp_path / "runs" / "sweep", ["-m", "seed=1,2"], host="n8")
    sweep.path.mkdir(parents=True)
    sweep.jobs = {0: Job(0, ["seed=1"], "0"), 1: Job(1, ["seed=2"], "1")}
    sweep.status = "interrupted"
    sweep.started_s = 1.0
    sweep.write()
    (sweep.path / ".submitit").mkdir()
    process = {"host": "n9", "pid": 1, "pid_namespace": 1}
    ended(sweep.path / "0", status="running", exit_code=None, process=process, overrides=["seed=1"])
    os.utime(sweep.path / "0" / "run.json", (1e9, 1e9))
    fake("squeue", "exit 0")
    return sweep


def test_a_job_of_a_sweep_that_slurm_lost_is_gone(sweep, fake):
    def listed() -> str:
        (found,) = entries.below(Path("runs")).sweeps
        return found.jobs[0].row["status"]

    assert listed() == "gone"
    assert watch.main(["runs/sweep"]) == ExitCode.FAILED
    script = sweep.path / ".submitit" / "submission_file_1.sh"
    fake("squeue", f"echo '12_0|RUNNING|None|N/A|{script}'")
    assert listed() == "running"


def test_the_jobs_of_a_killed_sweep_are_gone_with_those_of_slurm(sweep, fake, capsys):
    """The command of the sweep was killed, and psrun stop has cancelled its jobs: one runs, one has only a log."""
    sweep.status, sweep.host = "running", socket.gethostname()
    sweep.write()
    (sweep.path / "1" / "logs").mkdir(parents=True)
    (sweep.path / "1" / "logs" / f"{LOG}.log").write_text("")
    os.utime(sweep.path / "1", (1e9, 1e9))
    (found,) = entries.below(Path("runs")).sweeps
    assert found.row["status"] == "gone"
    assert found.row["jobs"] == {"gone": 1, "waiting": 1}
    assert stop.main(["runs/sweep/0"]) == 0
    assert "gone: its Slurm job has left the queue; there is nothing to stop" in capsys.readouterr().out
    remove.main(["sweep", "--yes", "--dry-run"])
    script = sweep.path / ".submitit" / "submission_file_1.sh"
    fake("squeue", f"echo '12_0|RUNNING|None|N/A|{script}'")
    (found,) = entries.below(Path("runs")).sweeps
    assert found.row["jobs"] == {"running": 1, "starting": 1}


def test_jobs_that_outlive_the_process_of_their_sweep_are_stopped(sweep, fake, tmp_path):
    script = sweep.path / ".submitit" / "submission_file_1.sh"
    queue = tmp_path / "queue"
    queue.write_text(f"12_0|RUNNING|None|N/A|{script}\n12_1|PENDING|JobArrayTaskLimit|N/A|{script}\n")
    fake("squeue", f"cat {queue}")
    fake("scancel", f"echo $* >> {tmp_path}/cancelled; sed -i /^$1/d {queue}")
    assert stop.main(["sweep"]) == 0
    assert (tmp_path / "cancelled").read_text() == "12_1\n12_0\n"


def test_an_interrupted_sweep_cancels_its_waiting_jobs(sweep, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_WITHIN_S", 0.2)
    script = sweep.path / ".submitit" / "submission_file_1.sh"
    queue = tmp_path / "queue"
    queue.write_text(f"12_0|RUNNING|None|N/A|{script}\n12_1|PENDING|JobArrayTaskLimit|N/A|{script}\n")
    fake("squeue", f"cat {queue}")
    fake("scancel", f"echo $* >> {tmp_path}/cancelled; sed -i /^$1/d {queue}")
    shown: list[str] = []
    handler = runner.SignalHandler(sweep, shown.append)
    with pytest.raises(runner.SweepSignal):
        handler._handle(15, None)
    assert (tmp_path / "cancelled").read_text() == "12_1\n"
    assert shown[-1].startswith("Slurm still has jobs of the sweep; to cancel them: scancel 12_0")


def test_a_sweep_that_slurm_does_not_take_ends_with_one_line(fake, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install -e '.[submitit]'")
    fake("srun", "exit 0")
    fake("sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    arguments = [
        "-m",
        "hydra/launcher=submitit_slurm",
        "hydra.sweep.dir=sweep",
        "cluster=none",
        "model=dense",
        "seed=1,2",
    ]
    command = [sys.executable, "-m", "psrun", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Slurm did not take the jobs of the sweep: Unable to contact slurm controller" in done.stderr


def test_submitit_says_once_that_slurm_keeps_no_accounts(caplog):
    warnings: list[str] = []
    logger = logging.getLogger("test of submitit")
    logger.addFilter(hydra_sweeps._NoAccounting(warnings.append))
    for call in range(3):
        logger.warning("Call #%d - Bypassing sacct error Command returned non-zero", call)
    logger.warning("another one")
    assert len(warnings) == 1
    assert caplog.messages == ["another one"]
