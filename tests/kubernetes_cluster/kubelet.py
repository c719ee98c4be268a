"""The nodes' agents: they start pods as processes, end them, and report.

A pod is a process with a mount, UTS and PID namespace of its own: it has its host name, its file of hosts (what the
cluster's DNS would resolve), its volumes, its service account's token, and is process 1, so that a SIGTERM that it
does not handle does nothing. Its address is one of 127.0.0.0/8; what it must not do is listen on all addresses.
"""

import base64
import os
import re
import select
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import has_ended
from kubernetes_cluster.kinds import KINDS, POD, SERVICE
from kubernetes_cluster.nodes import Nodes
from kubernetes_cluster.pod_status import report_end, report_running, report_waiting
from kubernetes_cluster.store import Store, name_of, namespace_of

SECRETS_FOLDER = "/run/secrets/kubernetes.io/serviceaccount"
_ENTER = """\
exec 3<&0 </dev/null
mount --bind "$1" /etc/hosts; hostname "$2"; shift 2
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done
cd "$2"; shift 2
script=$1; shift
exec unshare --pid sh -c '"$@" & exec 3<&-; wait $!; exit $?' \
  sh setpriv --pdeathsig KILL sh -c "mount -t proc proc /proc; $script" sh "$@"
"""
"""Of a shell in new namespaces: hosts file, host name, pairs of folder and mount point, `--`, folder, script of process
1, command. Once the command runs, nobody holds the pipe any more that comes as standard input."""
_ALONE, _SHARED = 'exec "$@" 3<&-', '"$@" 3<&- & exec 3<&-; wait $!'
"""Process 1 of a pod is its container's, or with `shareProcessNamespace` another one."""


class NotReady(Exception):
    """A container cannot start yet."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class NotStarted(Exception):
    """A container cannot start at all."""


class Image:
    """What a container image brings with it."""

    def __init__(self, environment: Mapping[str, str], entrypoint: tuple[str, ...] = (), *, folder: str = "/") -> None:
        self.environment, self.entrypoint, self.folder = dict(environment), entrypoint, folder


def checkout_image() -> Image:
    """What the Containerfile makes of this checkout. It knows no commit: others may commit while a test runs."""
    path = f"{sysconfig.get_path('scripts')}:{os.defpath}"
    environment = {"PATH": path, "LANG": "C.UTF-8", "HOME": "/root", "GIT_DIR": "/nowhere"}
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if source := os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] = source
    return Image(environment, ("assay",))


class Container:
    """A running process of a pod."""

    def __init__(self, process: subprocess.Popen[bytes], started: BinaryIO, *, is_process_1: bool) -> None:
        """`started`: a pipe that ends when the command runs."""
        self.process, self._started, self._is_process_1 = process, started, is_process_1
        self.kill_at_s: float | None = None
        self.end_reason = ""

    def has_started(self) -> bool:
        """Whether the command runs, or has ended."""
        if not self._started.closed and select.select([self._started], [], [], 0)[0]:
            self._started.close()
        return self._started.closed

    def pid(self) -> int:
        """The container's first process."""
        pid = _child_of(self.process.pid)
        return pid if self._is_process_1 else _child_of(pid)

    def terminate(self) -> None:
        """Send SIGTERM to the container's first process."""
        if self.process.poll() is None:
            os.kill(self.pid(), signal.SIGTERM)

    def kill(self) -> None:
        """Kill the container's first process; its end is that of all the others."""
        if self.process.poll() is None:
            os.kill(self.pid(), signal.SIGKILL)

    def close(self) -> None:
        """Kill all and wait for their end."""
        self.kill()
        self.process.wait()
        self._started.close()


def _child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


