"""Runs on a stand-in of a Kubernetes cluster: start, stop, growth, shrinking, and what a cluster refuses."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from assay.base.errors import ConfigError
from assay.launchers.kubernetes.job import KubernetesConfig, job_name
from assay.launchers.kubernetes.launcher import KubernetesLauncher, pending_reason, resize
from assay.launchers.launches import kill, last_words, state_of, waiting_words
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.objects import open_store
from assay.training.audit import audit_run
from kubernetes_cluster.cluster import KubernetesCluster, missing_part
from kubernetes_cluster.manifests import headless_service
from kubernetes_cluster.manifests import job as plain_job
from kubernetes_run import ACCOUNT, CLAIM, IMAGE, attempts_of, cluster_with_assay, options_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLOW = "".join(["faults:", *(f"\n- {{type: slow, attempt: {number}, step: 1, extra_s: 1}}" for number in range(1, 5))])
"""So that there is time for nodes to come and go."""


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all pods mount: the runs of this test and the data of all tests."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def cluster(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, requires: Callable[..., None]
) -> Iterator[KubernetesCluster]:
    missing = missing_part()
    requires("netns", missing is None, missing or "")
    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster_with_assay(folder, shared, monkeypatch, num_nodes=3) as started:
        yield started


def launcher_of(shared: Path, *train_options: str, **options: object) -> KubernetesLauncher:
    return KubernetesLauncher(Home.from_environment(), KubernetesConfig(**options_of(shared, **options)), train_options)


def log_of(run: Run) -> CommitLog:
    return CommitLog(open_store(run.store_url))


def assert_undisturbed(run: Run, digest: str) -> None:
    log = log_of(run)
    finished = log.finished()
    assert finished is not None
    assert finished.weights_digest == digest
    assert audit_run(run, log).verdict == "pass"


def test_a_run_grows_and_shrinks_with_the_quota_and_as_somebody_asks(
    cluster: KubernetesCluster, shared: Path, new_tiny_run: Callable[..., Run], run_it: Callable
) -> None:
    _, whole, _ = run_it(trainer__epochs=4)
    set_quota(cluster, pods=2)
    run = new_tiny_run(trainer__epochs=4)
    (faults := Path(run.run_dir) / "slow.yaml").write_text(SLOW)
    launcher = launcher_of(shared, "--workers=1..3", f"--faults={faults}", nodes=3, service_account=ACCOUNT)
    launch = launcher.start(run, world_size=3)
    wait_for_world_size(cluster, run, 2)
    assert "exceeded quota" in pending_reason(launch)
    set_quota(cluster, pods=1)  # withdrawn: nobody but the run itself gives a pod back
    wait_for_world_size(cluster, run, 1)
    set_quota(cluster, pods=4)
    wait_for_world_size(cluster, run, 3)
    resize(launch, 2)
    wait_for_world_size(cluster, run, 2)
    with pytest.raises(ConfigError, match="uses 1 to 3 nodes"):
        resize(launch, 4)
    assert "of 80" in cluster.job(job_name(run))["metadata"]["annotations"]["assay/step"]
    cluster.wait_until(lambda: state_of(launch) == "ended", "the run to end", timeout_s=180)
    assert_undisturbed(run, whole.finished().weights_digest)
    assert cluster.job(job_name(run))["spec"]["parallelism"] == 2, "a size that somebody has set stays"
    assert cluster.num_pods_created(job_name(run)) <= 6


def assay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-c", "from assay.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_one_command_trains_a_recipe_and_another_stops_it(
    cluster: KubernetesCluster, shared: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    train = (
        "train",
        str(recipe),
        "trainer.epochs=40",
        "--run-id",
        "first",
        "--on",
        "kubernetes",
        "--workers",
        "2",
        "--nodes",
        "2",
    )
    options = ("--image", IMAGE, "--claim", f"{CLAIM}:{shared}", "--cpu", "1")
    (misspelt := tmp_path / "patch.yaml").write_text("spec: {paralelism: 3}")
    cluster.create(plain_job("assay-namesake"))
    for wrong, message in (
        (("--claim", f"none:{shared}"), "--claim none: namespace 'default' has no such object"),
        (("--claim", f"{CLAIM}:/elsewhere"), "which the pods cannot reach"),
        (("--namespace", "team"), "create services, patch services, list pods in namespace 'team', if there is one"),
        (("--nodes", "3"), "--nodes 3 --workers 2"),
        (("--memory", "64"), "--memory: '64' is too little"),
        (("--secret", "assay"), "--secret assay: namespace 'default' has no such object"),
        (("--patch", str(misspelt)), 'rejects the Job of run first. Kubernetes: Job in version "v1" cannot be handled'),
        (("--run-id", "namesake"), "Job default/assay-namesake exists already, and trains another run"),
    ):
        refused = assay(*train, *options, *wrong)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    printed = assay(*train, *options, "--dry-run").stdout
    assert [item["kind"] for item in yaml.safe_load_all(printed)] == ["Service", "Job"]
    assert not (tmp_path / "home").exists(), "nothing is written before a launch can work"

    launched = assay(*train, *options)
    assert launched.returncode == 0, launched.stderr
    assert "run first: Kubernetes Job default/assay-first" in launched.stdout
    assert f"follow: tail -F {tmp_path}/home/first/kubernetes/node-0.log" in launched.stdout
    assert "gets 2 nodes" in assay("train", "resize", "first", "--nodes", "2").stdout
    run = Home.from_environment().run("first")
    cluster.wait_until(log_of(run).commits, "a first commit", timeout_s=180)
    assert "Kubernetes Job default/assay-first was asked to commit and stop" in assay("train", "stop", "first").stdout
    [launch] = saved_launches(run)
    cluster.wait_until(lambda: state_of(launch) == "ended", "the Job to go")
    assert "nothing to stop" in assay("train", "stop", "first").stdout
    assert not services(cluster)
    with pytest.raises(ConfigError, match="has ended; start it again"):
        resize(launch, 1)
    logs = [Path(launch.log).with_name(f"node-{index}.log").read_text() for index in (0, 1)]
    assert any("committed" in log for log in logs) and all(logs), "what pods printed stays when they are gone"
    assert "committed" in last_words(launch)


def test_an_admission_that_refuses_the_job_is_told_before_the_run_is_saved(
    cluster: KubernetesCluster, shared: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    cluster.create({**quota, "spec": {"hard": {"count/jobs.batch": "0"}}})
    refused = assay("train", str(recipe), "--on", "kubernetes", "--image", IMAGE, "--claim", f"{CLAIM}:{shared}")
    assert (refused.returncode, "exceeded quota: team" in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "home").exists()
    assert not services(cluster)


@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_a_run_that_was_only_created_is_trained_by_the_objects_that_were_printed(
    cluster: KubernetesCluster, shared: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    options = ("--on", "kubernetes", "--image", IMAGE, "--claim", f"{CLAIM}:{shared}", "--cpu", "1", "--as", kind)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))  # the cluster may be another repository's business
    printed = assay("train", str(recipe), "--run-id", "gitops", *options, "--create-only")
    assert printed.returncode == 0, printed.stderr
    again = assay("train", "--resume", "gitops", *options, "--dry-run")
    assert again.stdout == printed.stdout and "does not exist" not in printed.stdout
    twice = assay("train", "--resume", "gitops", *options, "--create-only")
    assert "run gitops exists: print its job with --dry-run" in twice.stderr
    run = Home.from_environment().run("gitops")
    assert not saved_launches(run)

    cluster.create(*(job_and_service(printed.stdout) if kind == "trainjob" else yaml.safe_load_all(printed.stdout)))
    if kind == "job":
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "cluster" / "kubeconfig"))
        recorded = assay("train", "--resume", "gitops", *options)
        assert "run gitops: Kubernetes Job default/assay-gitops" in recorded.stdout, recorded.stderr
        assert len(saved_launches(run)) == 1
    cluster.wait_until(log_of(run).finished, "the run to end", timeout_s=180)
    assert audit_run(run, log_of(run)).verdict == "pass"


def job_and_service(text: str) -> list:
    """What Kubeflow's Trainer and JobSet make of a TrainJob and its runtime."""
    runtime, trainjob = yaml.safe_load_all(text)
    name = trainjob["metadata"]["name"]
    [node] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{name}-{node['name']}-0"}}
    number, spec = trainjob["spec"]["trainer"]["numNodes"], node["template"]["spec"]
    spec["template"]["spec"]["subdomain"] = name
    service = headless_service(name)
    service["spec"]["selector"] = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    return [service, job | {"spec": spec | {"parallelism": number, "completions": number}}]


