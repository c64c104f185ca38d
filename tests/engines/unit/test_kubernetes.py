"""What is handed to Kubernetes: valid by its own schemas, right about exit codes and names; bad input is named."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from kubernetes_manifests import GIVEN, KINDS, manifests, pods, submitted
from recorded_runs import a_run
from rich.console import Console
from support import REPOSITORY, raw_config, run_config

from psrun.config import choices, parse
from psrun.config.topology import Task
from psrun.engines import submit
from psrun.engines.kubernetes import kubectl, recorded_run
from psrun.engines.kubernetes import manifests as rendered
from psrun.engines.kubernetes.submission import quantity
from psrun.errors import ExitCode, PsrunError
from psrun.roles import task_assignment
from psrun.runs import logs

EVERYTHING = ("cluster.num_workers=3", "evaluation=sidecar", "data.visitation=dynamic")


@pytest.fixture(scope="module", params=KINDS)
def objects(request, tmp_path_factory):
    kind = request.param
    return kind, manifests(tmp_path_factory.mktemp(kind), f"kubernetes.kind={kind}", *EVERYTHING)


def of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


def job_templates(objects):
    """The Jobs among the objects, also those that a JobSet is to make."""
    inner = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"]}, **each["template"]}
        for jobset in of_kind(objects, "JobSet")
        for each in jobset["spec"]["replicatedJobs"]
    ]
    return [*of_kind(objects, "Job"), *inner]


@pytest.mark.thorough
def test_the_schemas_of_kubernetes_hold(objects):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[ci]'")
    _, resources = objects
    known = [each for each in resources if each["kind"] != "JobSet"]
    checked = [*known, *job_templates(resources)]
    assert len(checked) >= 5
    for version, each in itertools.product(("1.31.0", validate.latest_version()), checked):
        validate.validate(each, version, strict=True)


@pytest.mark.thorough
def test_the_schema_of_jobset_holds(tmp_path):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -e '.[ci]'")
    (jobset,) = of_kind(manifests(tmp_path, *EVERYTHING), "JobSet")
    # A key that the schema does not know would be missing from what comes back.
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    jobset["spec"]["failurePolicy"]["maxRestart"] = 1
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() != jobset


@pytest.mark.thorough
def test_kubectl_reads_what_is_shown(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl: apt-get install kubernetes-client")
    for kind in KINDS:
        text = submitted(tmp_path, "--dry-run", *GIVEN, f"kubernetes.kind={kind}").stdout
        assert read_by_kubectl(text).count("seen: ") == text.count("\nkind: ")


def read_by_kubectl(manifest: str) -> str:
    command = ["kubectl", "label", "--local", "--filename", "-", "seen=yes", "--output", "yaml"]
    none = {**os.environ, "KUBECONFIG": os.devnull}
    done = subprocess.run(command, input=manifest, capture_output=True, text=True, timeout=60, check=False, env=none)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_task_is_a_pod_and_finds_itself(objects):
    _, resources = objects
    task_pods = pods(resources)
    counted = {job: sum(pod.job == job for pod in task_pods) for job in {pod.job for pod in task_pods}}
    assert counted == {"chief": 1, "ps": 2, "worker": 3, "evaluator": 1, "data_dispatcher": 1, "data_worker": 1}
    for pod in task_pods:
        arguments = [each for each in pod.container["args"] if not each.startswith("hydra.run.dir=")]
        run = parse.load(raw_config(*arguments))
        me = task_assignment.identify(run, pod.environment)
        assert me.topology.me == Task(pod.job, pod.index)
        listed = {f"{each.host}:2222": Task(each.job, each.index) for each in task_pods if each.job != "evaluator"}
        assert {where: task for task, where in me.topology.addresses.items()} == listed


def test_a_pod_may_do_nothing_that_it_need_not_and_is_probed_if_it_serves(objects):
    _, resources = objects
    for job in job_templates(resources):
        template = job["spec"]["template"]
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        allowed = container["securityContext"]
        assert allowed == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
        }  # fmt: skip
        assert set(container["resources"]) == {"requests", "limits"}
        serves = template["metadata"]["labels"]["app.kubernetes.io/component"] not in ("chief", "evaluator")
        assert ("livenessProbe" in container, "startupProbe" in container) == (serves, serves)
    (policy,) = of_kind(resources, "NetworkPolicy")
    ours = {"matchLabels": {"app.kubernetes.io/instance": "run-1"}}
    assert policy["spec"] == {
        "podSelector": ours, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": ours}]}]
    }  # fmt: skip


def test_exit_codes_mean_what_psrun_means(objects):
    kind, resources = objects
    for job in job_templates(resources):
        rules = job["spec"]["podFailurePolicy"]["rules"]
        codes = next(rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob")
        assert codes == sorted(codes)
        for code in ExitCode:
            assert (code in codes) == (0 < code < 128)
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # the API takes the policy with no other
    if kind == "jobset":
        (jobset,) = of_kind(resources, "JobSet")
        assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}
        assert jobset["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"


def test_arguments_arrive_in_the_pods_as_they_were_given(tmp_path):
    """Also where a shell or Kubernetes would replace something, with any resource, and with YAML files of one's own."""
    (tmp_path / "myconf" / "model").mkdir(parents=True)
    text = (REPOSITORY / "conf" / "model" / "dense.yaml").read_text()
    (tmp_path / "myconf" / "model" / "mine.yaml").write_text(text)
    tracker = ["tracker=mlflow", "tracker.mlflow.tracking_uri='$(HOME)/x'", "tracker.mlflow.experiment='a\nkind: b'"]
    limits = "++kubernetes.resources.worker.limits={memory: 8Gi, nvidia.com/gpu: 1}"
    given = ["model=mine", "--config-dir", "myconf", "kubernetes.kind=indexed_jobs", limits, *tracker]
    jobs = {each["metadata"]["name"]: each for each in of_kind(manifests(tmp_path, *given), "Job")}
    (container,) = jobs["run-1-worker"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["--config-dir", "myconf"]
    assert {"tracker.mlflow.tracking_uri='$$(HOME)/x'", tracker[2], limits} <= set(container["args"])
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}


