"""What kubernetes/ deploys works together: database, server and worker train a job of the API on pods."""

import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
import yaml

from assay.launchers.kubernetes.client import Object
from integration.test_serving import create
from kubernetes_cluster.cluster import KubernetesCluster, missing_part
from kubernetes_cluster.kubelet import Image, checkout_image
from kubernetes_run import IMAGE, MANIFESTS
from ray_cluster import loopback_only
from served import write_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
POSTGRES = """\
#!/bin/sh
set -e
mkdir -p "$PGDATA" "$PGHOST"
chown postgres "$PGDATA" "$PGHOST"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf %s "$POSTGRES_PASSWORD" > "$PGHOST/password"
  runuser -u postgres -- initdb -D "$PGDATA" -U "$POSTGRES_USER" -A scram-sha-256 -E UTF8 --pwfile="$PGHOST/password"
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  runuser -u postgres -- pg_ctl -D "$PGDATA" -w -o "-c listen_addresses= -c unix_socket_directories=$PGHOST" start
  PGPASSWORD=$POSTGRES_PASSWORD createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
  runuser -u postgres -- pg_ctl -D "$PGDATA" -w stop
fi
exec runuser -u postgres -- postgres -D "$PGDATA" -c listen_addresses="$(hostname)" -c unix_socket_directories="$PGHOST"
"""
"""What the entrypoint of the image postgres:17 does. Pods share a host, so it listens on the pod's own address."""


@pytest.fixture
def cluster(tmp_path: Path, requires: Callable[..., None], postgres_programs: Path) -> Iterator[KubernetesCluster]:
    """A cluster with all that docs/kubernetes.md applies, in a network of its own: the server has a fixed port."""
    missing = missing_part()
    requires("netns", missing is None, missing or "")
    (entrypoint := tmp_path / "postgres.sh").write_text(POSTGRES)
    entrypoint.chmod(0o755)
    environment = {"PATH": f"{postgres_programs}:{os.defpath}:/usr/sbin", "PGHOST": "/var/lib/postgresql/data/sockets"}
    assay = Image(checkout_image().environment, ("assay",), folder="/assay")
    images = {IMAGE: assay, "postgres:17": Image(environment, (str(entrypoint),))}
    write_models(tmp_path / "volumes" / "default" / "assay" / "models")
    with loopback_only(), KubernetesCluster(tmp_path, images) as cluster:
        secrets = {
            "assay-database": {"password": "hush"},
            "assay": {"ASSAY_LEDGER": "postgresql://assay:hush@assay-database/assay"},
        }
        for name, data in secrets.items():
            cluster.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
        text = "".join(file.read_text() for file in sorted(MANIFESTS.glob("*.yaml")))
        cluster.create(*yaml.safe_load_all(text.replace("IMAGE", IMAGE)))
        yield cluster


def test_a_job_of_the_api_trains_on_pods_and_is_in_the_database(cluster: KubernetesCluster) -> None:
    wait_for_probe(cluster, "assay-database", "readinessProbe")
    worker = wait_for_probe(cluster, "assay-worker", "livenessProbe")
    key = cluster.execute(worker, "assay", "serve", "key", "create", "--project", "default").split()[0]
    server = wait_for_probe(cluster, "assay-serve", "readinessProbe")
    assert passes_probe(cluster, server, "livenessProbe")

    sdk = openai.OpenAI(base_url=f"http://{server['status']['podIP']}:8017/v1", api_key=key, max_retries=0)
    job = create(sdk, n_epochs=1)
    is_over = lambda: sdk.fine_tuning.jobs.retrieve(job.id).status in ("succeeded", "failed")  # noqa: E731
    cluster.wait_until(is_over, "the job's end", timeout_s=240)
    assert sdk.fine_tuning.jobs.retrieve(job.id).status == "succeeded", cluster.logs()
    listed = cluster.execute(worker, "assay", "runs", "show", job.id)
    assert "Kubernetes Job default/assay-" in listed
    query = "SELECT count(*) FROM attempts"
    database = pods_of(cluster, "assay-database")[0]
    assert cluster.execute(database, "env", "PGPASSWORD=hush", "psql", "-U", "assay", "-Atc", query).strip() == "1"


def wait_for_probe(cluster: KubernetesCluster, app: str, probe: str) -> Object:
    """Wait until the probe of an app's pod succeeds, and return the pod."""
    cluster.wait_until(
        lambda: any(passes_probe(cluster, pod, probe) for pod in pods_of(cluster, app)),
        f"{app}'s {probe}",
        timeout_s=90,
    )
    return pods_of(cluster, app)[0]


def pods_of(cluster: KubernetesCluster, app: str) -> list[Object]:
    path = f"/api/v1/namespaces/default/pods?labelSelector=app.kubernetes.io/name={app}"
    return [pod for pod in cluster.request("GET", path)["items"] if pod["status"]["phase"] == "Running"]


def passes_probe(cluster: KubernetesCluster, pod: Object, name: str) -> bool:
    """Whether a probe of the pod succeeds, as its node would find."""
    [container] = pod["spec"]["containers"]
    probe = container[name]
    try:
        if "exec" in probe:
            cluster.execute(pod, *probe["exec"]["command"])
        else:
            target = probe["httpGet"]
            urllib.request.urlopen(
                f"http://{pod['status']['podIP']}:{target['port']}{target['path']}", timeout=5
            ).close()
    except (AssertionError, KeyError, OSError):
        return False
    return True
