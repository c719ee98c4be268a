"""Jobs that are pickled, run elsewhere and return pickled results give the dataset of this process."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.base.errors import AssayError, ConfigError, DataError, NotInstalledError
from assay.cli.main import main
from assay.data.pools import cluster, spark
from assay.data.pools.cluster import WorkerNeeds, check_worker, cluster_pool
from assay.data.pools.pool import JOBS_AHEAD, ThreadPool, run_jobs
from assay.data.pools.remote import check_reachable, packed, run_packed, unpacked, worker_error
from datasets_elsewhere import check_commands


@contextmanager
def pickling_pool(_: str | None, jobs: int) -> Iterator[ThreadPool]:
    with ThreadPool(jobs, lambda work, job: unpacked(run_packed(packed(work, job)))) as pool:
        yield pool


def test_commands_on_workers_write_what_they_write_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "spark_pool", pickling_pool)
    monkeypatch.chdir(tmp_path)
    check_commands(("--on", "spark"), lambda: None, num_rows=600, rows_per_shard=100)


def test_the_check_reads_the_first_file_of_a_pattern_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def plain_pool(_: str | None, jobs: int) -> Iterator[ThreadPool]:
        with ThreadPool(jobs) as pool:
            yield pool

    seen: list[WorkerNeeds] = []
    monkeypatch.setattr(spark, "spark_pool", plain_pool)
    monkeypatch.setattr(cluster, "check_worker", seen.append)
    (tmp_path / "rows.txt").write_text("abc\n")
    with cluster_pool("spark", None, 1, reads=[tmp_path / "*.txt", tmp_path], writes=tmp_path / "a" / "b"):
        pass
    assert seen[0].num_bytes == {tmp_path / "rows.txt": 4, tmp_path: None}
    assert seen[0].probe is not None and seen[0].probe.parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["rows.txt"]


def test_a_worker_that_lacks_something_says_what(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    check_worker(WorkerNeeds(cluster._versions(), {tmp_path / "rows.jsonl": 2, tmp_path: None}, tmp_path))
    host = socket.gethostname()
    for needs, message in (
        (WorkerNeeds({"pyarrow": "1.0"}, {}, None), rf"{host} has pyarrow [\d.]+, and this machine 1.0"),
        (WorkerNeeds({"assay.data": "0"}, {}, None), "has assay.data"),
        (WorkerNeeds({}, {tmp_path / "elsewhere": 3}, None), r"does not see .*elsewhere"),
        (WorkerNeeds({}, {tmp_path / "rows.jsonl": 3}, None), r"does not see .*rows.jsonl as it is"),
        (WorkerNeeds({}, {}, tmp_path / "elsewhere" / "probe"), r"must not write there. Choose an --out"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_worker(needs)


def fail(error: Exception) -> None:
    raise error


def test_errors_for_the_user_are_results_and_others_are_left_to_the_engine() -> None:
    with pytest.raises(DataError, match="line 3"):
        unpacked(run_packed(packed(fail, (DataError("line 3"),))))
    with pytest.raises(OSError, match="away"):
        run_packed(packed(fail, (OSError("away"),)))
    assert "lack the Python package pyarrow" in str(worker_error("Spark", "x\nNo module named 'pyarrow.lib'\n"))
    assert isinstance(worker_error("Ray", "a\n  Worker died. \n"), AssayError)
    assert "could not run a job: Worker died." in str(worker_error("Ray", "a\n  Worker died. \n"))


def test_results_do_not_pile_up() -> None:
    numbers: list[int] = []
    with ThreadPool(2) as pool:
        results = run_jobs(pool, numbers.append, [(n,) for n in range(100)])
        next(results)
        assert len(numbers) <= 2 * JOBS_AHEAD + 1
        assert len(list(results)) == 99
    assert sorted(numbers) == list(range(100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cluster", "spark://a:7077"], "--cluster spark://a:7077 needs an engine"),
        (["--on", "spark"], "pip install 'assay[spark]'"),
        (["--on", "ray"], "pip install 'assay[ray]'"),
    ],
)
def test_an_engine_that_is_not_there_is_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,label\na,1\n")
    with pytest.raises(SystemExit) as ended:
        fields = ["--text", "text", "--label", "label", "--tokenizer", "new:300"]
        main(["data", "build", "rows.csv", *fields, "--out", "out", *options])
    assert (ended.value.code, capsys.readouterr().err.count(message)) == (2, 1)
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]


def test_java_and_a_master_are_looked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalledError, match="needs Java 17"):
        spark._check_java()
    with pytest.raises(ConfigError, match=r"does not answer \(Connection refused\)"):
        check_reachable("Spark", "spark://127.0.0.1:1,127.0.0.1:2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable("Spark", f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")
    for address in ("local[2]", "local-cluster[2,1,1024]", "yarn", "k8s://https://host", ""):
        check_reachable("Spark", address)
