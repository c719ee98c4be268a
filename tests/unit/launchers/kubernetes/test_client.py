"""Which cluster is meant, and with which credentials it is asked; against a stand-in's HTTPS."""

import base64
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.errors import ConfigError, TrainingError
from assay.launchers.kubernetes import client
from assay.launchers.kubernetes.client import ApiServerError, find_cluster
from kubernetes_cluster.cluster import KubernetesCluster
from kubernetes_cluster.manifests import headless_service


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(tmp_path_factory.mktemp("cluster"), num_nodes=0) as started:
        yield started


@pytest.fixture
def config(cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The kubeconfig of the cluster, as it is written; `write` writes another."""
    path = cluster.write_kubeconfig(tmp_path / "config", namespace="team")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return yaml.safe_load(path.read_text())


def write(config: dict[str, Any], path: Path) -> None:
    path.write_text(yaml.safe_dump(config))


def num_accounts() -> int:
    return len(find_cluster().request("GET", "/api/v1/namespaces/default/serviceaccounts")["items"])


def test_a_kubeconfig_names_server_namespace_and_token(config: dict[str, Any], cluster: KubernetesCluster) -> None:
    found = find_cluster()
    assert (found.server, found.namespace) == (cluster.url, "team")
    assert num_accounts() == 1
    assert found.find("/api/v1/namespaces/default/pods/none") is None
    with pytest.raises(ApiServerError, match=r'^Kubernetes: namespaces "none" not found') as error:
        found.request("POST", "/api/v1/namespaces/none/services", headless_service())
    assert error.value.code == 404


def test_tokens_come_from_files_and_programs(
    config: dict[str, Any], cluster: KubernetesCluster, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{cluster.token}\n")
    print_token = tmp_path / "print-token"
    status = f'{{"status": {{"token": "{cluster.token}"}}}}'
    print_token.write_text(f'#!/bin/sh\ntest "$1" = --for && test "$WHO" = me && echo \'{status}\'\n')
    print_token.chmod(0o755)
    program = {"command": "./print-token", "args": ["--for"], "env": [{"name": "WHO", "value": "me"}]}
    for user in ({"tokenFile": "token"}, {"exec": program}):
        config["users"][0]["user"] = user
        write(config, tmp_path / "config")
        assert num_accounts() == 1
    config["users"][0]["user"] = {"exec": {"command": "./print-token", "args": ["--fail"]}}
    write(config, tmp_path / "config")
    with pytest.raises(ConfigError, match=r"print-token, which the kubeconfig names for credentials, failed"):
        find_cluster()


def test_an_embedded_authority_is_trusted_and_no_other(config: dict[str, Any], tmp_path: Path) -> None:
    server = config["clusters"][0]["cluster"]
    authority = Path(server.pop("certificate-authority")).read_bytes()
    server["certificate-authority-data"] = base64.b64encode(authority).decode()
    write(config, tmp_path / "config")
    assert num_accounts() == 1
    del server["certificate-authority-data"]
    write(config, tmp_path / "config")
    with pytest.raises(TrainingError, match=r"does not respond: .*certificate"):
        num_accounts()


def test_a_client_certificate_is_loaded_from_a_file_or_from_data(
    config: dict[str, Any], cluster: KubernetesCluster, tmp_path: Path
) -> None:
    pair = cluster.folder / "server.pem"  # has a key and its certificate
    data = base64.b64encode(pair.read_bytes()).decode()
    user = config["users"][0]["user"]
    for name in ("client-certificate", "client-key"):
        user |= {name: str(pair)}
    write(config, tmp_path / "config")
    assert num_accounts() == 1
    user |= {"client-certificate-data": data, "client-key-data": data}
    write(config, tmp_path / "config")
    assert num_accounts() == 1
    user["client-key-data"] = base64.b64encode(b"no key").decode()
    write(config, tmp_path / "config")
    with pytest.raises(ConfigError, match=r"context 'test': its certificates cannot be read"):
        find_cluster()


def test_what_is_not_supported_is_named(config: dict[str, Any], tmp_path: Path) -> None:
    config["clusters"][0]["cluster"]["proxy-url"] = "http://proxy"
    write(config, tmp_path / "config")
    with pytest.raises(ConfigError, match="uses proxy-url, which assay does not support"):
        find_cluster()


def test_several_files_are_one_and_a_context_can_be_chosen(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = {"name": "other", "context": {"cluster": "test", "user": "test"}}
    write({"contexts": [context], "current-context": "other"}, tmp_path / "second")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'config'}:{tmp_path / 'second'}:{tmp_path / 'none'}")
    assert find_cluster().namespace == "team"
    assert find_cluster("other").namespace == "default"
    with pytest.raises(ConfigError, match=r"no context 'third'. There is: test, other"):
        find_cluster("third")


def test_a_launch_is_looked_for_where_it_was_started(config: dict[str, Any], tmp_path: Path) -> None:
    config["clusters"].append({"name": "far", "cluster": {"server": "https://far:6443/"}})
    config["contexts"].append({"name": "far", "context": {"cluster": "far"}})
    write(config, tmp_path / "config")
    assert find_cluster(server="https://far:6443").server == "https://far:6443"
    assert find_cluster(server="https://gone:6443").server == config["clusters"][0]["cluster"]["server"]


def test_in_a_pod_its_service_account_is_used_and_its_token_read_again(
    cluster: KubernetesCluster, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setattr(client, "POD_CREDENTIALS", tmp_path)
    for name, value in cluster.kubelets.api_environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "ca.crt").write_bytes(cluster.kubelets.api_certificate)
    (tmp_path / "namespace").write_text("team")
    (tmp_path / "token").write_text("expired")
    found = find_cluster()
    assert found.namespace == "team"
    with pytest.raises(ApiServerError, match="Unauthorized"):
        found.request("GET", "/api/v1/namespaces/default/pods")
    (tmp_path / "token").write_text(cluster.token)
    found.request("GET", "/api/v1/namespaces/default/pods")


def test_no_cluster_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no Kubernetes cluster is configured: .*none has no context.*kubectl"):
        find_cluster()
    (tmp_path / "none").write_text("clusters: 3")
    with pytest.raises(ConfigError, match="this is not a kubeconfig"):
        find_cluster()


def test_a_server_that_does_not_answer_is_named(config: dict[str, Any], tmp_path: Path) -> None:
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    write(config, tmp_path / "config")
    with pytest.raises(TrainingError, match=r"https://127.0.0.1:9: the Kubernetes API does not respond"):
        num_accounts()


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("cluster", {"server": "a server"}, r"context 'test': its server 'a server' is no HTTPS address"),
        ("cluster", {"server": 6443}, r"config: this is not a kubeconfig: "),
        ("user", {"exec": {"args": ["none"]}}, r"config: this is not a kubeconfig: KeyError\('command'\)"),
        ("user", {"exec": {"command": "echo", "args": ["[]"]}}, r"config: this is not a kubeconfig: "),
        ("user", {"exec": {"command": "echo", "args": ['{"status": 5}']}}, r"config: this is not a kubeconfig: "),
        ("user", {"tokenFile": "none"}, r"the token for the Kubernetes API cannot be read: .*none"),
    ],
)
def test_a_damaged_kubeconfig_is_one_clear_error(
    config: dict[str, Any], tmp_path: Path, section: str, value: dict[str, Any], message: str
) -> None:
    config[f"{section}s"][0][section] = value
    write(config, tmp_path / "config")
    with pytest.raises((ConfigError, TrainingError), match=message):
        num_accounts()


@pytest.mark.parametrize("token", ["top\nsecret", "top secret ☃"])
def test_a_token_that_is_none_is_not_shown(config: dict[str, Any], tmp_path: Path, token: str) -> None:
    config["users"][0]["user"] = {"token": token}
    write(config, tmp_path / "config")
    with pytest.raises(ConfigError, match="characters that no token has") as error:
        num_accounts()
    assert "secret" not in str(error.value)


def test_a_server_of_another_protocol_is_named(config: dict[str, Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config["clusters"][0]["cluster"]["server"] = url = f"http://127.0.0.1:{server.getsockname()[1]}"
        write(config, tmp_path / "config")

        def greet() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(TrainingError, match=f"{url}: the Kubernetes API does not respond"):
            num_accounts()
