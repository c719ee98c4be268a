"""A pool on Spark's executors: each job is one task of `mapInArrow`."""

import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from assay.base.errors import AssayError, ConfigError, NotInstalledError
from assay.data.pools.pool import Job, ThreadPool, Work
from assay.data.pools.remote import check_reachable, packed, run_packed, unpacked, worker_error

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SETTLE_S, FIRST_EXECUTOR_S = 2.0, 30.0
"""Time without another executor after which all are there; and until there is one."""


@contextmanager
def spark_pool(master: str | None, jobs: int) -> Iterator[ThreadPool]:
    """Start a Spark application, on the master of Spark's own configuration unless one is given."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotInstalledError("--on spark needs PySpark: pip install 'assay[spark]'.") from error
    _check_java()
    check_reachable("Spark", master or "")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("assay data").config("spark.ui.showConsoleProgress", "false")
    try:
        session = (builder.master(master) if master else builder).getOrCreate()
    except Exception as error:
        raise ConfigError(
            f"Spark did not start: {_first_line(error)} Its log above has the reason; Spark 4 needs Java 17 or newer."
        ) from error
    try:
        session.sparkContext.setLogLevel("ERROR")  # a lost executor fills pages with warnings
        threads = max(jobs, _num_slots(session.sparkContext))
        with warnings.catch_warnings(), ThreadPool(threads, lambda work, job: _call(session, work, job)) as pool:
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # none of its frames is used
            yield pool
    finally:
        session.stop()


def _num_slots(context: "SparkContext") -> int:
    """Return the slots of all executors, which come one after the other, once their number stands still."""
    found, begin = (0, 0), time.monotonic()
    since = begin
    while (now := time.monotonic()) - since < SETTLE_S or (found[0] < 2 and now - begin < FIRST_EXECUTOR_S):
        # The driver counts as one, and in local mode it is all.
        executors = 2 if context._jsc.sc().isLocal() else context._jsc.sc().getExecutorMemoryStatus().size()
        if (current := (executors, context.defaultParallelism)) != found:
            found, since = current, now
        time.sleep(0.1)
    return found[1]


def _call(session: "SparkSession", work: Work, job: Job) -> Any:
    frame = session.createDataFrame(pa.table({"job": [packed(work, job)]})).coalesce(1)
    try:
        rows = frame.mapInArrow(_run_batches, "result binary").collect()
    except Exception as error:
        raise _clear_error(str(error)) from error
    return unpacked(rows[0][0])


def _run_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for job in batch.column(0).to_pylist():
            yield pa.record_batch({"result": [run_packed(job)]})


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if not (java.is_file() if java else shutil.which("java")):
        raise NotInstalledError(
            f"--on spark needs Java 17 or newer on this machine, and {java or 'java'} is not there. Install one "
            "(Debian: openjdk-17-jre-headless), or set JAVA_HOME."
        )


def _clear_error(text: str) -> AssayError:
    python = os.environ["PYSPARK_PYTHON"]
    if "PYTHON_VERSION_MISMATCH" in text or "Cannot run program" in text:
        version = ".".join(map(str, sys.version_info[:2]))
        return ConfigError(
            f"Spark's executors do not find {python}, or it is not Python {version} there, as here. Set PYSPARK_PYTHON "
            f"to a Python {version} with assay that has the same path on every executor."
        )
    return worker_error("Spark", text)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
