"""A stand-in of a Kubernetes cluster that takes pods and nodes away: the run ends as if nothing had happened."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from assay.launchers.kubernetes.job import KubernetesConfig, job_name
from assay.launchers.kubernetes.launcher import KubernetesLauncher
from assay.launchers.launches import state_of, waiting_words
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from kubernetes_cluster.cluster import KubernetesCluster, missing_part
from kubernetes_cluster.errors import Object
from kubernetes_cluster.store import holds, name_of
from kubernetes_run import ACCOUNT, attempts_of, cluster_with_assay, options_of, pods_that_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SLOW = "faults: [{type: slow, step: 1, extra_s: 0.4}, {type: slow, attempt: 2, step: 1, extra_s: 0.4}]"
"""So that there is time to take nodes away and to give others."""
SLOW_ALONE = "faults: [{type: slow, step: 1, extra_s: 0.4}, {type: slow, attempt: 2, step: 1, extra_s: 1.5}]"
"""So that a pod that must be made, placed and started anew finds the run at work."""
SLOW_AT_FIRST = "faults: [{type: slow, step: 1, extra_s: 2}, {type: slow, attempt: 2, step: 1, extra_s: 0.4}]"
"""So that there is time for the leader to look at its Job, and for a second pod to start."""
TAKE_OVER_S = 30.0
"""A run goes on after a death within 15 s; tests share their processors."""


class OnKubernetes(NamedTuple):
    """A run on pods of a cluster, each on a node of its own, and one node more."""

    cluster: KubernetesCluster
    run: Run
    log: CommitLog
    launch: Launch

    @property
    def job(self) -> Object:
        """The Job as it is now."""
        return self.cluster.job(job_name(self.run))

    def pod(self, index: int) -> Object:
        """The pod of an index that runs."""
        running = pods_that_run(self.cluster, self.run)
        return next(pod for pod in running if pod["spec"]["hostname"].endswith(f"-{index}"))

    def num_pods_created(self) -> int:
        """How many pods there have been."""
        return self.cluster.num_pods_created(job_name(self.run))

    def wait_for_attempt(self, number: int, what: str, timeout_s: float = 120.0) -> float:
        """Wait until ranks of that attempt run; return how long it took."""
        began_s = time.monotonic()
        self._wait(
            lambda: len(attempts_of(self.run)) >= number and attempts_of(self.run)[number - 1].hosts, what, timeout_s
        )
        return time.monotonic() - began_s

    def wait_for_replacement(self) -> None:
        """Wait for a later attempt than the first on two pods: the second one, if the new pod came in time for it."""
        later = "a later attempt on two pods"
        self._wait(lambda: any(len(attempt.hosts) == 2 for attempt in attempts_of(self.run)[1:]), later, 120.0)

    def wait_for_world_size(self, number: int) -> None:
        """Wait for an attempt on so many workers, and a commit of it."""

        def has_committed() -> bool:
            commits, last = self.log.commits(), attempts_of(self.run)[-1:]
            return bool(commits and last) and last[0].world_size == number and commits[-1].attempt == last[0].attempt

        self._wait(has_committed, f"a commit of {number} workers", 120.0)

    def run_to_end(self) -> None:
        """Wait for the end of the run, and of its Job."""
        self._wait(self.log.finished, "the run's end", 240.0)
        self._wait(lambda: state_of(self.launch) == "ended", "the Job's end", 60.0)

    def _wait(self, is_so: Callable[[], object], what: str, timeout_s: float) -> None:
        def is_so_and_no_index_is_complete_too_early() -> object:
            job = self.job
            assert not holds(job, "FailureTarget"), f"the Job failed\n{self.cluster.logs()}"
            if job["status"].get("succeeded"):
                assert self.log.finished(), "a pod ended with 0 before the run was finished"
            return is_so()

        self.cluster.wait_until(is_so_and_no_index_is_complete_too_early, what, timeout_s)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all pods mount: the runs of this test and the data of all tests."""
    return tmp_path_factory.getbasetemp()


Started = Callable[..., OnKubernetes]


