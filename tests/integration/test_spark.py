"""Datasets that Spark builds are those of one machine, also where an executor dies (`make test-spark`)."""

import importlib.util
import os
import shutil
import signal
import sys
import venv
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from assay.base.errors import ConfigError, DataError, NotInstalledError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.pools.cluster import WorkerNeeds, check_worker, cluster_pool
from datasets_elsewhere import check_commands
from ray_cluster import loopback_only

pytestmark = pytest.mark.timeout(1_800)
MASTER = "local-cluster[2,1,1024]"
"""Two executors, processes of their own."""
ENGINE = ("--on", "spark", "--cluster", MASTER)


@pytest.fixture(scope="module", autouse=True)
def spark(requires: Callable[[str, bool, str], None]) -> Iterator[None]:
    """Spark on this machine, which sees no other."""
    missing = "java" if shutil.which("java") is None else "pyspark"
    is_installed = missing == "pyspark" and importlib.util.find_spec("pyspark") is not None
    requires("spark", is_installed, f"{missing} is not installed; 'make test-spark' has PySpark")
    with pytest.MonkeyPatch.context() as patch, loopback_only():
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("PYSPARK_PYTHON", raising=False)
        yield


def executors() -> list[int]:
    """The process ids of the executors of this process's application."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_bytes()

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    return [pid for pid, command in commands.items() if b"CoarseGrainedExecutorBackend" in command and is_ours(pid)]


def kill_executor() -> None:
    os.kill(executors()[0], signal.SIGKILL)


@pytest.mark.parametrize(
    ("num_rows", "rows_per_shard"),
    [(20_000, 1_000), pytest.param(1_000_000, 50_000, marks=pytest.mark.soak)],
)
def test_a_dataset_is_that_of_one_machine_where_an_executor_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int, rows_per_shard: int
) -> None:
    monkeypatch.chdir(tmp_path)
    check_commands(ENGINE, kill_executor, num_rows=num_rows, rows_per_shard=rows_per_shard)


def test_an_error_in_a_row_and_a_worker_that_cannot_do_it_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": "\\ud800"}\n' * 2)
    config = BuildConfig(tokenizer="new:300", rows_per_shard=1)
    with cluster_pool("spark", MASTER, 2, reads=[tmp_path], writes=tmp_path / "out") as pool:
        assert not list(tmp_path.glob("*assay*"))
        with pytest.raises(DataError, match=r"rows.jsonl: line 2: .*UTF-8"):
            build_dataset([tmp_path / "rows.jsonl"], tmp_path / "out", config, pool=pool)
        assert not (tmp_path / "out").exists()
        for needs, message in (
            (WorkerNeeds({"pyarrow": "1.0"}, {}, None), r"has pyarrow [\d.]+, and this machine 1.0"),
            (WorkerNeeds({}, {tmp_path / "elsewhere": 3}, None), "does not see .*elsewhere"),
            (WorkerNeeds({}, {tmp_path / "rows.jsonl": 3}, None), "does not see .*rows.jsonl as it is"),
            (WorkerNeeds({}, {}, tmp_path / "elsewhere" / "probe"), "must not write there. Choose an --out"),
        ):
            with pytest.raises(ConfigError, match=message):
                list(pool.map(check_worker, [(needs,)]))


def test_executors_that_lack_python_or_packages_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    for python, message in ((bare / "bin" / "python", "lack the Python package"), (tmp_path / "none", "do not find")):
        monkeypatch.setenv("PYSPARK_PYTHON", str(python))
        with pytest.raises(ConfigError, match=message), cluster_pool("spark", MASTER, 2, reads=[], writes=tmp_path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]


def test_no_java_and_no_master_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigError, match=r"spark://127.0.0.1:1: Spark does not answer \(Connection refused"),
        cluster_pool("spark", "spark://127.0.0.1:1", 2, reads=[]),
    ):
        pass
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalledError, match="needs Java 17"), cluster_pool("spark", MASTER, 2, reads=[]):
        pass
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(NotInstalledError, match="pip install"), cluster_pool("spark", MASTER, 2, reads=[]):
        pass