def test_an_image_of_another_version_ends_the_job_and_says_why(
    cluster: KubernetesCluster, shared: Path, new_tiny_run: Callable[..., Run]
) -> None:
    run = new_tiny_run()
    launch = launcher_of(shared, image="older:1").start(run, world_size=2)
    cluster.wait_until(lambda: state_of(launch) == "ended", "the Job to fail")
    assert re.search(r"exit code 2 matching FailJob rule.*\n.*exit code 2", last_words(launch)), last_words(launch)
    assert not attempts_of(run)
    again = launcher_of(shared).start(run, world_size=2)  # replaces the Job that failed
    assert (again.job, again.process != launch.process) == (launch.job, True)
    assert state_of(launch) == "ended"
    kill(again)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("none:1", "Back-off pulling image"),
        ("without:1", 'StartError, exit code 128: exec: "assay": executable file not found'),
    ],
)
def test_an_image_that_is_not_there_or_has_no_assay_is_named_while_the_job_waits(
    cluster: KubernetesCluster, shared: Path, new_tiny_run: Callable[..., Run], image: str, reason: str
) -> None:
    launch = launcher_of(shared, image=image).start(new_tiny_run(), world_size=2)
    cluster.wait_until(lambda: reason in waiting_words(launch), "the reason", timeout_s=20)
    assert state_of(launch) == "queued"
    kill(launch)
    cluster.wait_until(lambda: state_of(launch) == "ended", "the Job to go", timeout_s=20)


