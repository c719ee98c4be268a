"""Datasets that Ray builds are those of one machine, also where a node dies. Needs Ray (`make test-ray`)."""

from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.pools.cluster import WorkerNeeds, check_worker, cluster_pool
from datasets_elsewhere import check_commands
from ray_cluster import ADDRESS, RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ENGINE = ("--on", "ray", "--cluster", ADDRESS)


@pytest.fixture
def ray(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    """With three nodes of one processor each, beside the head that has none."""
    for name, value in ray_cluster.environment.items():
        monkeypatch.setenv(name, value)
    ray_cluster.add_nodes(4 - len(ray_cluster.nodes))
    return ray_cluster


def test_a_dataset_is_that_of_one_machine_where_a_node_is_killed(
    ray: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_commands(ENGINE, lambda: ray.kill(ray.nodes[1]), num_rows=20_000, rows_per_shard=1_000)


def test_an_error_in_a_row_and_a_worker_that_cannot_do_it_are_one_message(ray: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": "\\ud800"}\n' * 2)
    with cluster_pool("ray", ray.environment["RAY_ADDRESS"], 2, reads=[tmp_path], writes=tmp_path) as pool:
        with pytest.raises(DataError, match=r"rows.jsonl: line 2: "):
            config = BuildConfig(tokenizer="new:300", rows_per_shard=1)
            build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", config, pool=pool)
        with pytest.raises(ConfigError, match=r"does not see .*elsewhere"):
            list(pool.map(check_worker, [(WorkerNeeds({}, {tmp_path / "elsewhere": 3}, None),)]))
    with (
        pytest.raises(ConfigError, match=r"127\.0\.0\.1:1: Ray does not answer"),
        cluster_pool("ray", "127.0.0.1:1", 2, reads=[]),
    ):
        pass