def test_text_that_looks_like_something_else_is_text_to_kubectl_too(tmp_path):
    manifest = submitted(tmp_path, "--dry-run", *GIVEN[:2], "kubernetes.name=y", "kubernetes.namespace='1e3'").stdout
    assert "name: 'y'" in manifest
    assert "namespace: '1e3'" in manifest
    assert "image: example/psrun:1" in manifest
    if shutil.which("kubectl") is not None:
        read_by_kubectl(manifest)


def test_options_that_there_are_not(tmp_path):
    done = submitted(tmp_path, "--dryrun", *GIVEN)
    assert done.returncode == 2
    assert "unrecognized arguments: --dryrun" in done.stderr


def test_what_is_shown_can_be_requested_again(tmp_path):
    first = submitted(tmp_path, "--dry-run", *GIVEN[:2]).stdout
    name = re.search(r"kubernetes\.name=(psrun-[0-9a-f]{4})$", first.splitlines()[0])[1]
    again = submitted(tmp_path, "--dry-run", *GIVEN[:2], f"kubernetes.name={name}").stdout
    assert list(yaml.safe_load_all(first)) == list(yaml.safe_load_all(again))


def test_without_kubectl_the_message_has_the_next_step(tmp_path):
    done = submitted(tmp_path, *GIVEN, PATH=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 1
    assert "there is no kubectl in PATH" in done.stderr
    assert "--dry-run" in done.stderr


def test_files_of_the_image_are_not_looked_for_here():
    raw = raw_config("cluster=kubernetes", "data=criteo", "data.path=/not/here")
    assert isinstance(parse.load(raw, elsewhere=True).submission, choices.KubernetesKeys)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", 2),
        ("500m", 0.5),
        ("1.5Gi", 1.5 * 2**30),
        ("1e3", 1000),
        ("4G", 4e9),
        ("4GB", None),
        ("-1", None),
        ("", None),
    ],
)
def test_quantities(text, amount):
    value = quantity(text)
    assert value == amount if amount is None else float(value) == amount


def pod(state, *, created="2026-01-01T00:00:00Z", name="c", **status):
    statuses = [{"state": state}] if state else []
    return {
        "metadata": {"name": name, "creationTimestamp": created}, "status": {"containerStatuses": statuses, **status}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("items", "seen"),
    [
        ([], None),
        ([pod({"running": {}})], kubectl.Chief("c", running=True)),
        ([pod({"terminated": {"exitCode": 175}})], kubectl.Chief("c", code=175)),
        (
            [pod({"terminated": {"exitCode": 175}}), pod({"running": {}}, created="2026-01-01T00:01:00Z", name="d")],
            kubectl.Chief("d", running=True),
        ),
        (
            [pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})],
            kubectl.Chief("c", waits="ImagePullBackOff: no such image", hopeless=True),
        ),
        (
            [pod({"terminated": {"exitCode": 128, "reason": "StartError", "message": "no python in PATH"}})],
            kubectl.Chief("c", waits="StartError: no python in PATH", hopeless=True),
        ),
        ([pod({"waiting": {"reason": "ContainerCreating"}})], kubectl.Chief("c", waits="ContainerCreating")),
        (
            [pod(None, conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}])],
            kubectl.Chief("c", waits="0/3 nodes are available"),
        ),
        ([pod(None, phase="Failed")], kubectl.Chief("c", code=-1)),
    ],
)
def test_how_the_chief_is(items, seen):
    assert kubectl.newest({"items": items}) == seen


