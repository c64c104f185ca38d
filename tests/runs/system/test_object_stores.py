"""Runs at URLs of a real server of the S3 protocol, which fails, is slow and loses connections; kills at any moment."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from bounds import BOUND_S
from object_stores import BUCKET, served
from stored_runs import Interfered, Stopped, epochs, go_on, half_checkpoints, lacks
from support import MANY_STEPS, environment

from psrun.checkpoint.storage import Store
from psrun.runs.stores.mirror import Mirror, fetch
from psrun.runs.stores.remote import Remote

pytestmark = pytest.mark.thorough
for _name in ("s3fs", "moto", "flask"):
    pytest.importorskip(_name)

NUM_KILLS = 50
TASKS = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}
SHORT = [
    "model=embedding", "data.num_train_examples=500", "data.num_eval_examples=100", "data.global_batch_size=32",
    "trainer.steps_per_epoch=12", "trainer.steps_per_execution=3", "evaluation=none",
]  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with served() as found:
        yield found


@pytest.fixture
def proxy(server):
    proxy = server[0]
    yield proxy
    proxy.share = 0.0
    proxy.is_down = False


@pytest.fixture
def url(request):
    return f"s3://{BUCKET}/runs/{request.node.name[:20]}"


@pytest.fixture
def psrun(server, tmp_path):
    """Starts psrun on a machine of this name."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, machine: str = "one", **more: str) -> subprocess.Popen[str]:
        here = tmp_path / machine
        here.mkdir(exist_ok=True)
        variables = environment(**{**server[1], "XDG_CACHE_HOME": str(here / "cache"), **more})
        process = subprocess.Popen(
            [sys.executable, "-m", "psrun", *arguments],
            cwd=here, env={name: value for name, value in variables.items() if value}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def done(psrun):
    """Runs psrun to its end; returns its exit code and what it prints."""

    def run(*arguments: str, **more: str) -> tuple[int, str]:
        process = psrun(*arguments, **more)
        text = "".join(process.communicate(timeout=BOUND_S))
        return process.returncode, text

    return run


@pytest.fixture
def there(server, monkeypatch):
    """Reads the objects of a run."""
    for name, value in server[1].items():
        monkeypatch.setenv(name, value)

    def read(url: str) -> dict[str, bytes]:
        remote = Remote(url)
        return {name: remote._fs.cat_file(f"{remote._root}/{name}") for name in remote.sizes()}

    return read


def wait_until(condition, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_a_run_survives_kills_at_random_moments(server, there, url, tmp_path):
    """One run on many machines, each of which resumes from the store and is killed while it mirrors."""
    remote = Remote(url)
    context = multiprocessing.get_context("forkserver")  # its children have no file system of this process
    context.set_forkserver_preload(["stored_runs", "psrun.runs.stores.mirror", "s3fs"])
    moments = random.Random(1)
    in_store = 0
    num_torn = 0
    for number in range(NUM_KILLS):
        ours, theirs = context.Pipe(duplex=False)
        machine = context.Process(target=go_on, args=(url, tmp_path / str(number), theirs))
        machine.start()
        theirs.close()
        assert ours.poll(BOUND_S)
        ours.recv()
        time.sleep(moments.uniform(0.0, 0.6))
        machine.kill()
        machine.join()
        while ours.poll():
            try:
                in_store = max(in_store, ours.recv())
            except EOFError:
                break
        ours.close()
        objects = {name: remote._fs.cat_file(f"{remote._root}/{name}") for name in remote.sizes()}
        assert half_checkpoints(objects) == []
        assert lacks(objects) == []
        listed = {name for text in objects if text.endswith(".manifest.json")
                  for name in json.loads(objects[text])["files"]}  # fmt: skip
        num_torn += any(name.startswith("checkpoints/ckpt-") and not name.endswith(".manifest.json")
                        and Path(name).name not in listed for name in objects)  # fmt: skip
        said: list[str] = []
        if objects:
            fetch(remote, tmp_path / f"read{number}", {*objects}, said.append)
        newest = Store(tmp_path / f"read{number}" / "checkpoints").choose("latest", said.append)
        step = newest.step if newest else 0
        assert said == []
        assert step >= in_store
        if step:  # an epoch after the newest checkpoint is done again
            assert {*epochs(tmp_path / f"read{number}")} >= {*range(1, step // 10 + 1)}
    assert num_torn > 0
    assert in_store > 50


@pytest.mark.command
def test_a_training_whose_machine_is_lost_goes_on_elsewhere(proxy, psrun, done, there, url):
    """The store fails, is slow and cuts connections all the while."""
    proxy.share = 0.1
    first = psrun(f"hydra.run.dir={url}", *SHORT, f"trainer.epochs={MANY_STEPS // 12}", "cluster.slow_workers={0: 0.1}")
    wait_until(lambda: any(name.endswith(".manifest.json") for name in there(url)), first)
    first.kill()
    first.wait()
    saved = max(json.loads(text)["step"] for name, text in there(url).items() if name.endswith(".manifest.json"))
    code, text = done("resume", url, f"trainer.epochs={saved // 12 + 2}", "cluster.slow_workers={}", machine="two")
    assert code == 0, text
    assert f"{url} has no end of its last run" in text
    assert f"resumed from step {saved}" in text
    objects = there(url)
    assert half_checkpoints(objects) == []
    assert json.loads(objects["run.json"])["status"] == "completed"
    assert json.loads(objects["run.json"])["steps"]["applied"] == saved + 24
    assert proxy.num_wrong > 0
    code, text = done("list", url.rpartition("/")[0], "--json", machine="three")
    assert {row["folder"]: row["status"] for row in json.loads(text)}[url] == "completed"
    code, text = done("checkpoint", "verify", url, machine="three")
    assert (code, text.count("good")) == (0, 3)


@pytest.mark.command
def test_a_run_whose_machine_is_lost_in_the_first_upload_goes_on(done, there, url, tmp_path):
    code, text = done("hydra.run.dir=run", *SHORT, "trainer.epochs=1")
    assert code == 0, text
    (tmp_path / "one" / "run" / "run.json").unlink()  # as of a run that goes on
    remote = Remote(url)
    system = remote._fs
    at = 0
    while not any(name.endswith(".manifest.json") for name in there(url)):
        at += 1
        remote._fs = Interfered(system, at, Stopped())
        with pytest.raises(Stopped):
            Mirror(remote, tmp_path / "one" / "run", {*there(url)}, is_equal=False).update()
    code, text = done("resume", url, "trainer.epochs=2", machine="two")
    assert code == 0, text
    assert "resumed from step 12" in text
    assert json.loads(there(url)["run.json"])["steps"]["applied"] == 24


@pytest.mark.command
def test_an_export_of_a_checkpoint_at_a_url_is_the_one_from_disk(done, there, url, tmp_path):
    rows = [f"{number % 7},word{number % 40},{number % 2}" for number in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["number,word,label", *rows]))
    code, text = done(
        "hydra.run.dir=run", "data=table", f"data.path={tmp_path / 'rows.csv'}", "data.label=label", "trainer.epochs=1"
    )
    assert code == 0, text
    run = tmp_path / "one" / "run"
    assert [*run.glob("checkpoints/vocabularies/*")]
    (run / "vocabularies").mkdir(exist_ok=True)  # of more words than these
    (run / "vocabularies" / "word.txt").write_text("word")
    Mirror(Remote(url), run, {*there(url)}, is_equal=False).update()
    exported = []
    for source, to in ((run, tmp_path / "a"), (url, tmp_path / "b")):
        code, text = done("checkpoint", "export", str(source), "--to", str(to))
        assert code == 0, text
        files = [path for path in to.rglob("*") if path.is_file()]
        exported.append({path.relative_to(to).as_posix(): path.read_bytes() for path in files})
    assert exported[0] == exported[1]


@pytest.mark.command
def test_a_run_that_is_preempted_saves_to_the_store(psrun, done, there, url):
    first = psrun(f"hydra.run.dir={url}", *SHORT, f"trainer.epochs={MANY_STEPS // 12}", "cluster.slow_workers={0: 0.1}")
    wait_until(lambda: any(name.endswith(".manifest.json") for name in there(url)), first)
    code, text = done("resume", url, machine="two")  # meanwhile
    assert code == 2
    assert f"resume: {url} is in use: process {first.pid} on " in text
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=BOUND_S)
    assert first.returncode == 175, err
    assert f"to resume: psrun resume {url}\npsrun: all of the run is at {url}\n" in err
    result = json.loads(there(url)["run.json"])
    assert result["status"] == "interrupted"
    code, text = done("resume", url, "mode=evaluate", "evaluation=direct", machine="two")
    assert code == 0, text
    assert "has no end" not in text
    assert any(name.startswith("evaluations/") for name in there(url))


@pytest.mark.command
def test_a_run_that_ends_while_the_store_is_down_is_uploaded_later(proxy, psrun, done, there, url, tmp_path):
    first = psrun(f"hydra.run.dir={url}", *SHORT, "trainer.epochs=2", "cluster.slow_workers={0: 0.1}")
    wait_until(lambda: any((tmp_path / "one").rglob("run.json")), first)
    proxy.is_down = True
    here = next((tmp_path / "one").rglob("run.json"))
    wait_until(lambda: json.loads(here.read_text())["status"] == "completed", first)
    num_wrong = proxy.num_wrong
    wait_until(lambda: proxy.num_wrong > num_wrong, first)
    wait_until(lambda: not psutil.Process(first.pid).children(), first)  # the process of the run has ended, too
    first.send_signal(signal.SIGINT)  # of somebody who does not wait for the store
    out, err = first.communicate(timeout=BOUND_S)
    assert "completed 24 steps" in out
    assert first.returncode == 175, err
    assert f"the end of the run is not at {url} (" in err
    assert f"on this machine, psrun resume {url} uploads it" in err
    proxy.is_down = False
    assert there(url).get("run.json") is None
    code, text = done("resume", url)
    assert code == 0, text
    assert json.loads(there(url)["run.json"])["status"] == "completed"
    assert half_checkpoints(there(url)) == []


@pytest.mark.command
@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        (["hydra.run.dir=s3://nowhere/run"], {}, "hydra.run.dir: s3://nowhere/run cannot be used: The specified bu"),
        (
            [f"hydra.run.dir=s3://{BUCKET}/x"],
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            f"hydra.run.dir: s3://{BUCKET}/x cannot be used: Unable to locate credentials",
        ),
        (["hydra.run.dir=nope://a/b"], {}, "hydra.run.dir: nope:// is unknown to fsspec, or its package"),
        (["resume", f"s3://{BUCKET}/nothing"], {}, f"resume: there is no run at s3://{BUCKET}/nothing"),
        (["list", f"s3://{BUCKET}/nothing"], {}, f"there is no run at s3://{BUCKET}/nothing or below it"),
        (["list", "s3://nowhere/runs"], {}, "s3://nowhere/runs cannot be used: The specified bucket does not exist"),
        (
            [f"hydra.run.dir=s3://{BUCKET}/x", "cluster=tf_config"],
            {"TF_CONFIG": json.dumps({"cluster": TASKS, "task": {"type": "chief", "index": 0}})},
            "cluster: is tf_config, whose tasks need one folder on a disk that all of them share, not a URL",
        ),
        (["-m", "seed=1,2", f"hydra.sweep.dir=s3://{BUCKET}/x"], {}, "hydra.sweep.dir: is 's3://bucket/x', must be"),
        (["-m", "seed=1,2", f"hydra.run.dir=s3://{BUCKET}/x"], {}, "hydra.run.dir: is 's3://bucket/x', must be"),
        (["resume", "-m", f"s3://{BUCKET}/x"], {}, "resume: is 's3://bucket/x', must be a path on a mounted disk"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(done, there, arguments, variables, text):
    code, said = done(*arguments, **variables)
    assert code == 2
    assert said.startswith(f"psrun: {text}")
    assert len(said.splitlines()) == 1
    assert there(f"s3://{BUCKET}/x") == {}
