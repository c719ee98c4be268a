"""The stand-in's API, as clients see it: HTTPS, tokens, roles, codes and messages."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.errors import ApiError, Object
from kubernetes_cluster.manifests import headless_service, job

JOBS = "/apis/batch/v1/namespaces/default/jobs"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def call(cluster: KubernetesCluster) -> Call:
    """Send a request; return the code and the answer."""
    context = ssl.create_default_context(cadata=cluster.kubelets.api_certificate.decode())

    def send(method: str, path: str, body: Any = None, *, token: str | None = None, type_: str = "application/json"):
        headers = {"Authorization": f"Bearer {cluster.token if token is None else token}", "Content-Type": type_}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(cluster.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    return send


def test_an_object_can_be_made_read_listed_changed_and_deleted(call: Call) -> None:
    code, created = call("POST", JOBS, job())
    assert (code, created["metadata"]["namespace"]) == (201, "default")
    assert call("GET", f"{JOBS}/run")[1]["metadata"]["uid"] == created["metadata"]["uid"]
    assert [found["metadata"]["name"] for found in call("GET", JOBS)[1]["items"]] == ["run"]
    code, changed = call("PATCH", f"{JOBS}/run", {"metadata": {"annotations": {"step": "7"}}}, type_=MERGE)
    assert (code, changed["metadata"]["annotations"]) == (200, {"step": "7"})
    assert call("DELETE", f"{JOBS}/run?propagationPolicy=Background")[0] == 200
    assert call("GET", f"{JOBS}/run") == (404, {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": 'jobs.batch "run" not found', "details": {"name": "run", "group": "batch", "kind": "jobs"},
    })  # fmt: skip


def test_a_name_is_taken_once(call: Call) -> None:
    call("POST", JOBS, job())
    code, status = call("POST", JOBS, job())
    assert (code, status["reason"], status["message"]) == (409, "AlreadyExists", 'jobs.batch "run" already exists')


def test_a_change_of_an_older_version_is_refused(call: Call) -> None:
    _, created = call("POST", JOBS, job())
    call("PATCH", f"{JOBS}/run", {"spec": {"suspend": True}}, type_=MERGE)
    stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "spec": {"suspend": False}}
    code, status = call("PATCH", f"{JOBS}/run", stale, type_=MERGE)
    assert (code, status["reason"]) == (409, "Conflict")
    assert "the object has been modified" in status["message"]


def test_a_json_patch_applies_as_a_whole_or_not_at_all(call: Call) -> None:
    call("POST", JOBS, job())
    grow = [
        {"op": "test", "path": "/spec/parallelism", "value": 2},
        {"op": "replace", "path": "/spec/parallelism", "value": 3},
        {"op": "replace", "path": "/spec/completions", "value": 3},
    ]
    assert call("PATCH", f"{JOBS}/run", grow, type_=JSON_PATCH)[1]["spec"]["completions"] == 3
    assert call("PATCH", f"{JOBS}/run", grow, type_=JSON_PATCH)[0] == 422
    assert call("PATCH", f"{JOBS}/run", grow, type_="application/xml")[0] == 415


def test_a_namespace_that_is_not_there_has_no_room_for_objects(call: Call) -> None:
    code, status = call("POST", "/apis/batch/v1/namespaces/team/jobs", job())
    assert (code, status["message"]) == (404, 'namespaces "team" not found')
    assert call("GET", "/apis/batch/v1/namespaces/team/jobs")[1]["items"] == []


def test_a_request_without_a_known_token_is_refused(call: Call) -> None:
    assert call("GET", JOBS, token="stranger")[0] == 401
    code, status = call("GET", JOBS, token="")
    assert (code, status["reason"], status["message"]) == (401, "Unauthorized", "Unauthorized")
    assert call("GET", "/version", token="")[1]["gitVersion"] == "v1.36.0"


def test_a_role_allows_what_it_names_in_its_namespace(call: Call, cluster: KubernetesCluster) -> None:
    token = cluster.token_of("runner")
    code, status = call("POST", JOBS, job(), token=token)
    assert (code, status["message"]) == (403, (
        'jobs.batch is forbidden: User "system:serviceaccount:default:runner" cannot create resource "jobs" in API '
        'group "batch" in the namespace "default"'
    ))  # fmt: skip
    cluster.create(*role("runner", "create", "get"))
    assert call("POST", JOBS, job(), token=token)[0] == 201
    assert call("GET", f"{JOBS}/run", token=token)[0] == 200
    assert call("DELETE", f"{JOBS}/run", token=token)[0] == 403
    cluster.create_namespace("team")
    assert call("POST", "/apis/batch/v1/namespaces/team/jobs", job(), token=token)[0] == 403


def test_a_role_may_be_of_one_object_and_a_binding_is_of_one_namespace(call: Call, cluster: KubernetesCluster) -> None:
    token = cluster.token_of("runner")
    own, binding = role("runner", "get", "patch")
    own["rules"][0]["resourceNames"] = ["run"]
    cluster.create(job(), job("other"), own, binding)
    assert call("GET", f"{JOBS}/run", token=token)[0] == 200
    assert call("GET", f"{JOBS}/other", token=token)[0] == 403
    cluster.create_namespace("team")
    cluster.create(own | {"kind": "ClusterRole", "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
    cluster.create(binding | {"roleRef": binding["roleRef"] | {"kind": "ClusterRole"}}, namespace="team")
    assert call("GET", "/apis/batch/v1/namespaces/team/jobs", token=token)[0] == 200
    assert call("GET", f"{JOBS}/other", token=token)[0] == 403


def test_one_may_ask_what_one_may_do(call: Call, cluster: KubernetesCluster) -> None:
    cluster.create(*role("runner", "create"))

    def may(verb: str) -> bool:
        attributes = {"namespace": "default", "verb": verb, "group": "batch", "resource": "jobs"}
        review = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return call("POST", path, review, token=cluster.token_of("runner"))[1]["status"]["allowed"]

    assert (may("create"), may("delete")) == (True, False)


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.37"])
def test_three_versions_name_unknown_fields_when_asked_strictly(tmp_path: Path, version: str) -> None:
    with KubernetesCluster(tmp_path, version=version) as cluster:
        cluster.create(job(), headless_service())
        wrong = job("other") | {"metadata": {"name": "other", "lables": {}}}
        message = refusal(cluster, f"{JOBS}?fieldValidation=Strict", wrong)
        assert message == (
            'Job in version "v1" cannot be handled as a Job: strict decoding error: unknown field "metadata.lables"'
        )


def refusal(cluster: KubernetesCluster, path: str, body: Object) -> str:
    with pytest.raises(ApiError) as error:
        cluster.request("POST", path, body)
    return str(error.value)


def test_unless_asked_strictly_unknown_fields_are_dropped(call: Call) -> None:
    code, created = call("POST", JOBS, job(paralelism=4))
    assert (code, "paralelism" in created["spec"]) == (201, False)


def test_a_value_of_another_type_is_refused(call: Call) -> None:
    code, status = call("POST", JOBS, job(parallelism="2"))
    assert (code, status["message"].partition("json: ")[2]) == (
        400, "cannot unmarshal string into Go struct field JobSpec.spec.parallelism of type int32",
    )  # fmt: skip


def test_a_dry_run_checks_and_stores_nothing(call: Call) -> None:
    assert call("POST", f"{JOBS}?dryRun=All", job())[0] == 201
    assert call("POST", f"{JOBS}?dryRun=All", job(backoffLimit=-1))[0] == 422
    assert call("GET", JOBS)[1]["items"] == []


def test_lists_can_be_narrowed_by_labels_and_fields(call: Call) -> None:
    for name in ("one", "two"):
        service = headless_service(name)
        service["metadata"]["labels"] = {"run": name, "app": "assay"}
        call("POST", "/api/v1/namespaces/default/services", service)

    def names(selector: str) -> list[str]:
        return [found["metadata"]["name"] for found in call("GET", f"/api/v1/services?{selector}")[1]["items"]]

    assert names("labelSelector=app%3Dassay,run!%3Done") == ["two"]
    assert names("fieldSelector=metadata.name%3Done") == ["one"]
    assert names("labelSelector=absent") == []


def test_a_watch_tells_of_changes(call: Call, cluster: KubernetesCluster) -> None:
    context = ssl.create_default_context(cadata=cluster.kubelets.api_certificate.decode())
    url = f"{cluster.url}{JOBS}?watch=1&timeoutSeconds=5"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {cluster.token}"})
    with urllib.request.urlopen(request, context=context, timeout=10) as stream:
        call("POST", JOBS, job())
        event = json.loads(stream.readline())
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "run")


@pytest.mark.parametrize("name", ["1st", "run.a", "Run"])
def test_a_service_may_not_have_every_name(call: Call, name: str) -> None:
    code, status = call("POST", "/api/v1/namespaces/default/services", headless_service(name))
    assert (code, "a DNS-1035 label must consist of" in status["message"]) == (422, True)


def test_an_unknown_path_is_told_apart_from_an_unknown_object(call: Call) -> None:
    unknown = "the server could not find the requested resource"
    for path in ("/apis/kueue.x-k8s.io/v1/namespaces/default/workloads", "/apis/batch/v2/jobs", "/x"):
        assert call("GET", path)[1]["message"] == unknown
    assert {found["name"] for found in call("GET", "/apis/batch/v1")[1]["resources"]} == {"jobs"}


def role(account: str, *verbs: str) -> list[Object]:
    """A role that allows verbs on Jobs, bound to a service account."""
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]
    return [
        {
            "apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": account},
            "rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": list(verbs)}],
        },
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": account}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
        },
    ]  # fmt: skip
