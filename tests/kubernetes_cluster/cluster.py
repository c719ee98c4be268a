"""A whole cluster in this process: `KubernetesCluster`.

    with KubernetesCluster(folder, images={"assay:1": checkout_image()}, num_nodes=3) as cluster:
        cluster.write_kubeconfig(path)
        pod, = cluster.pods("my-job", index=0)
        cluster.evict(pod)

What it has is what a client sees over HTTPS with a token. What it lacks: ports of Services that differ from those of
their pods, probes, more than one container in a pod, restarts in place, PodDisruptionBudgets and priorities.
"""

import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

import yaml

from kubernetes_cluster.access import ADMIN, service_account_user
from kubernetes_cluster.certificate import write_certificate
from kubernetes_cluster.errors import Object
from kubernetes_cluster.garbage import GarbageCollector
from kubernetes_cluster.jobs import JobController
from kubernetes_cluster.kinds import NODE
from kubernetes_cluster.kubelet import Image, Kubelets
from kubernetes_cluster.nodes import Nodes, new_node
from kubernetes_cluster.operator import Operator
from kubernetes_cluster.queue import Queue
from kubernetes_cluster.quota import QuotaController
from kubernetes_cluster.server import Api, ApiServer
from kubernetes_cluster.store import Store, name_of
from kubernetes_cluster.timing import Timing
from kubernetes_cluster.workloads import WorkloadController

VERSION = "1.36"
_LOOK_S = 0.05


def missing_part() -> str | None:
    """What this machine lacks to run pods as processes; None where nothing."""
    for program in ("unshare", "setpriv"):
        if shutil.which(program) is None:
            return f"the program {program} is not installed (Debian's package util-linux)"
    command = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "hostname", "pod-0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"namespaces cannot be made: {done.stderr.strip()}; root can"


class Controller(Protocol):
    """Brings the cluster nearer to what its objects say."""

    def sync(self) -> None:
        """Look at all objects once."""


class KubernetesCluster(Operator):
    """An API server, controllers and nodes. Enter it to start, leave it to stop and kill all."""

    def __init__(
        self, folder: Path, images: Mapping[str, Image] = {}, *, num_nodes: int = 2, version: str = VERSION,
        scale: float = 0.05, queue_slots: int | None = None, allocatable: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        """`scale` shortens the time constants; with `queue_slots` there is a Kueue of as many pods."""
        self.folder, timing = folder, Timing(scale)
        self.store = Store()
        self.nodes = Nodes(self.store, timing)
        self.kubelets = Kubelets(self.store, self.nodes, folder, images)
        self.queue = None if queue_slots is None else Queue(self.store, queue_slots)
        self._controllers: list[Controller] = [
            JobController(self.store, timing, version),
            GarbageCollector(self.store, timing),
            self.nodes,
            self.kubelets,
            QuotaController(self.store),
            WorkloadController(self.store, version),
        ]
        if self.queue is not None:
            self._controllers.append(self.queue)
        self.users = {secrets.token_hex(16): ADMIN}
        api = Api(self.store, self.kubelets.log_of, version, has_queues=self.queue is not None)
        super().__init__(self.store, api)
        self._api = api
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes-controllers")
        self.failure: BaseException | None = None
        with self.store.lock:
            self.create_namespace("default")
            for number in range(1, num_nodes + 1):
                room = {"pods": "4", "cpu": "64", "memory": "64Gi"} | dict(allocatable)
                self.store.create(NODE, "", new_node(f"node-{number}", room))

    def __enter__(self) -> "KubernetesCluster":
        certificate = self.folder / "server.pem"
        public = write_certificate(certificate)
        self._server = ApiServer(self._api, self.users, certificate)
        self.kubelets.api_certificate = public
        self.kubelets.api_environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._server.port),
        }  # fmt: skip
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        self._server.stop()
        self.kubelets.stop()
        if error is None and self.failure is not None:
            raise self.failure

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"https://127.0.0.1:{self._server.port}"

    @property
    def token(self) -> str:
        """The token of somebody who may do everything."""
        return next(token for token, user in self.users.items() if user == ADMIN)

    def write_kubeconfig(self, path: Path, *, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig of one context."""
        authority = path.with_suffix(".crt")
        authority.write_bytes(self.kubelets.api_certificate)
        server = {"server": self.url, "certificate-authority": str(authority)}
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "contexts": [{"name": "test", "context": context}],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
        }))  # fmt: skip
        return path

    def token_of(self, account: str, namespace: str = "default") -> str:
        """Return a new token of a service account."""
        token = secrets.token_hex(16)
        self.users[token] = service_account_user(namespace, account)
        return token

    def execute(self, pod: Object, *command: str) -> str:
        """Run a command in a pod, as `kubectl exec` does; return its output and errors. Raises for a failure."""
        with self.store.lock:
            pid = self.kubelets.container_of(pod).pid()
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        environment = dict(variable.split("=", 1) for variable in variables if variable)
        entered = ["nsenter", f"--target={pid}", "--mount", "--uts", "--pid", *command]
        done = subprocess.run(entered, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command} in {name_of(pod)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def run_out_of_memory(self, pod: Object) -> None:
        """Kill a pod as the kernel does when it uses more memory than its limit."""
        with self.store.lock:
            container = self.kubelets.container_of(pod)
            container.end_reason = "OOMKilled"
            container.kill()

    def kill_node(self, node: str) -> None:
        """End a node without a word: its processes die, and nothing is heard of it."""
        with self.store.lock:
            self.nodes.silence(node)
            self.kubelets.kill_pods_of(node)

    def revive_node(self, node: str) -> None:
        """Start a killed node again."""
        with self.store.lock:
            self.nodes.revive(node)

    def add_node(self, name: str, allocatable: Mapping[str, str] = {}) -> None:
        """Add a node that is ready."""
        room = {"pods": "4", "cpu": "64", "memory": "64Gi"} | dict(allocatable)
        with self.store.lock:
            self.store.create(NODE, "", new_node(name, room))

    def wait_until(self, is_so: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
        """Poll; fails after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while not is_so():
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < deadline_s, f"waited {timeout_s:.0f} s for {what}\n{self.logs()}"
            time.sleep(_LOOK_S)

    def logs(self) -> str:
        """The last lines of all pods, for a person."""
        files = sorted(self.folder.glob("*.log"), key=lambda file: file.stat().st_mtime)
        lines = [(file.stem, line) for file in files for line in file.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(f"{name}: {line}" for name, line in lines)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_LOOK_S):
                with self.store.lock:
                    for controller in self._controllers:
                        controller.sync()
                    self._know_tokens()
        except BaseException as error:
            self.failure = error
            raise

    def _know_tokens(self) -> None:
        for account, token in self.kubelets.tokens.items():
            self.users[token] = service_account_user(*account.split(":"))