def test_a_quota_that_never_holds_the_fewest_nodes_is_named_before_anything_starts(
    cluster: KubernetesCluster, shared: Path, new_tiny_run: Callable[..., Run]
) -> None:
    set_quota(cluster, pods=1)
    cluster.wait_until(
        lambda: "status" in cluster.request("GET", "/api/v1/namespaces/default/resourcequotas/team"), "the quota"
    )
    run = new_tiny_run()
    with pytest.raises(ConfigError, match=r"needs 2 pods of .*quota of namespace 'default' holds 1 \(team: .*pods"):
        launcher_of(shared).start(run, world_size=2)
    assert not services(cluster)
    launch = launcher_of(shared, "--workers=1..2", image="none:1").start(run, world_size=2)
    assert state_of(launch) == "queued"
    kill(launch)


def set_quota(cluster: KubernetesCluster, pods: int) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}}
    path = "/api/v1/namespaces/default/resourcequotas"
    if cluster.request("GET", path)["items"]:
        cluster.request("DELETE", f"{path}/team")
    cluster.create({**quota, "spec": {"hard": {"pods": str(pods)}}})


def wait_for_world_size(cluster: KubernetesCluster, run: Run, number: int) -> None:
    def is_so() -> bool:
        attempts = attempts_of(run)
        return bool(attempts) and attempts[-1].world_size == number and bool(log_of(run).commits())

    cluster.wait_until(is_so, f"an attempt on {number} workers", timeout_s=120)


def services(cluster: KubernetesCluster) -> list:
    return cluster.request("GET", "/api/v1/namespaces/default/services")["items"]
