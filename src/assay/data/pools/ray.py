"""A pool on a Ray cluster: each job is one task."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assay.base.errors import ConfigError, NotInstalledError
from assay.data.pools.pool import Job, ThreadPool, Work
from assay.data.pools.remote import check_reachable, packed, run_packed, unpacked, worker_error

MAX_RETRIES = 5
"""Attempts at a job whose worker dies."""


@contextmanager
def ray_pool(address: str | None, jobs: int) -> Iterator[ThreadPool]:
    """Connect to a Ray cluster: that of $RAY_ADDRESS or of this machine unless one is given."""
    try:
        import ray
    except ImportError as error:
        raise NotInstalledError("--on ray needs Ray: pip install 'assay[ray]'.") from error
    check_reachable("Ray", address or os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"no Ray cluster at {address or 'auto'}: {reason} Start one, or name it.") from error
    task = ray.remote(max_retries=MAX_RETRIES)(run_packed)

    def call(work: Work, job: Job) -> Any:
        try:
            result = ray.get(task.remote(packed(work, job)))
        except ray.exceptions.RayError as error:
            raise worker_error("Ray", str(error)) from error
        return unpacked(result)

    try:
        with ThreadPool(max(jobs, int(ray.cluster_resources().get("CPU", 1))), call) as pool:
            yield pool
    finally:
        ray.shutdown()
