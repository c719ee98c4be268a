"""The stand-in's pods: processes with names, addresses, volumes and secrets, ended as a node ends them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kubernetes_cluster.cluster import KubernetesCluster, missing_part
from kubernetes_cluster.errors import ApiError, Object
from kubernetes_cluster.kubelet import checkout_image
from kubernetes_cluster.manifests import headless_service, job
from kubernetes_cluster.store import condition, holds, name_of

WAIT_FOR_TERM = "trap 'exit 75' TERM; echo ready; while :; do sleep 0.05; done"
Start = Callable[..., KubernetesCluster]


@pytest.fixture
def new_kubernetes_cluster(tmp_path: Path, requires) -> Iterator[Start]:
    """Start a cluster whose image `assay:test` has the `assay` of this checkout."""
    missing = missing_part()
    requires("netns", missing is None, missing or "")
    with ExitStack() as running:

        def start(**options: Any) -> KubernetesCluster:
            folder = tmp_path / "kubernetes"
            folder.mkdir()
            return running.enter_context(KubernetesCluster(folder, {"assay:test": checkout_image()}, **options))

        yield start


def run(
    cluster: KubernetesCluster, script: str, number: int = 1, *, container: Object | None = None, **spec: Any
) -> None:
    """Start pods that run a shell script."""
    shell = {"image": "assay:test", "command": ["sh", "-c", script]} | (container or {})
    cluster.create(headless_service(), job(number=number, container=shell, **spec))


def log(cluster: KubernetesCluster, pod: Object) -> str:
    return cluster.request("GET", f"/api/v1/namespaces/default/pods/{name_of(pod)}/log")


def code(pod: Object) -> tuple[int, str]:
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return ended["exitCode"], ended["reason"]


def wait_for(cluster: KubernetesCluster, phase: str, number: int = 1) -> list[Object]:
    """The pods, once so many are in this phase."""

    def found() -> list[Object]:
        return [pod for pod in cluster.pods("run") if pod["status"]["phase"] == phase]

    cluster.wait_until(lambda: len(found()) >= number, f"{number} pods that are {phase}")
    return found()


def wait_for_word(cluster: KubernetesCluster, word: str = "ready") -> None:
    cluster.wait_until(lambda: all(word in log(cluster, pod) for pod in wait_for(cluster, "Running")), word)


def test_a_pod_has_the_names_of_its_service_and_is_process_1(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    script = "hostname; echo $$ $JOB_COMPLETION_INDEX; until getent hosts run-1.run; do sleep 0.05; done; sleep 9"
    run(cluster, script, number=2)
    pods = wait_for(cluster, "Running", 2)
    address = pods[1]["status"]["podIP"]
    assert address.startswith("127.0.") and address != pods[0]["status"]["podIP"]
    cluster.wait_until(lambda: address in log(cluster, pods[0]), "a name")
    assert log(cluster, pods[0]).splitlines()[:2] == ["run-0", "1 0"]


def test_values_come_from_the_pod_and_from_secrets(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": {"key": "hidden"}})
    environment = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "other", "key": "key", "optional": True}}},
    ]
    run(cluster, "echo $NAME $ADDRESS $KEY ${NONE-none}", container={"env": environment})
    [pod] = wait_for(cluster, "Succeeded")
    assert log(cluster, pod).split() == [name_of(pod), pod["status"]["podIP"], "hidden", "none"]


def test_a_secret_that_is_not_there_keeps_a_pod_waiting(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}}
    run(cluster, "true", container={"env": [key]})
    assert waiting(cluster) == {"reason": "CreateContainerConfigError", "message": 'secret "s3" not found'}


def test_an_image_that_cannot_be_pulled_keeps_a_pod_waiting(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    run(cluster, "true", container={"image": "assay:none"})
    assert "assay:none" in waiting(cluster)["message"]
    cluster.wait_until(lambda: waiting(cluster)["reason"] == "ImagePullBackOff", "back-off")
    with pytest.raises(ApiError, match="is waiting to start: ImagePullBackOff"):
        log(cluster, cluster.pods("run")[0])


def waiting(cluster: KubernetesCluster) -> Object:
    """Why the container of the only pod waits."""
    cluster.wait_until(lambda: any("containerStatuses" in pod["status"] for pod in cluster.pods("run")), "a status")
    return cluster.pods("run")[0]["status"]["containerStatuses"][0]["state"]["waiting"]


def test_an_image_without_the_program_fails_its_pod(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    run(cluster, "", container={"command": ["no-such-program"]})
    [pod] = wait_for(cluster, "Failed")
    assert code(pod) == (128, "StartError")


def test_a_pod_that_failed_says_its_last_words(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    run(cluster, "echo out of luck; exit 3", container={"terminationMessagePolicy": "FallbackToLogsOnError"})
    [pod] = wait_for(cluster, "Failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "out of luck\n"


def test_a_volume_is_one_folder_for_all_pods(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "home"}, "spec": claim})
    volume = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
    mount = {"volumeMounts": [{"name": "home", "mountPath": "/assay-home"}]}
    script = (
        "touch /assay-home/$JOB_COMPLETION_INDEX; until [ -e /assay-home/0 -a -e /assay-home/1 ]; do sleep 0.05; done"
    )
    run(cluster, script, 2, container=mount, pod={"volumes": [volume]})
    wait_for(cluster, "Succeeded", 2)
    assert {path.name for path in cluster.kubelets.volume("default", "home").iterdir()} == {"0", "1"}


def test_a_pod_has_a_token_with_which_it_may_do_what_its_role_allows(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    program = (
        "import json, os, ssl, urllib.request\n"
        "at = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "host = os.environ['KUBERNETES_SERVICE_HOST'] + ':' + os.environ['KUBERNETES_SERVICE_PORT']\n"
        "path = '/apis/batch/v1/namespaces/' + open(at + 'namespace').read() + '/jobs'\n"
        "headers = {'Authorization': 'Bearer ' + open(at + 'token').read()}\n"
        "request = urllib.request.Request('https://' + host + path, headers=headers)\n"
        "urllib.request.urlopen(request, context=ssl.create_default_context(cafile=at + 'ca.crt'))\n"
    )
    run(cluster, "", container={"command": ["python3", "-c", program]})
    [pod] = wait_for(cluster, "Failed")
    assert "HTTP Error 403" in log(cluster, pod), log(cluster, pod)


def test_a_deleted_pod_gets_a_term_and_after_its_grace_time_a_kill(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    run(
        cluster,
        "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done",
        pod={"terminationGracePeriodSeconds": 1},
    )
    wait_for_word(cluster)
    [pod] = cluster.pods("run")
    began_s = time.monotonic()
    cluster.evict(pod)
    cluster.wait_until(lambda: cluster.num_pods_created("run") == 2, "the replacement")
    assert time.monotonic() - began_s > 1
    assert "term" in cluster.kubelets.log_of(pod).read_text()


@pytest.mark.parametrize("is_shared", [False, True])
def test_process_1_ignores_a_term_that_it_does_not_handle(new_kubernetes_cluster: Start, is_shared: bool) -> None:
    cluster = new_kubernetes_cluster()
    pod = {"shareProcessNamespace": is_shared, "terminationGracePeriodSeconds": 1}
    run(cluster, "echo ready; exec sleep 1000", pod=pod, backoffLimit=6, podFailurePolicy=None)
    wait_for_word(cluster)
    began_s = time.monotonic()
    cluster.evict(cluster.pods("run")[0])
    cluster.wait_until(lambda: cluster.job("run")["status"].get("failed"), "its end")
    assert (time.monotonic() - began_s < 1) is is_shared


def test_a_pod_that_leaves_is_replaced_and_what_it_wrote_is_kept(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    run(cluster, WAIT_FOR_TERM)
    wait_for_word(cluster)
    [pod] = cluster.pods("run")
    cluster.evict(pod)
    cluster.wait_until(lambda: name_of(wait_for(cluster, "Running")[0]) != name_of(pod), "the replacement")
    assert cluster.job("run")["status"].get("failed", 0) == 0
    assert [name_of(found) for found in cluster.pods("run")] != [name_of(pod)], "an evicted pod is gone"


def test_a_pod_that_runs_out_of_memory_fails_with_137(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster()
    run(cluster, WAIT_FOR_TERM, backoffLimit=6)
    [pod] = wait_for(cluster, "Running")
    cluster.run_out_of_memory(pod)
    [dead] = wait_for(cluster, "Failed")
    assert code(dead) == (137, "OOMKilled")
    cluster.wait_until(lambda: cluster.job("run")["status"].get("failed") == 1, "the count")


def test_a_killed_node_says_nothing_and_keeps_its_pod(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster(scale=0.005)
    run(cluster, WAIT_FOR_TERM)
    [pod] = wait_for(cluster, "Running")
    process = cluster.kubelets.container_of(pod).process
    cluster.kill_node(pod["spec"]["nodeName"])
    assert process.poll() is not None
    cluster.wait_until(lambda: "deletionTimestamp" in cluster.pods("run")[0]["metadata"], "its deletion")
    [marked] = cluster.pods("run")
    assert (marked["status"]["phase"], holds(marked, "DisruptionTarget")) == ("Running", True)
    time.sleep(0.5)
    assert cluster.num_pods_created("run") == 1
    cluster.remove_node(pod["spec"]["nodeName"])
    cluster.wait_until(lambda: cluster.num_pods_created("run") == 2, "the replacement")


def test_a_node_that_comes_back_confirms_the_end_of_its_pod(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster(scale=0.005)
    run(cluster, WAIT_FOR_TERM)
    [pod] = wait_for(cluster, "Running")
    cluster.kill_node(pod["spec"]["nodeName"])
    cluster.wait_until(lambda: "deletionTimestamp" in cluster.pods("run")[0]["metadata"], "its deletion")
    cluster.revive_node(pod["spec"]["nodeName"])
    cluster.wait_until(lambda: cluster.num_pods_created("run") == 2, "the replacement")


def test_a_queue_suspends_jobs_until_there_is_room(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster(queue_slots=1)
    queued = job(container={"image": "assay:test", "command": ["sh", "-c", WAIT_FOR_TERM]})
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    cluster.create(queued)
    cluster.wait_until(lambda: condition(cluster.job("run"), "Suspended"), "the queue's decision")
    assert cluster.pods("run") == []
    cluster.queue.num_slots = 2
    wait_for(cluster, "Running", 2)
    cluster.queue.num_slots = 1
    cluster.wait_until(lambda: cluster.pods("run") == [], "the pods to go")


def test_an_elastic_job_grows_in_its_queue_while_its_pods_run(new_kubernetes_cluster: Start) -> None:
    cluster = new_kubernetes_cluster(queue_slots=1)
    queued = job(number=1, container={"image": "assay:test", "command": ["sh", "-c", WAIT_FOR_TERM]})
    queued["metadata"] |= {
        "labels": {"kueue.x-k8s.io/queue-name": "team"}, "annotations": {"kueue.x-k8s.io/elastic-job": "true"},
    }  # fmt: skip
    cluster.create(queued)
    [first] = wait_for(cluster, "Running")
    cluster.scale("run", 2)
    cluster.wait_until(lambda: len(cluster.pods("run")) == 2, "the second pod")
    cluster.wait_until(lambda: condition(cluster.pods("run")[1], "PodScheduled"), "its gate")
    assert condition(cluster.pods("run")[1], "PodScheduled")["reason"] == "SchedulingGated"
    cluster.queue.num_slots = 2
    assert name_of(wait_for(cluster, "Running", 2)[0]) == name_of(first)
    cluster.queue.num_slots = 1
    cluster.wait_until(lambda: holds(cluster.job("run"), "Suspended"), "the quota's end")


def test_nothing_is_left_when_a_cluster_stops(new_kubernetes_cluster: Start, tmp_path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    started = new_kubernetes_cluster()
    with KubernetesCluster(folder, started.kubelets.images) as cluster:
        run(cluster, "sleep 1000 & sleep 1000")
        [pod] = wait_for(cluster, "Running")
        process = cluster.kubelets.container_of(pod).process
    assert process.poll() is not None