def test_exit_codes_of_containers():
    codes = [0, 1, 2, 130, 175, 137, 127, -1]
    assert [int(kubectl.exit_code(code)) for code in codes] == [0, 1, 2, 130, 175, 175, 1, 175]


class FakeKubectl:
    """Answers as kubectl does, from a list; it shows our loop and nothing of Kubernetes.

    Attributes:
      shown: the pods whose logs were shown.
    """

    def __init__(self, *answers: tuple[list, bool], error: str = "") -> None:
        self._answers = list(answers)
        self._error = error
        self.shown: list[str] = []

    def get(self, *what: str):
        if what[0] == "pods":
            return {"items": self._answers.pop(0)[0] if len(self._answers) > 1 else self._answers[0][0]}
        done = self._answers[0][1]
        return {"status": {"conditions": [{"type": "Failed", "status": "True"}] if done else []}}

    def show_log(self, name: str, since: str | None) -> str:
        self.shown.append(name)
        return self._error


def followed(fake, monkeypatch):
    monkeypatch.setattr(kubectl, "_POLL_S", 0.01)
    settings, out = run_config("cluster=kubernetes", *GIVEN).submission, io.StringIO()
    return kubectl.follow(fake, settings, Console(file=out)), out.getvalue()


RUNNING, ENDED = pod({"running": {}}), pod({"terminated": {"exitCode": 0}})
LOST = pod({"terminated": {"exitCode": 137}})
FIRST, LATER = pod({"terminated": {"exitCode": 175}}, name="a"), "2026-01-01T00:01:00Z"


@pytest.mark.parametrize(
    ("answers", "error", "code", "shown", "text"),
    [
        (
            [
                ([], False),
                ([pod({"waiting": {"reason": "ContainerCreating"}}, name="a")], False),
                ([pod({"running": {}}, name="a")], False),
                ([FIRST], False),
                ([FIRST, pod({"running": {}}, name="b", created=LATER)], False),
                ([FIRST, pod({"terminated": {"exitCode": 0}}, name="b", created=LATER)], False),
            ],
            "", ExitCode.DONE, ["a", "b"], "a exited with code 175; Kubernetes restarts it",
        ),
        (
            [*[([RUNNING], False)] * 3, ([ENDED], True)],
            "forbidden", ExitCode.DONE, None, "the log of c is not available: forbidden",
        ),
        ([([LOST], False), ([LOST], True)], "", ExitCode.RESTART, ["c"], ""),  # the budget of restarts is spent
    ],
)  # fmt: skip
def test_a_run_is_followed_to_its_end(monkeypatch, answers, error, code, shown, text):
    fake = FakeKubectl(*answers, error=error)
    ended, out = followed(fake, monkeypatch)
    assert ended == code
    assert shown is None or fake.shown == shown
    assert not text or out.count(text) == 1


def test_the_log_of_a_pod_is_shown_as_kubectl_prints_it(tmp_path, monkeypatch, capfd):
    script = tmp_path / "kubectl"
    script.write_text('#!/bin/sh\necho "$@"\n[ "$3" = a ] || { echo forbidden >&2; exit 1; }\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert kubectl.Kubectl(None).show_log("a", "2026-01-01T00:00:00+00:00") == ""
    assert capfd.readouterr().out == "logs --follow a --since-time 2026-01-01T00:00:00+00:00\n"
    assert kubectl.Kubectl(None).show_log("b", None) == "forbidden"


@pytest.mark.parametrize("silent", [1, 9])
def test_requests_without_an_answer_are_repeated(monkeypatch, silent):
    asked = []

    def run(command, **how):
        asked.append(command[1:])
        if len(asked) <= silent:
            raise subprocess.TimeoutExpired(command, how["timeout"])
        return subprocess.CompletedProcess(command, 0, '{"items": []}', "")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(kubectl, "_POLL_S", 0.01)
    if silent == 1:
        assert kubectl.Kubectl(None).get("pods") == {"items": []}
        return
    with pytest.raises(PsrunError, match="kubectl get pods exited with code 1, 5 times: no answer within 60 s"):
        kubectl.Kubectl(None).get("pods")


@pytest.mark.parametrize("over", [False, True])
def test_an_existing_run_is_reported(tmp_path, monkeypatch, capsys, over):
    def run(self, verb, *arguments, given=None):
        object_ = {"status": {"conditions": [{"type": "Completed", "status": "True"}] if over else []}}
        output = "networkpolicy.networking.k8s.io/run-1 unchanged\njobset.jobset.x-k8s.io/run-1 unchanged\n"
        return subprocess.CompletedProcess([verb], 0, output if verb == "apply" else json.dumps(object_), "")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(kubectl.Kubectl, "_run", run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    if over:
        with pytest.raises(PsrunError, match="run-1 was submitted before and has ended: delete its objects"):
            submit.main(["kubernetes", "--no-follow", *GIVEN])
        return
    assert submit.main(["kubernetes", "--no-follow", *GIVEN]) == ExitCode.DONE
    assert "run-1 was submitted before and is running" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "hint"),
    [
        ("Unable to connect to the server: dial tcp: no such host", "check `kubectl cluster-info` and KUBECONFIG"),
        ('no matches for kind "JobSet"', "requires the operator of JobSet"),
        ("field is immutable", "delete it, or set another kubernetes.name"),
    ],
)
def test_what_kubectl_refuses_is_reported_with_the_next_move(monkeypatch, told, hint):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    answer = subprocess.CompletedProcess(["kubectl"], 1, "", told)
    monkeypatch.setattr(kubectl.Kubectl, "_run", lambda *_, **__: answer)
    with pytest.raises(PsrunError) as refused:
        kubectl.Kubectl(None).apply("", run_config("cluster=kubernetes", *GIVEN).submission)
    assert told in str(refused.value)
    assert str(refused.value).count(hint) == 1


