"""The rules of batch/v1 Jobs that a run relies on, as a real controller keeps them: the stand-in keeps them, too."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kubernetes_cluster.control_plane import ControlPlane
from kubernetes_cluster.errors import ApiError
from kubernetes_cluster.jobs import INDEX, has_ended
from kubernetes_cluster.manifests import FAILURE_POLICY, SUCCESS_POLICY, job
from kubernetes_cluster.store import condition, holds, name_of


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane()


@contextmanager
def refused(code: int, message: str) -> Iterator[None]:
    """The request inside is answered with this code, and a message that has these words."""
    with pytest.raises(ApiError) as error:
        yield
    assert (error.value.code, message in error.value.message) == (code, True), error.value.message


def started(plane: ControlPlane, number: int = 2, **spec: object) -> list[dict]:
    plane.create(job(number=number, **spec))
    plane.after(0)
    return plane.pods("run")


def test_a_key_that_no_schema_knows_is_refused_and_named(plane: ControlPlane) -> None:
    with refused(400, 'strict decoding error: unknown field "spec.paralelism"'):
        plane.create(job(paralelism=3))


def test_a_pod_failure_policy_allows_only_to_replace_failed_pods(plane: ControlPlane) -> None:
    with refused(422, 'podReplacementPolicy: Unsupported value: "TerminatingOrFailed"'):
        plane.create(job(podReplacementPolicy="TerminatingOrFailed"))
    plane.create(job(podReplacementPolicy="TerminatingOrFailed", podFailurePolicy=None))


def test_completions_change_only_together_with_parallelism(plane: ControlPlane) -> None:
    started(plane)
    with refused(422, "spec.completions: Invalid value: 3: can only be modified in tandem"):
        plane.patch_job("run", {"completions": 3})
    plane.patch_job("run", {"parallelism": 1})
    plane.scale("run", 3)
    plane.after(0)
    assert plane.indexes("run") == [0, 1, 2]


def test_fewer_pods_end_the_highest_indexes_with_their_grace_time(plane: ControlPlane) -> None:
    started(plane, 4)
    plane.scale("run", 2)
    plane.after(0)
    assert plane.indexes("run") == [0, 1]
    leaving = plane.pods("run", index=3)[0]
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 30
    plane.end(leaving, 75)
    plane.end(plane.pods("run", index=2)[0], 1)
    status = plane.job("run")["status"]
    assert (status.get("failed", 0), status["active"], plane.num_pods_created("run")) == (0, 2, 4)


def test_fewer_pods_of_as_many_indexes_end_the_newest(plane: ControlPlane) -> None:
    started(plane, 3)
    plane.patch_job("run", {"parallelism": 1})
    plane.after(0)
    assert plane.indexes("run") == [0]


def test_the_end_of_a_pod_whose_index_is_no_more_does_not_count(plane: ControlPlane) -> None:
    _, second = started(plane, podFailurePolicy=None)
    plane.evict(second)
    plane.scale("run", 1)
    plane.end(second, 1)
    assert not condition(plane.job("run"), "FailureTarget")


def test_a_further_index_follows_one_that_is_complete(plane: ControlPlane) -> None:
    first, _ = started(plane, 3, parallelism=2)
    plane.end(first, 0)
    assert plane.indexes("run") == [1, 2]


def test_a_job_without_indexes_has_no_more_pods_than_ends_that_it_lacks(plane: ControlPlane) -> None:
    first, second = started(plane, completionMode=None)
    plane.end(first, 0)
    plane.after(1000)
    assert plane.num_pods_created("run") == 2
    plane.end(second, 0)
    assert holds(plane.job("run"), "Complete")


def test_a_pod_that_ends_with_0_completes_its_index_even_when_evicted(plane: ControlPlane) -> None:
    first, _ = started(plane)
    plane.evict(first)
    plane.end(first, 0)
    plane.after(1000)
    assert plane.job("run")["status"]["completedIndexes"] == "0"
    assert plane.indexes("run") == [1]
    assert plane.num_pods_created("run") == 2


def test_exit_code_2_fails_the_job_at_once_and_ends_the_other_pods(plane: ControlPlane) -> None:
    first, second = started(plane)
    plane.end(first, 2)
    status = plane.job("run")["status"]
    assert [found["type"] for found in status["conditions"]] == ["FailureTarget"]
    assert "deletionTimestamp" in plane.pods("run", index=1)[0]["metadata"]
    plane.end(second, 143)
    failed = condition(plane.job("run"), "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "PodFailurePolicy")
    assert f"pod default/{name_of(first)} failed with exit code 2 matching FailJob rule at index 2" in failed["message"]


def test_a_rule_may_name_the_codes_that_it_leaves_out(plane: ControlPlane) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [75]}}
    first, second = started(plane, podFailurePolicy={"rules": [rule]}, backoffLimit=6)
    plane.end(first, 75)
    assert not condition(plane.job("run"), "FailureTarget")
    plane.end(second, 3)
    assert condition(plane.job("run"), "FailureTarget")["reason"] == "PodFailurePolicy"


def test_any_other_exit_code_counts(plane: ControlPlane) -> None:
    first, second = started(plane)
    plane.end(first, 1)
    plane.end(second, 143)
    assert condition(plane.job("run"), "Failed")["reason"] == "BackoffLimitExceeded"


@pytest.mark.parametrize("is_evicted", [False, True])
def test_an_ignored_end_does_not_count_but_delays_the_replacement(plane: ControlPlane, is_evicted: bool) -> None:
    """10 s after the first, 20 after the second, 40 after the third; ten minutes at most."""
    started(plane)
    for number, delay_s in enumerate((10, 20, 40, 80, 160, 320, 600, 600), start=1):
        pod = plane.pods("run", index=0)[-1]
        if is_evicted:
            plane.evict(pod)
        plane.end(pod, 1 if is_evicted else 75)
        plane.after(delay_s - 1)
        assert plane.indexes("run") == [1]
        plane.after(1)
        assert plane.indexes("run") == [0, 1]
        assert plane.num_pods_created("run") == 2 + number
    assert plane.job("run")["status"].get("failed", 0) == 0


def test_the_delay_holds_pods_back_that_a_larger_size_asks_for(plane: ControlPlane) -> None:
    first, _ = started(plane)
    plane.end(first, 75)
    plane.scale("run", 3)
    plane.after(9)
    assert plane.indexes("run") == [1]
    plane.after(1)
    assert plane.indexes("run") == [0, 1, 2]


def test_without_a_policy_an_eviction_counts(plane: ControlPlane) -> None:
    first, second = started(plane, podFailurePolicy=None)
    plane.evict(first)
    plane.end(first, 143)
    plane.end(second, 143)
    assert condition(plane.job("run"), "Failed")["reason"] == "BackoffLimitExceeded"


def test_an_evicted_pod_is_marked_and_replaced_only_when_it_has_ended(plane: ControlPlane) -> None:
    first, _ = started(plane)
    plane.evict(first)
    marked = plane.pods("run", index=0)[0]
    assert condition(marked, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    plane.after(1000)
    assert plane.indexes("run") == [1], "it runs on"
    assert plane.job("run")["status"]["terminating"] == 1
    plane.end(first, 75)
    plane.after(10)
    assert plane.indexes("run") == [0, 1]


def test_pods_of_a_dead_node_are_deleted_after_340_s_and_stay_until_the_node_object_goes(plane: ControlPlane) -> None:
    first, _ = started(plane)
    plane.nodes.silence(first["spec"]["nodeName"])
    plane.after(40)
    assert not holds(plane.pods("run", index=0)[0], "Ready")
    plane.after(299)
    assert plane.indexes("run") == [0, 1]
    plane.after(1)
    assert condition(plane.pods("run", index=0)[0], "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    plane.after(100_000)
    assert (plane.indexes("run"), plane.num_pods_created("run")) == ([1], 2), "nobody confirms its end"
    plane.remove_node(first["spec"]["nodeName"])
    plane.after(0)
    plane.after(59)
    assert plane.job("run")["status"]["terminating"] == 1
    plane.after(1)
    plane.after(10)
    assert plane.indexes("run") == [0, 1]
    assert plane.job("run")["status"].get("failed", 0) == 0


@pytest.mark.parametrize("seconds", [20, 600])
def test_a_toleration_of_ones_own_says_how_long_a_pod_stays_on_a_dead_node(plane: ControlPlane, seconds: int) -> None:
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("not-ready", "unreachable")
    ]
    first, _ = started(plane, pod={"tolerations": tolerations})
    plane.nodes.silence(first["spec"]["nodeName"])
    plane.after(40)
    plane.after(seconds - 1)
    assert plane.indexes("run") == [0, 1]
    plane.after(1)
    assert plane.indexes("run") == [1]


def test_a_node_that_is_out_of_service_gives_its_pods_up(plane: ControlPlane) -> None:
    first, _ = started(plane)
    node = first["spec"]["nodeName"]
    plane.nodes.silence(node)
    plane.after(40)
    plane.after(300)
    taints = [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
    plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": taints}}, "application/merge-patch+json")
    plane.after(0)
    plane.after(10)
    assert plane.indexes("run") == [0, 1]


def test_a_success_policy_ends_the_job_with_the_first_0(plane: ControlPlane) -> None:
    first, second = started(plane, successPolicy=SUCCESS_POLICY)
    plane.end(first, 0)
    assert condition(plane.job("run"), "SuccessCriteriaMet")["reason"] == "SuccessPolicy"
    assert not holds(plane.job("run"), "Complete"), "another pod has not ended"
    plane.end(second, 143)
    done = plane.job("run")
    assert holds(done, "Complete") and not holds(done, "Failed")
    assert "completionTime" in done["status"]


def test_a_pod_of_a_dead_node_keeps_a_job_that_succeeded_from_being_complete(plane: ControlPlane) -> None:
    first, second = started(plane, successPolicy=SUCCESS_POLICY)
    plane.nodes.silence(first["spec"]["nodeName"])
    plane.after(40)
    plane.after(300)
    plane.end(second, 0)
    plane.after(100_000)
    assert holds(plane.job("run"), "SuccessCriteriaMet") and not holds(plane.job("run"), "Complete")
    plane.remove_node(first["spec"]["nodeName"])
    plane.after(0)
    plane.after(60)
    assert holds(plane.job("run"), "Complete")


def test_without_a_success_policy_all_indexes_must_end_with_0(plane: ControlPlane) -> None:
    first, second = started(plane)
    plane.end(first, 0)
    assert not condition(plane.job("run"), "SuccessCriteriaMet")
    plane.end(second, 0)
    assert holds(plane.job("run"), "Complete")


def test_a_suspended_job_loses_its_pods_and_gets_new_ones_without_delay(plane: ControlPlane) -> None:
    for pod in started(plane):
        assert "batch.kubernetes.io/job-tracking" in pod["metadata"]["finalizers"]
    plane.suspend("run")
    plane.after(0)
    assert holds(plane.job("run"), "Suspended")
    assert all("deletionTimestamp" in pod["metadata"] for pod in plane.pods("run"))
    plane.suspend("run", suspended=False)
    plane.after(0)
    assert plane.indexes("run") == [], "the old ones have not ended"
    for pod in plane.pods("run"):
        plane.end(pod, 75)
    assert plane.indexes("run") == [0, 1]
    status = plane.job("run")["status"]
    assert status.get("failed", 0) == 0
    assert condition(plane.job("run"), "Suspended")["status"] == "False"


def test_what_a_suspended_pod_ends_with_completes_nothing(plane: ControlPlane) -> None:
    first, second = started(plane)
    plane.suspend("run")
    plane.after(0)
    plane.end(first, 0)
    plane.end(second, 0)
    assert plane.job("run")["status"]["succeeded"] == 0


def test_a_pod_knows_its_index_and_has_a_name_by_it(plane: ControlPlane) -> None:
    for index, pod in enumerate(started(plane)):
        assert pod["metadata"]["annotations"][INDEX] == str(index)
        assert pod["spec"]["hostname"] == f"run-{index}"
        assert pod["metadata"]["name"].startswith(f"run-{index}-")
        [variable] = pod["spec"]["containers"][0]["env"]
        assert variable["name"] == "JOB_COMPLETION_INDEX"


def test_a_pod_that_ended_stays_until_its_job_is_deleted(plane: ControlPlane) -> None:
    first, _ = started(plane)
    plane.end(first, 75)
    plane.after(1000)
    assert [has_ended(pod) for pod in plane.pods("run", index=0)] == [True, False]
    plane.request("DELETE", "/apis/batch/v1/namespaces/default/jobs/run?propagationPolicy=Background")
    plane.after(0)
    left = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    assert [pod["metadata"]["deletionGracePeriodSeconds"] for pod in left] == [30, 30], "those that run"


def test_a_job_deleted_without_a_policy_leaves_its_pods_running(plane: ControlPlane) -> None:
    started(plane)
    plane.request("DELETE", "/apis/batch/v1/namespaces/default/jobs/run")
    plane.after(1000)
    left = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    assert [pod["status"]["phase"] for pod in left] == ["Running", "Running"]
    assert not any("deletionTimestamp" in pod["metadata"] for pod in left)


def test_a_finished_job_goes_when_its_time_is_over(plane: ControlPlane) -> None:
    [pod] = started(plane, 1, ttlSecondsAfterFinished=100)
    plane.end(pod, 0)
    plane.after(99)
    assert holds(plane.job("run"), "Complete")
    plane.after(1)
    with refused(404, 'jobs.batch "run" not found'):
        plane.job("run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completions": None}, "spec.completions: Required value: when completion mode is Indexed"),
        ({"completionMode": "indexed"}, 'spec.completionMode: Unsupported value: "indexed"'),
        ({"pod": {"restartPolicy": "Always"}}, 'restartPolicy: Required value: valid values: "OnFailure", "Never"'),
        ({"pod": {"restartPolicy": "OnFailure"}}, 'only "Never" is supported when podFailurePolicy is specified'),
        ({"successPolicy": {"rules": [{"succeededCount": 3}]}}, "must be less than or equal to 2"),
        ({"backoffLimit": -1}, "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"),
        ({"container": {"name": "Main"}}, 'containers[0].name: Invalid value: "Main"'),
        ({"container": {"image": ""}}, "containers[0].image: Required value"),
        ({"container": {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}}, 'volumeMounts[0].name: Not found: "x"'),
        ({"container": {"resources": {"limits": {"cpu": "two"}}}}, "limits[cpu]: Invalid value: 'two'"),
        ({"container": {"resources": {"requests": {"nvidia.com/gpu": 1}}}}, "Limit must be set for non overcommitable"),
        ({"pod": {"tolerations": [{"operator": "Exists", "tolerationSeconds": 9}]}}, "effect must be 'NoExecute'"),
        ({"pod": {"volumes": [{"name": "x"}]}}, "volumes[0]: Required value: must specify a volume type"),
        ({"container": {"env": [{"name": "A B", "value": "1"}]}}, "a valid environment variable name must"),
    ],
)  # fmt: skip
def test_a_rule_that_no_schema_states_is_kept(plane: ControlPlane, changes: dict, message: str) -> None:
    with refused(422, message):
        plane.create(job(**changes))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"action": "Fail", "onExitCodes": {"operator": "In", "values": [1]}}, 'action: Unsupported value: "Fail"'),
        ({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [0, 7]}}, "must not be 0 for the In"),
        ({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75, 2]}}, "must be ordered"),
        ({"action": "Ignore", "onExitCodes": {"operator": "In", "values": []}}, "at least one value is required"),
        ({"action": "Ignore", "onExitCodes": {"operator": "is", "values": [1]}}, 'operator: Unsupported value: "is"'),
        ({"action": "Ignore"}, "specifying one of OnExitCodes and OnPodConditions is required"),
        ({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}}, "requires the backoffLimit"),
        (
            {"action": "Ignore", "onExitCodes": {"containerName": "x", "operator": "In", "values": [1]}},
            "must be one of the container or initContainer names",
        ),
    ],
)  # fmt: skip
def test_a_wrong_rule_of_a_pod_failure_policy_is_refused(plane: ControlPlane, rule: dict, message: str) -> None:
    with refused(422, message):
        plane.create(job(podFailurePolicy={"rules": [rule]}))


@pytest.mark.parametrize("change", [{"completionMode": "NonIndexed"}, {"podFailurePolicy": {"rules": []}}])
def test_what_may_not_change_does_not(plane: ControlPlane, change: dict) -> None:
    started(plane)
    with refused(422, "field is immutable"):
        plane.patch_job("run", change)
    with refused(422, "spec.template: Invalid value"):
        plane.patch_job("run", {"template": {"spec": {"terminationGracePeriodSeconds": 1}}})


@pytest.mark.parametrize("name", ["Run", "a.b", "run_1", "x" * 62])
def test_a_name_that_no_host_may_have_is_refused(plane: ControlPlane, name: str) -> None:
    with refused(422, "metadata.name: Invalid value"):
        plane.create(job(name, pod={"subdomain": "run"}))


def test_a_quota_holds_pods_back_and_the_job_asks_again(plane: ControlPlane) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": {"pods": 1}}}
    plane.create(quota)
    started(plane)
    events = plane.request("GET", "/api/v1/namespaces/default/events")["items"]
    [refusal] = [event["message"] for event in events if event["reason"] == "FailedCreate"]
    assert "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1" in refusal
    hard = {"spec": {"hard": {"pods": 2}}}
    plane.request("PATCH", "/api/v1/namespaces/default/resourcequotas/small", hard, "application/merge-patch+json")
    plane.after(5)
    assert plane.indexes("run") == [0, 1]


def test_pods_without_room_wait_and_say_why(plane: ControlPlane) -> None:
    started(plane, 2, container={"resources": {"limits": {"nvidia.com/gpu": 1}}})
    waiting = condition(plane.pods("run")[0], "PodScheduled")
    assert (waiting["status"], waiting["reason"]) == ("False", "Unschedulable")
    assert waiting["message"] == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def test_a_waiting_pod_that_is_deleted_is_gone_at_once(plane: ControlPlane) -> None:
    started(plane, 2, container={"resources": {"limits": {"nvidia.com/gpu": 1}}})
    plane.suspend("run")
    plane.after(0)
    assert plane.pods("run") == []


@pytest.mark.parametrize(
    ("version", "has_policies"), [("1.28", (False, False)), ("1.30", (True, False)), ("1.31", (True, True))]
)
def test_an_older_server_drops_newer_fields_without_a_word(version: str, has_policies: tuple[bool, bool]) -> None:
    plane = ControlPlane(version=version)
    body = job(successPolicy=SUCCESS_POLICY)
    if version == "1.28":  # its schema does not have the newest at all
        with refused(400, 'unknown field "spec.successPolicy"'):
            plane.create(body)
        del body["spec"]["successPolicy"]
    plane.create(body)
    spec = plane.job("run")["spec"]
    assert spec["podFailurePolicy"] == FAILURE_POLICY
    # What a server fills in for a field that is off is left out of its answers as well.
    assert ("successPolicy" in spec) == has_policies[1]