@pytest.fixture
def start(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, requires, new_tiny_run) -> Iterator[Started]:
    """Start a run on a cluster, a node a pod: `start(fault plan, nodes=2, queue_slots=2, queue="team")`."""
    missing = missing_part()
    requires("netns", missing is None, missing or "")
    folder = tmp_path / "cluster"
    folder.mkdir()
    with ExitStack() as running:

        def start_run(
            faults: str, nodes: int = 2, queue_slots: int | None = None, scale: float = 0.05, **options: object
        ) -> OnKubernetes:
            room = {"num_nodes": nodes + 1, "allocatable": {"pods": "1"}, "queue_slots": queue_slots, "scale": scale}
            cluster = running.enter_context(cluster_with_assay(folder, shared, monkeypatch, **room))
            run = new_tiny_run()
            (plan := Path(run.run_dir) / "slow.yaml").write_text(faults)
            config = KubernetesConfig(**options_of(shared, nodes=nodes, **options))
            train_options = (f"--workers=1..{nodes}", f"--faults={plan}")
            launch = KubernetesLauncher(Home.from_environment(), config, train_options).start(run, world_size=nodes)
            return OnKubernetes(cluster, run, CommitLog(open_store(run.store_url)), launch)

        yield start_run


@pytest.fixture
def on_kubernetes(start: Started, request: pytest.FixtureRequest) -> OnKubernetes:
    """A run that has made a commit on two pods; its parameter is a fault plan."""
    on = start(getattr(request, "param", SLOW))
    on.cluster.wait_until(on.log.commits, "a first commit", timeout_s=120)
    assert attempts_of(on.run)[-1].world_size == 2
    return on


def assert_as_if_nothing_had_happened(on: OnKubernetes, digest: str, *, most_pods: int) -> None:
    finished = on.log.finished()
    assert finished is not None
    assert finished.weights_digest == digest
    assert audit_run(on.run, on.log).verdict == "pass"
    assert holds(on.job, "SuccessCriteriaMet") and not holds(on.job, "Failed")
    assert on.num_pods_created() <= most_pods, "no storm of pods"


def test_the_pod_of_the_leader_is_evicted(on_kubernetes: OnKubernetes, undisturbed: str) -> None:
    on_kubernetes.cluster.evict(on_kubernetes.pod(0))
    on_kubernetes.wait_for_attempt(2, "an attempt that another leads")
    on_kubernetes.run_to_end()
    assert_as_if_nothing_had_happened(on_kubernetes, undisturbed, most_pods=3)
    assert on_kubernetes.job["status"].get("failed", 0) == 0


def test_a_pod_that_is_evicted_while_it_starts_leaves_at_once(start: Started, undisturbed: str) -> None:
    on = start(SLOW)
    on.cluster.wait_until(lambda: len(pods_that_run(on.cluster, on.run)) == 2, "two pods")
    pod = on.pod(1)
    on.cluster.evict(pod)
    on.cluster.wait_until(
        lambda: name_of(pod) not in {name_of(found) for found in on.cluster.pods(job_name(on.run))}, "it to leave", 10
    )
    on.run_to_end()
    assert_as_if_nothing_had_happened(on, undisturbed, most_pods=3)


def test_all_pods_are_evicted(on_kubernetes: OnKubernetes, undisturbed: str) -> None:
    for index in (0, 1):
        on_kubernetes.cluster.evict(on_kubernetes.pod(index))
    on_kubernetes.wait_for_attempt(2, "an attempt of their replacements")
    on_kubernetes.run_to_end()
    assert_as_if_nothing_had_happened(on_kubernetes, undisturbed, most_pods=4)
    assert attempts_of(on_kubernetes.run)[0].outcome == "preempted"


@pytest.mark.parametrize("on_kubernetes", [SLOW_ALONE], indirect=True, ids=[""])
def test_a_removed_node_gives_its_pod_up_for_another_that_joins(on_kubernetes: OnKubernetes, undisturbed: str) -> None:
    node = on_kubernetes.pod(0)["spec"]["nodeName"]
    on_kubernetes.cluster.kill_node(node)
    on_kubernetes.cluster.remove_node(node)
    on_kubernetes.wait_for_replacement()
    on_kubernetes.run_to_end()
    assert_as_if_nothing_had_happened(on_kubernetes, undisturbed, most_pods=3)


