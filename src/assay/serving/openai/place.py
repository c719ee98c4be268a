"""What every route is given: where things lie, and who asks."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from fastapi import Request

from assay.base.clock import Clock
from assay.records.fine_tuning_job import JobClaimed, JobEntry
from assay.records.uploaded_file import FileClaimed, FileEntry
from assay.serving.base_models import BaseModelFile
from assay.serving.engines.pool import EnginePool
from assay.serving.files import FileShelf, FileState
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.serving.keys import KeyShelf
from assay.serving.refusal import RefusedError
from assay.serving.repeats import AskedFor, Repeats
from assay.store.objects import ObjectStore

MAX_KEY = 255
PROJECT = "assay.project"
"""Where a request's scope names the project of its client."""
DEFAULT_PROJECT = "default"
"""The project of whoever asks without a key."""


class Place(NamedTuple):
    """One server's things."""

    files: FileShelf
    jobs: JobShelf
    keys: KeyShelf
    models: Mapping[str, BaseModelFile]
    clock: Clock
    job_repeats: Repeats[JobEntry, JobState]
    file_repeats: Repeats[FileEntry, FileState]
    engines: EnginePool | None = None
    """None: nothing is answered by models."""

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        models: Mapping[str, BaseModelFile],
        clock: Clock,
        engines: EnginePool | None = None,
    ) -> Self:
        """What lies in a store."""
        files, jobs = FileShelf(store, clock), JobShelf(store, clock)
        return cls(
            files,
            jobs,
            KeyShelf(store, clock),
            models,
            clock,
            Repeats(jobs.shelf, lambda at_s, count: JobClaimed(at_s=at_s, retry_count=count), clock),
            Repeats(files.shelf, lambda at_s, count: FileClaimed(at_s=at_s, retry_count=count), clock),
            engines,
        )


def project_of(request: Request) -> str:
    """The project in which everything that is asked for is looked up."""
    return str(request.scope[PROJECT])


def asked_for(request: Request, sha256: str) -> AskedFor:
    """A request to make something, as the SDK repeats it; `sha256`: of what it asks for."""
    count = request.headers.get("x-stainless-retry-count", "0")
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise RefusedError(f"An Idempotency-Key has 1 to {MAX_KEY} characters.", code="invalid_value")
    is_count = count.isascii() and count.isdigit() and len(count) < 4
    return AskedFor(project_of(request), sha256, int(count) if is_count else 0, key)


def query_of(request: Request, *names: str) -> Mapping[str, str]:
    """What stands behind the path's question mark; anything but `names` is refused."""
    for name in request.query_params:
        if name not in names and not (name.startswith("metadata[") and "metadata" in names):
            raise RefusedError(
                f"Unknown parameter: '{name:.80}'. It is not honoured, so it is refused rather than ignored.",
                param=name,
                code="unknown_parameter",
            )
    return dict(request.query_params)
