"""How large a run's own Job should be, what it shows there, and what it tells Kubeflow's status server."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay.launchers.kubernetes import watch
from assay.launchers.kubernetes.client import Object
from assay.launchers.kubernetes.job import NAMED_JOB
from assay.launchers.kubernetes.quota import quantity
from assay.launchers.kubernetes.watch import target_size, watching_job
from assay.records.run import Run
from assay.training.recipe import recipe_sha256
from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.manifests import job as plain_job
from tiny_recipe import tiny_recipe

GATE = {"name": "kueue.x-k8s.io/elastic-job"}


def a_job(size: int, *, own: int | None = None, queue: bool = False, gates: tuple[Object, ...] = ()) -> Object:
    created = plain_job(number=size, container={"resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}})
    created["metadata"]["annotations"] = {
        "assay/own-size": str(size if own is None else own), "assay/most-nodes": "4", "assay/fewest-nodes": "2",
    }  # fmt: skip
    created["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"} if queue else {}
    created["spec"]["template"]["spec"]["schedulingGates"] = list(gates)
    return created


def some_pods(running: int, pending: int = 0) -> list[Object]:
    return [{"status": {"phase": phase}} for phase in ["Running"] * running + ["Pending"] * pending + ["Failed"] * 3]


def a_quota(used: str, hard: str, name: str = "pods") -> Object:
    return {"status": {"hard": {name: hard}, "used": {name: used}}}


@pytest.mark.parametrize(
    ("size", "running", "quotas", "target"),
    [
        (4, 4, [], 4),
        (2, 2, [], 4),  # no quota: all that were asked for
        (2, 2, [a_quota("2", "2")], 2),
        (2, 2, [a_quota("2", "3")], 3),
        (2, 2, [a_quota("2", "3"), a_quota("4", "4", "requests.cpu")], 2),  # the scarcer one counts
        (2, 2, [a_quota("4", "7", "cpu")], 3),
        (2, 2, [a_quota("2", "9")], 4),  # never beyond the most
        (2, 2, [a_quota("1", "1", "limits.nvidia.com/gpu")], 4),  # these pods use none
        (2, 2, [a_quota("2Gi", "3Gi", "limits.memory")], 3),
        (4, 2, [a_quota("2", "2")], 4),  # the Job waits for the rest
        (4, 4, [a_quota("4", "3")], 3),  # withdrawn
        (4, 4, [a_quota("8", "5", "cpu")], 2),
        (4, 4, [a_quota("4", "0")], 2),  # never below the fewest
        (2, 2, [a_quota("2", "0")], 2),
    ],
)
def test_the_size_follows_the_quota(size: int, running: int, quotas: list[Object], target: int) -> None:
    assert target_size(a_job(size), some_pods(running), quotas) == target


def test_a_size_that_somebody_else_has_set_stays() -> None:
    assert target_size(a_job(2, own=3), some_pods(2), []) == 2
    leaving = a_job(2)
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert target_size(leaving, some_pods(2), []) == 2


@pytest.mark.parametrize(
    ("size", "running", "gates", "target"), [(2, 2, (GATE,), 3), (2, 1, (GATE,), 2), (4, 4, (GATE,), 4), (2, 2, (), 2)]
)
def test_in_a_queue_one_more_is_asked_for_once_all_run_and_only_if_the_job_is_elastic(
    size: int, running: int, gates: tuple[Object, ...], target: int
) -> None:
    found = target_size(a_job(size, queue=True, gates=gates), some_pods(running, size - running), [a_quota("2", "9")])
    assert found == target


def test_amounts_of_the_api_are_numbers() -> None:
    texts = {"2": 2, "500m": 0.5, "1.5Gi": 1.5 * 2**30, "10k": 10_000, "1e3": 1000}
    assert {text: quantity(text) for text in texts} == texts
    for wrong in ("", "many", "3 Gi", "1Zi"):
        with pytest.raises(ValueError, match="is not an amount"):
            quantity(wrong)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.05)
    monkeypatch.setattr(watch, "progress_of", lambda run, log: {"assay/step": "3 of 12"})


def test_a_pod_that_may_not_see_its_job_says_so_once_and_trains_on(
    fast: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with KubernetesCluster(tmp_path, num_nodes=0) as cluster:
        cluster.create(a_job(2))
        path = cluster.write_kubeconfig(tmp_path / "config", token=cluster.token_of("default"))
        monkeypatch.setenv("KUBECONFIG", str(path))
        with watching_job(a_run(tmp_path), {NAMED_JOB: "default/run"}):
            cluster.wait_until(lambda: not watch_threads(), "the watch to give up", timeout_s=10)
    assert capsys.readouterr().err.count("may not watch its Job") == 1


def test_progress_is_shown_and_a_size_that_was_set_meanwhile_is_not_overwritten(
    fast: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    with KubernetesCluster(tmp_path, num_nodes=0) as cluster:

        def target(job: Object, *_: object) -> int:
            sizes.append(job["spec"]["parallelism"])
            if len(sizes) == 1:
                cluster.scale("run", 1)  # between the look and the patch
                return 3
            return sizes[-1]

        monkeypatch.setattr(watch, "target_size", target)
        cluster.create(a_job(2))
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(tmp_path / "config")))
        with watching_job(a_run(tmp_path), {NAMED_JOB: "default/run"}):
            cluster.wait_until(lambda: len(sizes) > 8, "more looks", timeout_s=10)
        job = cluster.job("run")
    assert (sizes[:2], job["spec"]["parallelism"]) == ([2, 1], 1)
    assert job["metadata"]["annotations"]["assay/step"] == "3 of 12"


def test_kubeflows_status_server_gets_the_progress_with_the_pods_token(
    fast: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.headers["Authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    (tmp_path / "token").write_text("secret\n")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/apis/trainjobs/x/status"
        with watching_job(a_run(tmp_path), {watch.STATUS_URL: url, watch.STATUS_TOKEN: str(tmp_path / "token")}):
            while not requests:
                time.sleep(0.01)
        server.shutdown()
    token, body = requests[0]
    assert token == "Bearer secret"
    assert body["trainerStatus"]["progressPercentage"] == 25
    assert body["trainerStatus"]["metrics"] == [{"name": "step", "value": "3 of 12"}]


def test_outside_of_a_job_nothing_is_watched(tmp_path: Path) -> None:
    with watching_job(a_run(tmp_path), {"HOME": "/"}):
        assert not watch_threads()


def a_run(folder: Path) -> Run:
    recipe = tiny_recipe()
    return Run(
        run_id="run", created_s=0.0, recipe=recipe, recipe_sha256=recipe_sha256(recipe, ""), dataset_fingerprint="",
        code_version="", run_dir=str(folder), store_url=str(folder), num_steps=12,
    )  # fmt: skip


def watch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "Kubernetes Job" in thread.name and thread.is_alive()]
