"""The API over HTTPS: paths, verbs, tokens and `Status` objects as a real API server has them."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from kubernetes_cluster.access import access_review, check_access, unauthorized
from kubernetes_cluster.admission import admit_change, admit_new
from kubernetes_cluster.errors import ApiError, Object, bad_request
from kubernetes_cluster.garbage import delete_object
from kubernetes_cluster.jobs import grace_of, has_ended, set_condition
from kubernetes_cluster.kinds import JOB, KINDS, POD, Kind
from kubernetes_cluster.patches import patched
from kubernetes_cluster.requests import Target, is_selected, target_of, verb_of
from kubernetes_cluster.schemas import decode
from kubernetes_cluster.store import Store, name_of

_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PUBLIC = ("/version", "/healthz", "/livez", "/readyz")


class Api:
    """Answers requests; knows nothing of HTTP."""

    def __init__(self, store: Store, log_of: Callable[[Object], Path], version: str, *, has_queues: bool) -> None:
        """`log_of`: the file of what a pod has written; `has_queues`: whether Kueue's webhook is there."""
        self._store, self._log_of, self._version, self._has_queues = store, log_of, version, has_queues

    def respond(
        self, user: str | None, method: str, path: str, query: dict[str, str], body: Any, content_type: str
    ) -> Any:
        """Return an object, or text. Raises `ApiError`."""
        with self._store.lock:
            if path in _PUBLIC:
                return self._version_info() if path == "/version" else "ok"
            if user is None:
                raise unauthorized()
            if path == _REVIEW:
                return access_review(self._store, user, body)
            if (resources := self._discovery(path)) is not None:
                return resources
            target = target_of(path)
            verb = verb_of(method, target, query)
            check_access(self._store, user, verb, target.kind, target.namespace, target.name, target.subresource)
            return self._act(verb, target, query, body, content_type)

    def changes(self, target: Target, query: dict[str, str], since: int) -> tuple[int, list[Object]]:
        """Wait shortly for changes after a version; return the version reached and the changes that are asked for."""
        with self._store.lock:
            if self._store.version <= since:
                self._store.changed.wait(0.5)
            found = [change for change in self._store.changes if change.version > since]
            return self._store.version, [
                {"type": change.verb, "object": change.object}
                for change in found
                if _is_meant(change.kind, change.object, target) and is_selected(change.object, query)
            ]

    @property
    def version(self) -> int:
        """The store's version."""
        return self._store.version

    def _act(self, verb: str, target: Target, query: dict[str, str], body: Any, content_type: str) -> Any:
        kind, namespace, name, subresource = target
        if verb == "list":
            items = [found for found in self._store.all(kind, namespace or None) if is_selected(found, query)]
            metadata = {"resourceVersion": str(self._store.version)}
            return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}
        if verb == "create" and not subresource:
            return self._create(kind, namespace, query, body)
        if verb == "deletecollection":
            for found in self._store.all(kind, namespace or None):
                if is_selected(found, query):
                    self._delete(kind, found, query, body)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        current = self._store.get(kind, namespace, name)
        if subresource == "log":
            return self._log(current, query)
        if subresource == "eviction":
            return self._evict(current, body or {})
        if verb == "get":
            return current
        if verb == "delete":
            return self._delete(kind, current, query, body)
        new = patched(current, body, content_type) if verb == "patch" else body
        return self._change(kind, current, new, query, is_status=subresource == "status")

    def _create(self, kind: Kind, namespace: str, query: dict[str, str], body: Object) -> Object:
        actual = (body.get("apiVersion"), body.get("kind"))
        if actual != (kind.api_version, kind.kind):
            raise bad_request(f"the API version or kind in the data ({actual}) is not {kind.api_version}, {kind.kind}")
        object_namespace = body.get("metadata", {}).get("namespace", namespace)
        if kind.is_namespaced and object_namespace != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if kind.is_namespaced:
            self._store.get(KINDS["namespaces"], "", namespace)
        decode(kind, body, self._version, field_validation=query.get("fieldValidation", "Warn"))
        new = admit_new(self._store, kind, namespace, body, self._version, has_queues=self._has_queues)
        return new if query.get("dryRun") == "All" else self._store.create(kind, namespace, new)

    def _change(self, kind: Kind, current: Object, new: Object, query: dict[str, str], *, is_status: bool) -> Object:
        decode(kind, new, self._version, field_validation=query.get("fieldValidation", "Warn"))
        changed = admit_change(kind, current, new, is_status=is_status)
        return changed if query.get("dryRun") == "All" else self._store.replace(kind, current, changed)

    def _delete(self, kind: Kind, current: Object, query: dict[str, str], body: Any) -> Object:
        options = (body or {}) | query
        # A Job's own pods stay by default: so old clients expect it of batch/v1.
        policy = options.get("propagationPolicy", "Orphan" if kind is JOB else "Background")
        grace_s = options.get("gracePeriodSeconds")
        delete_object(self._store, kind, current, policy=policy, grace_s=None if grace_s is None else float(grace_s))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": name_of(current)}}

    def _evict(self, pod: Object, eviction: Object) -> Object:
        if not has_ended(pod):
            with self._store.editing(POD, pod):
                reason, message = "EvictionByEvictionAPI", "Eviction API: evicting"
                set_condition(self._store, pod, "DisruptionTarget", "True", reason, message)
        grace_s = (eviction.get("deleteOptions") or {}).get("gracePeriodSeconds", grace_of(pod))
        self._store.delete(POD, pod, grace_s=grace_s)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _log(self, pod: Object, query: dict[str, str]) -> str:
        statuses = pod["status"].get("containerStatuses", [])
        if "nodeName" not in pod["spec"]:
            raise bad_request(f"pod {name_of(pod)} does not have a host assigned")
        if not statuses or "waiting" in statuses[0]["state"]:
            container = pod["spec"]["containers"][0]["name"]
            why = statuses[0]["state"]["waiting"]["reason"] if statuses else "ContainerCreating"
            raise bad_request(f'container "{container}" in pod "{name_of(pod)}" is waiting to start: {why}')
        lines = self._log_of(pod).read_text(errors="replace").splitlines(keepends=True)
        number = int(query["tailLines"]) if "tailLines" in query else len(lines)
        return "".join(lines[len(lines) - min(number, len(lines)) :])

    def _version_info(self) -> Object:
        major, _, minor = self._version.partition(".")
        return {"major": major, "minor": minor, "gitVersion": f"v{self._version}.0"}

    def _discovery(self, path: str) -> Object | None:
        if path.rstrip("/") == "/apis":
            groups = sorted({kind.group for kind in KINDS.values() if kind.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": group} for group in groups]}
        prefix, _, version = path.rstrip("/").rpartition("/")
        group = prefix.removeprefix("/apis/") if prefix.startswith("/apis/") else ""
        kinds = [kind for kind in KINDS.values() if (kind.group, kind.version) == (group, version)]
        if prefix not in ("/api", f"/apis/{group}") or not kinds:
            return None
        resources = [{"name": kind.resource, "kind": kind.kind, "namespaced": kind.is_namespaced} for kind in kinds]
        return {"kind": "APIResourceList", "groupVersion": kinds[0].api_version, "resources": resources}


class ApiServer:
    """Serves an `Api` on loopback, in threads of this process."""

    def __init__(self, api: Api, users: dict[str, str], certificate: Path) -> None:
        """`users`: who has which token; `certificate`: a file of a key and its certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api, users))
        self._server.daemon_threads = True
        # The handshake waits until a thread of its own reads: a slow client must not keep others out.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="kubernetes-api")
        self._thread.start()

    def stop(self) -> None:
        """Answer no more requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(api: Api, users: dict[str, str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            content_type = self.headers.get("Content-Type", "application/json").partition(";")[0]
            try:
                body = self._body(content_type)
                if query.get("watch") in ("1", "true"):
                    self._watch(users.get(token), url.path, query)
                    return
                response = api.respond(users.get(token), self.command, url.path, query, body, content_type)
                code = 201 if self.command == "POST" else 200
                content = response.encode() if isinstance(response, str) else json.dumps(response).encode()
            except ApiError as error:
                code, response, content = error.code, {}, json.dumps(error.status()).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(response, str) else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

        def _body(self, content_type: str) -> Any:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not content:
                return None
            try:
                return yaml.safe_load(content) if content_type == "application/yaml" else json.loads(content)
            except ValueError as error:
                raise bad_request(f"the object provided is unrecognized: {error}") from error

        def _watch(self, user: str | None, path: str, query: dict[str, str]) -> None:
            """Send changes as they come, one JSON line each, until the client leaves or its time is over."""
            listed = api.respond(user, "GET", path, {k: v for k, v in query.items() if k != "watch"}, None, "")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in self._events(target_of(path), query, listed):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def _events(self, target: Target, query: dict[str, str], listed: Object) -> Iterator[Object]:
            if "resourceVersion" in query:
                since = int(query["resourceVersion"])
            else:
                since = int(listed["metadata"]["resourceVersion"])
                yield from ({"type": "ADDED", "object": found} for found in listed.get("items", []))
            for _ in range(2 * int(query.get("timeoutSeconds", 30))):
                since, events = api.changes(target, query, since)
                yield from events

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    return Handler


def _is_meant(kind: Kind, found: Object, target: Target) -> bool:
    namespace = found["metadata"].get("namespace", "")
    return kind is target.kind and target.namespace in ("", namespace) and target.name in ("", name_of(found))
