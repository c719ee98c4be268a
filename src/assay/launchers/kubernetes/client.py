"""A small client of the Kubernetes API: JSON over HTTPS.

The credentials are those of a pod's service account, whose token expires and is read again at each request, or of a
kubeconfig: a token, a client certificate, or a program that prints one of them.
"""

import base64
import http.client
import json
import os
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from assay.base.errors import ConfigError, TrainingError

Object = dict[str, Any]
"""An object of the API, as JSON."""

POD_CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 20.0
MERGE_PATCH = "application/merge-patch+json"
UNSUPPORTED = {"tls-server-name", "proxy-url", "auth-provider", "username"}
"""Keys of a kubeconfig; urllib's own proxy variables are heeded."""


class ApiServerError(TrainingError):
    """The API server rejected a request; the message is the server's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"Kubernetes: {message}")
        self.code = code


class NoCredentialsError(ConfigError):
    """No cluster is configured here."""


class ApiServer(NamedTuple):
    """An API server with credentials."""

    server: str
    """Its URL."""
    namespace: str
    """Namespace of the pod or of the context; `default` if it names none."""
    tls: ssl.SSLContext
    token: Callable[[], str]
    """Returns the current bearer token; empty if a client certificate is used."""

    def request(self, method: str, path: str, body: Object | None = None) -> Object:
        """Send a request; raises `ApiServerError` for a rejection, `TrainingError` if the server does not respond."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server}{path}", data=data, method=method)
        request.add_header("Accept", "application/json")
        if data is not None:
            request.add_header("Content-Type", MERGE_PATCH if method == "PATCH" else "application/json")
        if token := self._current_token():
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self.tls))
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                found: Object = json.loads(response.read() or b"{}")
                return found
        except urllib.error.HTTPError as error:
            raise ApiServerError(error.code, _message(error)) from error
        except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = getattr(error, "reason", error)
            raise TrainingError(f"{self.server}: the Kubernetes API does not respond: {reason}") from error

    def _current_token(self) -> str:
        """Return the token; raises an error that does not quote it."""
        try:
            token = self.token()
        except (OSError, UnicodeDecodeError) as error:
            raise TrainingError(f"{self.server}: the token for the Kubernetes API cannot be read: {error}") from error
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(f"{self.server}: the token for the Kubernetes API has characters that no token has.")
        return token

    def find(self, path: str) -> Object | None:
        """Return an object, or None if there is no such object."""
        try:
            return self.request("GET", path)
        except ApiServerError as error:
            if error.code == 404:
                return None
            raise


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {text.strip()[:300] or error.reason}"


def find_cluster(context: str | None = None, *, server: str | None = None) -> ApiServer:
    """Return the cluster of this pod or of a kubeconfig's context: by default, the current one.

    `server`: prefer the context of this server, which a launch has recorded. Raises `NoCredentialsError` if nothing
    is configured.
    """
    files = os.environ.get("KUBECONFIG")
    is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (POD_CREDENTIALS / "token").is_file()
    if is_pod and context is None and not files:
        return _pod_cluster(os.environ)
    paths = [Path(text) for text in (files or str(Path.home() / ".kube" / "config")).split(os.pathsep) if text]
    config = _read_kubeconfigs(paths)
    try:
        return _configured_cluster(config, context, server)
    except (AttributeError, KeyError, TypeError) as error:  # e.g. a number instead of a URL
        raise ConfigError(f"{', '.join(map(str, paths))}: this is not a kubeconfig: {error!r}") from error


def _pod_cluster(environment: Mapping[str, str]) -> ApiServer:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    return ApiServer(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=(POD_CREDENTIALS / "namespace").read_text().strip(),
        tls=ssl.create_default_context(cafile=str(POD_CREDENTIALS / "ca.crt")),
        token=lambda: (POD_CREDENTIALS / "token").read_text().strip(),
    )


