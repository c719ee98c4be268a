"""Calls of jobs on the workers of Spark or Ray.

job --(pickled)--> thread of this process --> task of the engine --> run_packed on a worker --> result
|
a lost worker: the engine runs the task again
"""

import os
import pickle
import re
import socket
from typing import Any

from assay.base.errors import AssayError, ConfigError
from assay.data.pools.pool import Job, Work

CONNECT_S = 10.0


def check_reachable(engine: str, address: str) -> None:
    """Raise `ConfigError` if no HOST:PORT of an address answers; the engines themselves try for minutes."""
    reason = ""
    for host, port in re.findall(r"([^,/]+):(\d+)", address):
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
            return
        except OSError as error:
            reason = error.strerror or str(error)
    if reason:
        raise ConfigError(f"{address}: {engine} does not answer ({reason}). Check the address, or start the cluster.")


def packed(work: Work, job: Job) -> bytes:
    """Pickle a call for `run_packed`."""
    return pickle.dumps((work, job))


def run_packed(data: bytes) -> bytes:
    """Run a call on a worker. Errors for the user are results, because an engine would try the job again."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    work, job = pickle.loads(data)
    try:
        return pickle.dumps((work(*job), None))
    except AssayError as error:
        return pickle.dumps((None, error))


def unpacked(data: bytes) -> Any:
    """Return the result of `run_packed`, or raise its error."""
    result, error = pickle.loads(data)
    if error is not None:
        raise error
    return result


def worker_error(engine: str, text: str) -> AssayError:
    """Return the error of a job that failed on every worker that tried it; `text`: what the engine reports."""
    if missing := re.search(r"No module named '([\w.]+)'", text):
        package = missing[1].partition(".")[0]
        return ConfigError(
            f"{engine}'s workers lack the Python package {package}. Install assay and its needs there, in the same "
            "versions as here."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return AssayError(
        f"{engine} could not run a job: {lines[-1] if lines else 'no reason given'}. The workers' logs have the whole "
        "error. The same command goes on with what is not done."
    )