@pytest.mark.parametrize("index", [1, 0], ids=["a follower", "the leader"])
def test_a_pod_runs_out_of_memory(on_kubernetes: OnKubernetes, undisturbed: str, index: int) -> None:
    dead = on_kubernetes.pod(index)
    on_kubernetes.cluster.run_out_of_memory(dead)
    on_kubernetes.wait_for_attempt(2, "an attempt without it")
    on_kubernetes.run_to_end()
    assert_as_if_nothing_had_happened(on_kubernetes, undisturbed, most_pods=3)
    assert on_kubernetes.job["status"]["failed"] == 1, "this end counts"
    [end] = [pod for pod in on_kubernetes.cluster.pods(job_name(on_kubernetes.run)) if name_of(pod) == name_of(dead)]
    assert end["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_a_queue_lets_a_run_grow_and_takes_its_pods_back(start: Started, undisturbed: str) -> None:
    on = start(SLOW_AT_FIRST, queue_slots=0, queue="team", service_account=ACCOUNT)
    on.cluster.wait_until(lambda: holds(on.job, "Suspended"), "the queue's decision")
    assert state_of(on.launch) == "queued"
    assert "queue team" in waiting_words(on.launch)

    set_slots(on, 2)
    on.wait_for_attempt(2, "an attempt with one pod more, for which the run has asked")
    assert [attempt.world_size for attempt in attempts_of(on.run)] == [1, 2]

    set_slots(on, 0)
    on.cluster.wait_until(lambda: not pods_that_run(on.cluster, on.run), "the pods to leave")
    assert on.log.finished() is None

    set_slots(on, 2)
    on.run_to_end()
    assert_as_if_nothing_had_happened(on, undisturbed, most_pods=4)


def set_slots(on: OnKubernetes, number: int) -> None:
    assert on.cluster.queue is not None
    on.cluster.queue.num_slots = number


def test_a_job_is_scaled_to_2_to_4_and_to_3(start: Started, undisturbed: str) -> None:
    plan = ", ".join(f"{{type: slow, attempt: {attempt}, step: 1, extra_s: 1}}" for attempt in (1, 2, 3))
    on = start(f"faults: [{plan}]", nodes=4)
    for size in (2, 4, 3):
        on.cluster.scale(job_name(on.run), size)
        on.wait_for_world_size(size)
    on.run_to_end()
    assert_as_if_nothing_had_happened(on, undisturbed, most_pods=6)
    assert not on.job["status"].get("failed")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_to_pods_and_nodes_the_run_ends_undisturbed(
    start: Started, undisturbed: str, seed: int
) -> None:
    """The seed is the order of events; when they happen depends on the machine."""
    rng = random.Random(seed)
    plan = ", ".join(f"{{type: slow, attempt: {attempt}, step: 1, extra_s: 0.7}}" for attempt in range(1, 30))
    on = start(f"faults: [{plan}]", nodes=3, scale=0.005)
    num_events = 0
    while not on.log.finished() and num_events < 12:
        time.sleep(rng.uniform(0, 8))
        disturb(on, rng)
        num_events += 1
    on.cluster.suspend(job_name(on.run), suspended=False)
    on.run_to_end()
    assert_as_if_nothing_had_happened(on, undisturbed, most_pods=3 + 4 * num_events)


def disturb(on: OnKubernetes, rng: random.Random) -> None:
    """Do something that operators, queues and machines do."""
    name, pods = job_name(on.run), pods_that_run(on.cluster, on.run)
    event = rng.choice(["evict", "evict all", "memory", "node", "suspend", "resume", "scale"])
    if event in ("suspend", "resume"):
        on.cluster.suspend(name, suspended=event == "suspend")
    elif event == "scale":
        on.cluster.scale(name, rng.randint(1, 3))
    elif pods and event == "memory":
        on.cluster.run_out_of_memory(rng.choice(pods))
    elif pods and event == "node":
        node = rng.choice(pods)["spec"]["nodeName"]
        on.cluster.kill_node(node)
        on.cluster.remove_node(node)
        on.cluster.add_node(f"node-{rng.getrandbits(32):x}", {"pods": "1"})
    else:
        for pod in pods if event == "evict all" else pods[:1]:
            on.cluster.evict(pod)