def _read_kubeconfigs(paths: list[Path]) -> Object:
    """Return the merged files as names -> values; the first file that sets a name counts."""
    import yaml

    merged: Object = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for path in paths:
        if not path.is_file():
            continue
        try:
            loaded = yaml.safe_load(path.read_text()) or {}
            merged["current-context"] = merged["current-context"] or loaded.get("current-context") or ""
            for section in ("clusters", "users", "contexts"):
                for item in loaded.get(section) or ():
                    value = {**(item.get(section[:-1]) or {}), "folder": path.parent}
                    merged[section].setdefault(item["name"], value)
        except (yaml.YAMLError, AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: this is not a kubeconfig: {error}") from error
    if not merged["contexts"]:
        files = ", ".join(map(str, paths))
        raise NoCredentialsError(
            f"no Kubernetes cluster is configured: {files} has no context, and this is not a pod with a service "
            "account. Set KUBECONFIG, or run this where 'kubectl get jobs' works."
        )
    return merged


def _configured_cluster(config: Object, context: str | None, server: str | None) -> ApiServer:
    servers = {name: config["clusters"].get(value.get("cluster"), {}) for name, value in config["contexts"].items()}
    name = context or config["current-context"]
    if server is not None and servers.get(name, {}).get("server", "").rstrip("/") != server:
        name = next((other for other, value in servers.items() if value.get("server", "").rstrip("/") == server), name)
    if name not in servers:
        known = ", ".join(servers)
        raise ConfigError(f"the kubeconfig has no context '{name}'. There is: {known}. Choose one with --context.")
    cluster, chosen = servers[name], config["contexts"][name]
    if "server" not in cluster:
        raise ConfigError(f"the kubeconfig's context '{name}' names no cluster with a server.")
    if urlsplit(cluster["server"]).scheme not in ("http", "https"):
        raise ConfigError(f"the kubeconfig's context '{name}': its server '{cluster['server']}' is no HTTPS address.")
    user = config["users"].get(chosen.get("user"), {})
    if unsupported := sorted(UNSUPPORTED & {*cluster, *user}):
        raise ConfigError(
            f"the kubeconfig's context '{name}' uses {', '.join(unsupported)}, which assay does not support."
        )
    credentials = {**user, **_printed_credentials(user)}
    try:
        tls = _tls(cluster)
        _load_client_certificate(tls, credentials)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the kubeconfig's context '{name}': its certificates cannot be read: {error}") from error
    return ApiServer(
        cluster["server"].rstrip("/"), chosen.get("namespace") or "default", tls, _token_reader(credentials)
    )


def _tls(cluster: Object) -> ssl.SSLContext:
    if authority := cluster.get("certificate-authority-data"):
        tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    else:
        path = cluster.get("certificate-authority")
        tls = ssl.create_default_context(cafile=str(cluster["folder"] / path) if path else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


def _token_reader(user: Object) -> Callable[[], str]:
    if "tokenFile" in user:
        path = user["folder"] / user["tokenFile"]
        return lambda: str(path.read_text().strip())
    return lambda: str(user.get("token") or "")


def _load_client_certificate(tls: ssl.SSLContext, user: Object) -> None:
    """Load the certificate; `ssl` reads files only, so embedded data is written to files that are removed."""
    with tempfile.TemporaryDirectory() as private:
        paths = {name: user["folder"] / user[name] for name in ("client-certificate", "client-key") if name in user}
        for name in ("client-certificate", "client-key"):
            if data := user.get(f"{name}-data"):
                paths[name] = Path(private) / name
                paths[name].write_bytes(base64.b64decode(data))
        if len(paths) == 2:
            tls.load_cert_chain(certfile=paths["client-certificate"], keyfile=paths["client-key"])


def _printed_credentials(user: Object) -> Object:
    """Run the program that a cloud's kubeconfig names, and return the token or certificate that it prints."""
    if not (program := user.get("exec")):
        return {}
    path = program["command"]
    command = [str(user["folder"] / path) if os.sep in path else path, *(program.get("args") or ())]
    variables = {item["name"]: item["value"] for item in program.get("env") or ()}
    info = {"kind": "ExecCredential", "apiVersion": program.get("apiVersion"), "spec": {"interactive": False}}
    environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        status = json.loads(done.stdout)["status"] if done.returncode == 0 else None
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{command[0]}, which the kubeconfig names for credentials: {error}") from error
    if status is None:
        raise ConfigError(f"{command[0]}, which the kubeconfig names for credentials, failed: {done.stderr.strip()}")
    found = {"token": status.get("token")}
    for name, key in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData")):
        if text := status.get(key):
            found[f"{name}-data"] = base64.b64encode(text.encode()).decode()
    return found