class Kubelets:
    """The agents of all nodes."""

    def __init__(self, store: Store, nodes: Nodes, folder: Path, images: Mapping[str, Image]) -> None:
        """`folder`: for logs, volumes and files of pods."""
        self._store, self._nodes, self._folder, self.images = store, nodes, folder, images
        self._containers: dict[str, Container] = {}
        self._next_address = 1
        self._mount_points: list[Path] = []
        self.api_environment: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        self.api_certificate = b""

    def sync(self) -> None:
        """Start, signal and report the pods of all nodes that live."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._store.all(POD) if "nodeName" in pod["spec"]}
        for uid, container in list(self._containers.items()):
            if uid not in pods:  # it was deleted without grace
                container.close()
                del self._containers[uid]
        for uid, pod in pods.items():
            if not self._nodes.is_silent(pod["spec"]["nodeName"]):
                self._sync_pod(pod, self._containers.get(uid))
        self._write_hosts()

    def container_of(self, pod: Object) -> Container:
        """The process of a pod that runs."""
        return self._containers[pod["metadata"]["uid"]]

    def log_of(self, pod: Object) -> Path:
        """The file of what the pod has written."""
        return self._folder / f"{namespace_of(pod)}_{name_of(pod)}.log"

    def kill_pods_of(self, node: str) -> None:
        """Kill the processes of a node; nobody reports it."""
        for pod in self._store.all(POD):
            if pod["spec"].get("nodeName") == node and (container := self._containers.get(pod["metadata"]["uid"])):
                container.close()

    def volume(self, namespace: str, claim: str) -> Path:
        """The folder behind a persistent volume claim."""
        folder = self._folder / "volumes" / namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def stop(self) -> None:
        """Kill all pods and remove the mount points that only they needed."""
        for container in self._containers.values():
            container.close()
        for folder in reversed(self._mount_points):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    def _sync_pod(self, pod: Object, container: Container | None) -> None:
        is_deleted = "deletionTimestamp" in pod["metadata"]
        if has_ended(pod):
            if is_deleted:
                self._store.delete(POD, pod)
        elif container is None and is_deleted:
            report_end(self._store, pod, None)
        elif container is None:
            self._start(pod)
        elif not container.has_started():
            return
        elif (code := container.process.poll()) is not None:
            del self._containers[pod["metadata"]["uid"]]
            report_end(self._store, pod, code, container.end_reason, self._last_words(pod, code))
        elif is_deleted:
            self._end(pod, container)
        elif pod["status"]["phase"] == "Pending":
            report_running(self._store, pod)

    def _last_words(self, pod: Object, code: int) -> str:
        """What the pod's status says of its end: by `terminationMessagePolicy` the last of its output."""
        [description] = pod["spec"]["containers"]
        if code == 0 or description["terminationMessagePolicy"] != "FallbackToLogsOnError":
            return ""
        return "".join(self.log_of(pod).read_text(errors="replace").splitlines(keepends=True)[-80:])[-2048:]

    def _end(self, pod: Object, container: Container) -> None:
        if container.kill_at_s is None:
            container.kill_at_s = time.monotonic() + pod["metadata"]["deletionGracePeriodSeconds"]
            container.terminate()
        if time.monotonic() >= container.kill_at_s:
            container.kill()

    def _start(self, pod: Object) -> None:
        [description] = pod["spec"]["containers"]
        try:
            self._containers[pod["metadata"]["uid"]] = self._spawn(pod, description)
        except NotReady as reason:
            report_waiting(self._store, pod, reason.reason, reason.message)
        except NotStarted as error:
            self.log_of(pod).touch()
            report_end(self._store, pod, 128, "StartError", str(error))

    def _spawn(self, pod: Object, description: Object) -> Container:
        image = self.images.get(description["image"])
        if image is None:
            raise NotReady("ErrImagePull", f'failed to pull image "{description["image"]}": not found')
        environment = image.environment | self.api_environment | self._environment(pod, description)
        written = [*(description.get("command") or image.entrypoint), *description.get("args", [])]
        command = [_expanded(word, environment) for word in written]
        if shutil.which(command[0], path=environment["PATH"]) is None:
            raise NotStarted(f'exec: "{command[0]}": executable file not found in $PATH: unknown')
        mounts = [str(path) for pair in self._mounts(pod, description) for path in pair]
        hosts = self._hosts_of(pod)
        hosts.touch()
        is_shared = pod["spec"].get("shareProcessNamespace", False)
        words = [
            str(hosts),
            pod["spec"].get("hostname", name_of(pod)),
            *mounts,
            "--",
            description.get("workingDir", image.folder),
            _SHARED if is_shared else _ALONE,
        ]
        unshare = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--uts"]
        started, held = os.pipe()
        with self.log_of(pod).open("ab") as log:
            process = subprocess.Popen(
                [*unshare, "sh", "-ec", _ENTER, "sh", *words, *command],
                env=environment, stdin=held, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        os.close(held)
        return Container(process, open(started, "rb", buffering=0), is_process_1=not is_shared)  # noqa: PTH123

    def _environment(self, pod: Object, description: Object) -> dict[str, str]:
        if "podIP" not in pod["status"]:
            pod["status"] |= {"podIP": self._address(), "hostIP": "127.0.0.1"}
            pod["status"]["podIPs"] = [{"ip": pod["status"]["podIP"]}]
        values: dict[str, str] = {}
        for source in description.get("envFrom", []):
            for field, resource in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
                if field in source:
                    values |= self._data(pod, resource, source[field]["name"])
        for variable in description.get("env", []):
            if (value := self._value(pod, variable)) is not None:
                values[variable["name"]] = value
        return values

    def _value(self, pod: Object, variable: Object) -> str | None:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable.get("value", ""))
        if "fieldRef" in source:
            return _field(pod, source["fieldRef"]["fieldPath"])
        field = "secretKeyRef" if "secretKeyRef" in source else "configMapKeyRef"
        reference = source[field]
        resource = "secrets" if field == "secretKeyRef" else "configmaps"
        try:
            data = self._data(pod, resource, reference["name"])
            if reference["key"] not in data:
                what = (
                    f"couldn't find key {reference['key']} in {resource[:-1]} {namespace_of(pod)}/{reference['name']}"
                )
                raise NotReady("CreateContainerConfigError", what)
        except NotReady:
            if reference.get("optional"):
                return None
            raise
        return data[reference["key"]]

    def _data(self, pod: Object, resource: str, name: str) -> dict[str, str]:
        found = self._store.find(KINDS[resource], namespace_of(pod), name)
        if found is None:
            raise NotReady("CreateContainerConfigError", f'{resource[:-1]} "{name}" not found')
        data: dict[str, str] = found.get("data", {})
        if resource == "secrets":
            return {key: base64.b64decode(text).decode() for key, text in data.items()}
        return data

    def _mounts(self, pod: Object, description: Object) -> list[tuple[Path, Path]]:
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        mounts = [
            (self._volume(pod, volumes[m["name"]]), Path(m["mountPath"])) for m in description.get("volumeMounts", [])
        ]
        if pod["spec"].get("automountServiceAccountToken", True):
            mounts.append((self._credentials(pod), Path(SECRETS_FOLDER)))
        for _, target in mounts:
            self._make_mount_point(target)
        return mounts

    def _volume(self, pod: Object, volume: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            return self.volume(namespace_of(pod), volume["persistentVolumeClaim"]["claimName"])
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder = self._folder_of(pod, volume["name"])
        for field, resource, name in (("secret", "secrets", "secretName"), ("configMap", "configmaps", "name")):
            if field in volume:
                for key, text in self._data(pod, resource, volume[field][name]).items():
                    (folder / key).write_text(text)
        return folder

    def _credentials(self, pod: Object) -> Path:
        folder = self._folder_of(pod, "credentials")
        account = f"{namespace_of(pod)}:{pod['spec']['serviceAccountName']}"
        (folder / "token").write_text(self.tokens.setdefault(account, base64.b64encode(os.urandom(24)).decode()))
        (folder / "namespace").write_text(namespace_of(pod))
        (folder / "ca.crt").write_bytes(self.api_certificate)
        return folder

    def _folder_of(self, pod: Object, name: str) -> Path:
        folder = self._folder / "pods" / str(pod["metadata"]["uid"]) / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _make_mount_point(self, target: Path) -> None:
        for folder in (*reversed(target.parents), target):
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                # Pods of other test processes have their secrets at the same place.
                if not Path(SECRETS_FOLDER).is_relative_to(folder):
                    self._mount_points.append(folder)

    def _address(self) -> str:
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        self._next_address += 1
        return f"127.0.{1 + worker}.{self._next_address}"

    def _hosts_of(self, pod: Object) -> Path:
        return self._folder / f"{pod['metadata']['uid']}.hosts"

    def _write_hosts(self) -> None:
        """Give each pod the names that the cluster's DNS would resolve for it."""
        pods = [pod for pod in self._store.all(POD) if pod["metadata"]["uid"] in self._containers]
        for pod in pods:
            namespace = namespace_of(pod)
            own = f"127.0.0.1 localhost\n{pod['status']['podIP']} {pod['spec'].get('hostname', name_of(pod))}\n"
            lines = [line for other in pods for line in self._names_of(other, namespace)]
            content = own + "".join(lines) + "".join(self._addresses_of_services(namespace, pods))
            if self._hosts_of(pod).read_text() != content:
                self._hosts_of(pod).write_text(content)

    def _addresses_of_services(self, namespace: str, pods: list[Object]) -> Iterator[str]:
        """Yield the names of Services with an address, which is that of the first pod behind it."""
        for service in self._store.all(SERVICE, namespace):
            behind = [pod for pod in pods if namespace_of(pod) == namespace and _selects(service, pod)]
            if behind and service["spec"].get("clusterIP") != "None":
                yield f"{behind[0]['status']['podIP']} {name_of(service)}\n"

    def _names_of(self, pod: Object, namespace: str) -> list[str]:
        spec, pod_namespace = pod["spec"], namespace_of(pod)
        service = self._store.find(SERVICE, pod_namespace, spec.get("subdomain", ""))
        if service is None or not _selects(service, pod) or "hostname" not in spec:
            return []
        is_published = service["spec"].get("publishNotReadyAddresses") or "deletionTimestamp" not in pod["metadata"]
        name = f"{spec['hostname']}.{spec['subdomain']}"
        full = f"{name}.{pod_namespace}.svc.cluster.local {name}.{pod_namespace}.svc {name}.{pod_namespace}"
        short = f" {name}" if pod_namespace == namespace else ""
        return [f"{pod['status']['podIP']} {full}{short}\n"] if is_published else []


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` of variables that the container has; others stay as they are."""
    return re.sub(r"\$\(([A-Za-z_]\w*)\)", lambda found: environment.get(found[1], found[0]), word)


def _field(pod: Object, path: str) -> str:
    """The downward API: a field of the pod, as text."""
    if "[" in path:
        mapping, _, key = path.removeprefix("metadata.").partition("['")
        return str(pod["metadata"].get(mapping, {}).get(key.removesuffix("']"), ""))
    section, _, name = path.partition(".")
    return str(pod[section].get(name, ""))


def _selects(service: Object, pod: Object) -> bool:
    labels = pod["metadata"].get("labels", {})
    selector = service["spec"].get("selector") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())
