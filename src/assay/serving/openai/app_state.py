"""State of the application that every route gets, and helpers to read requests."""

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import anyio.from_thread
from starlette.requests import ClientDisconnect, Request

from assay.base.clock import Clock
from assay.serving.admin.accounts import AccountRepository
from assay.serving.admin.projects import ProjectRepository
from assay.serving.admin.spend import ChargedResources
from assay.serving.api_error import ApiError
from assay.serving.batches.batches import BatchRepository
from assay.serving.engines.pool import EnginePool
from assay.serving.engines.sources import ModelNames
from assay.serving.evals.evals import EvalRepository
from assay.serving.evals.runs import EvalRunRepository
from assay.serving.files import FileRepository
from assay.serving.graders import GraderService
from assay.serving.idempotency_keys import Retry
from assay.serving.jobs import JobRepository
from assay.serving.keys import KeyRepository
from assay.serving.openai.job_table import JobTable
from assay.serving.permissions import PermissionRepository
from assay.serving.queue.limits import ProjectLimits
from assay.serving.queue.status import QueueView
from assay.serving.quota import ProjectStorage
from assay.serving.retention import CheckpointRetention, StoreOfRun
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.uploads import UploadRepository
from assay.serving.webhooks.outbox import Outbox
from assay.store.objects import ObjectStore

if TYPE_CHECKING:
    from assay.serving.base_models import BaseModelFile

ResultT = TypeVar("ResultT")
BASE_PATH = "/v1"
"""All addresses of the API begin with it."""
MAX_KEY = 255
PROJECT = "assay.project"
"""Scope key: the client's project."""
KEY_ID = "assay.asker"
"""Scope key: the API key's id; empty without keys."""
DEFAULT_PROJECT = "default"
"""Project of requests without a key."""


class AppState(NamedTuple):
    """Repositories and services of one server."""

    files: FileRepository
    uploads: UploadRepository
    jobs: JobRepository
    batches: BatchRepository
    evals: EvalRepository
    eval_runs: EvalRunRepository
    sessions: SessionRepository
    outbox: Outbox
    keys: KeyRepository
    projects: ProjectRepository
    accounts: AccountRepository
    permissions: PermissionRepository
    charged: ChargedResources
    limits: ProjectLimits
    queue: QueueView
    graders: GraderService
    storage: ProjectStorage
    names: ModelNames
    retention: CheckpointRetention
    job_table: JobTable
    models: "Mapping[str, BaseModelFile]"
    clock: Clock
    webhook_hosts: Sequence[str]
    """Hosts that webhooks may use although they are not public."""
    engines: EnginePool | None = None
    """None: no inference."""

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        models: "Mapping[str, BaseModelFile]",
        clock: Clock,
        engines: EnginePool | None = None,
        *,
        judge: str | None = None,
        webhook_hosts: Sequence[str] = (),
        store_of_run: StoreOfRun | None = None,
        job_table: Path | None = None,
        project_bytes: float = math.inf,
    ) -> Self:
        """Return the state for a store.

        `judge`: endpoint for model graders. `store_of_run`: run id -> store of its checkpoints. `job_table`: file of
        the job table. `project_bytes`: storage quota per project.
        """
        files, jobs = FileRepository(store, clock), JobRepository(store, clock)
        uploads, batches = UploadRepository(store, files, clock), BatchRepository(store, clock)
        eval_runs, permissions = EvalRunRepository(store, clock), PermissionRepository(store, clock)
        projects, sessions = ProjectRepository(store, clock), SessionRepository(store, clock)
        charged = ChargedResources(jobs, eval_runs, batches, sessions)
        limits = ProjectLimits(charged, projects, clock)
        return cls(
            files=files,
            uploads=uploads,
            jobs=jobs,
            batches=batches,
            evals=EvalRepository(store, clock),
            eval_runs=eval_runs,
            sessions=sessions,
            outbox=Outbox(store, clock),
            keys=KeyRepository(store, clock),
            projects=projects,
            accounts=AccountRepository(store, clock),
            permissions=permissions,
            charged=charged,
            limits=limits,
            queue=QueueView(jobs, limits, clock),
            graders=GraderService(judge),
            storage=ProjectStorage(files, uploads, clock, project_bytes),
            names=ModelNames(models, jobs, permissions, projects),
            retention=CheckpointRetention(store_of_run, clock),
            job_table=JobTable(jobs, job_table),
            models=models,
            clock=clock,
            webhook_hosts=webhook_hosts,
            engines=engines,
        )


def project_of(request: Request) -> str:
    """Return the project of the request's key."""
    return str(request.scope[PROJECT])


def key_id_of(request: Request) -> str:
    """Return the id of the request's key."""
    return str(request.scope[KEY_ID])


def retry_of(request: Request) -> Retry:
    """Return the retry count and the idempotency key of a create request."""
    count = request.headers.get("x-stainless-retry-count", "0")
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise ApiError(f"An Idempotency-Key must have 1 to {MAX_KEY} characters.", code="invalid_value")
    is_count = count.isascii() and count.isdigit() and len(count) < 4
    return Retry(int(count) if is_count else 0, key)


def connected_retry(request: Request) -> Retry:
    """Likewise, if the client is still connected. Call it in a route's thread.

    A disconnected client retries. Without this check, its first request could create a resource after the retry
    found none and created another.
    """
    if anyio.from_thread.run(request.is_disconnected):
        raise ClientDisconnect
    return retry_of(request)


async def while_connected(request: Request, work: Awaitable[ResultT]) -> ResultT:
    """Return the result of `work`; cancel it if the client disconnects. Call it after reading the body."""
    working, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect_of(request))
    try:
        await asyncio.wait((working, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, disconnect):
            task.cancel()
        await asyncio.gather(working, disconnect, return_exceptions=True)


async def _disconnect_of(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