def test_a_chief_that_cannot_start_is_named(monkeypatch):
    waiting = pod({"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    with pytest.raises(PsrunError, match="the chief cannot start: ErrImagePull: not found"):
        followed(FakeKubectl(([waiting], False)), monkeypatch)
    with pytest.raises(PsrunError, match="run-1 was deleted, or failed"):
        followed(FakeKubectl(([], True)), monkeypatch)


def test_what_the_run_is_over_with():
    names = [
        rendered.main_object(run_config("cluster=kubernetes", *GIVEN, f"kubernetes.kind={kind}").submission)
        for kind in KINDS
    ]
    assert names == ["jobset.jobset.x-k8s.io/run-1", "job.batch/run-1-chief"]


KUBECTL = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in
  *"get pods"*) echo '{"items": [
    {"metadata": {"name": "old", "creationTimestamp": "2026-01-01T00:00:00Z"}},
    {"metadata": {"name": "new", "creationTimestamp": "2026-01-02T00:00:00Z"}}]}' ;;
  *logs*) echo "the log of $*" ;;
esac
"""


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Callable[[], list[str]]:
    """Puts a kubectl into PATH that knows two pods; returns what it was called with."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").write_text(KUBECTL)
    (tmp_path / "bin" / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return lambda: (tmp_path / "calls").read_text().splitlines()


def a_run_in_pods(folder: Path, kind: str) -> Path:
    keys = {**raw_config("cluster=kubernetes")["kubernetes"], "name": "first", "namespace": "team", "kind": kind}
    config = {"cluster": {"kind": "kubernetes"}, "kubernetes": keys}
    return a_run(folder / "run", config=config, status="running", process={"host": "first-chief-0", "pid": 1})


def test_the_log_of_a_pod_that_has_written_none_into_the_run_folder(tmp_path, calls, capsys):
    folder = a_run_in_pods(tmp_path, "indexed_jobs")
    assert logs.main([str(folder), "worker-1"]) == 0
    assert capsys.readouterr().out == "the log of --namespace team logs new\n"
    selector = "app.kubernetes.io/instance=first,app.kubernetes.io/component=worker"
    assert f"--selector {selector},batch.kubernetes.io/job-completion-index=1 " in calls()[0]


@pytest.mark.parametrize("kind", ["indexed_jobs", "jobset"])
@pytest.mark.parametrize("now", [False, True])
def test_a_run_in_pods_ends_chief_first(tmp_path, calls, kind, now):
    """A parameter server that ended first could not be saved; a JobSet starts a deleted Job of its own again."""
    folder = a_run_in_pods(tmp_path, kind)
    recorded_run.stop(folder, now=now)
    selector = "--selector app.kubernetes.io/instance=first"
    main = "jobset.jobset.x-k8s.io" if kind == "jobset" else "job.batch"
    objects = f"{main},service,networkpolicy {selector}"
    chief = f"pods {selector},app.kubernetes.io/component=chief" if kind == "jobset" else "job.batch/first-chief"
    at_once = [f"{objects} --cascade=background", f"pods {selector} --grace-period=0 --force"]
    expected = at_once if now else [chief, objects]
    assert calls() == [f"--namespace team delete {each} --ignore-not-found --wait" for each in expected]
