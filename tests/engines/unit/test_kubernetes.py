"""What is handed to Kubernetes: valid by its own schemas, right about exit codes and names; bad input is named."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from kubernetes_manifests import GIVEN, KINDS, manifests, pods, submitted
from support import REPOSITORY, raw_config, run_config

from psrun.config import parse
from psrun.config.topology import Task
from psrun.engines.kubernetes.checks import quantity
from psrun.engines.kubernetes.settings import KubernetesKeys
from psrun.engines.kubernetes.submission import kubectl_commands
from psrun.errors import ExitCode
from psrun.roles import table

EVERYTHING = ("cluster.num_workers=3", "evaluation=sidecar")


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
        text = submitted(tmp_path, *GIVEN, f"kubernetes.kind={kind}").stdout
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
    assert counted == {"chief": 1, "ps": 2, "worker": 3, "evaluator": 1}
    for pod in task_pods:
        arguments = [each for each in pod.container["args"] if not each.startswith("hydra.run.dir=")]
        run = parse.load(raw_config(*arguments))
        me = table.identify(run, pod.environment)
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
    manifest = submitted(tmp_path, *GIVEN[:2], "kubernetes.name=y", "kubernetes.namespace='1e3'").stdout
    assert "name: 'y'" in manifest
    assert "namespace: '1e3'" in manifest
    assert "image: example/psrun:1" in manifest
    if shutil.which("kubectl") is not None:
        read_by_kubectl(manifest)


def test_options_that_there_are_not(tmp_path):
    done = submitted(tmp_path, "--dryrun", *GIVEN)
    assert done.returncode == 2
    assert "unrecognized arguments: --dryrun" in done.stderr


def test_what_is_shown_can_be_requested_again_and_joined(tmp_path):
    first = submitted(tmp_path, *GIVEN[:2]).stdout
    name = re.search(r"kubernetes\.name=(psrun-[0-9a-f]{4})$", first.splitlines()[0])[1]
    again = submitted(tmp_path, *GIVEN[:2], f"kubernetes.name={name}")
    objects = list(yaml.safe_load_all(first))
    assert list(yaml.safe_load_all(again.stdout)) == objects
    assert list(yaml.safe_load_all(first + again.stdout)) == objects + objects
    assert f"run {name}; its run folder is /runs/{name} in claim runs\n" in again.stderr
    assert f"\nlog: kubectl logs --follow --tail=-1 --selector app.kubernetes.io/instance={name}," in again.stderr


@pytest.mark.parametrize(
    ("kind", "kinds"), [("jobset", "jobset,networkpolicy"), ("indexed_jobs", "job,service,networkpolicy")]
)
def test_commands_for_an_applied_run(kind, kinds):
    """A parameter server that ended before the chief could not be saved."""
    given = ("cluster=kubernetes", *GIVEN, "kubernetes.namespace=team", f"kubernetes.kind={kind}")
    commands = kubectl_commands(run_config(*given).submission)
    kubectl = "kubectl --namespace team"
    whole = "--selector app.kubernetes.io/instance=run-1"
    chief = f"{whole},app.kubernetes.io/component=chief"
    assert commands == {
        "state": f"{kubectl} get pods {whole}",
        "log": f"{kubectl} logs --follow --tail=-1 {chief}",
        "delete": f"{kubectl} delete pods {chief} && {kubectl} delete {kinds} {whole} --cascade=foreground",
    }
    if shutil.which("kubectl") is not None:  # which knows all options
        for command in " && ".join(commands.values()).split(" && "):
            subprocess.run([*shlex.split(command), "--help"], capture_output=True, timeout=60, check=True)


def test_files_of_the_image_are_not_looked_for_here():
    raw = raw_config("cluster=kubernetes", "data=criteo", "data.path=/not/here")
    assert isinstance(parse.load(raw, elsewhere=True).submission, KubernetesKeys)


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
