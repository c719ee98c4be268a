"""State of the application that every route gets, and helpers to read requests."""

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from assay.base.clock import Clock
from assay.records.batch import BatchClaimed, BatchEntry
from assay.records.chunked_upload import UploadClaimed, UploadEntry
from assay.records.eval_run import EvalClaimed, EvalEntry, EvalRunClaimed, EvalRunEntry
from assay.records.fine_tuning_job import JobClaimed, JobEntry
from assay.records.service_account import ServiceAccountClaimed, ServiceAccountEntry
from assay.records.uploaded_file import FileClaimed, FileEntry
from assay.records.webhook import WebhookClaimed, WebhookEntry
from assay.serving.admin.accounts import AccountRepository, AccountState
from assay.serving.admin.projects import ProjectRepository
from assay.serving.admin.spend import ChargedResources
from assay.serving.api_error import ApiError
from assay.serving.base_models import BaseModelFile
from assay.serving.batches.batches import BatchRepository, BatchState
from assay.serving.engines.pool import EnginePool
from assay.serving.engines.sources import ModelNames
from assay.serving.evals.evals import EvalRepository, EvalState
from assay.serving.evals.runs import EvalRunRepository, EvalRunState
from assay.serving.files import FileRepository, FileState
from assay.serving.graders import GraderService
from assay.serving.idempotency_keys import IdempotencyKeys, IdempotentRequest
from assay.serving.job import JobState
from assay.serving.jobs import JobRepository
from assay.serving.keys import KeyRepository
from assay.serving.openai.job_table import JobTable
from assay.serving.openai.openapi import declared_query
from assay.serving.permissions import PermissionRepository
from assay.serving.queue.limits import ProjectLimits
from assay.serving.queue.status import QueueView
from assay.serving.quota import ProjectStorage
from assay.serving.retention import CheckpointRetention, StoreOfRun
from assay.serving.uploads import UploadRepository, UploadState
from assay.serving.webhooks.outbox import Outbox
from assay.serving.webhooks.webhooks import WebhookState
from assay.store.objects import ObjectStore

ResultT = TypeVar("ResultT")
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
    jobs: JobRepository
    keys: KeyRepository
    projects: ProjectRepository
    accounts: AccountRepository
    charged: ChargedResources
    limits: ProjectLimits
    queue: QueueView
    graders: GraderService
    storage: ProjectStorage
    models: Mapping[str, BaseModelFile]
    clock: Clock
    job_idempotency: IdempotencyKeys[JobEntry, JobState]
    file_idempotency: IdempotencyKeys[FileEntry, FileState]
    uploads: UploadRepository
    upload_idempotency: IdempotencyKeys[UploadEntry, UploadState]
    account_idempotency: IdempotencyKeys[ServiceAccountEntry, AccountState]
    outbox: Outbox
    webhook_idempotency: IdempotencyKeys[WebhookEntry, WebhookState]
    webhook_hosts: Sequence[str]
    """Hosts that webhooks may use although they are not public."""
    evals: EvalRepository
    eval_idempotency: IdempotencyKeys[EvalEntry, EvalState]
    eval_runs: EvalRunRepository
    eval_run_idempotency: IdempotencyKeys[EvalRunEntry, EvalRunState]
    batches: BatchRepository
    batch_idempotency: IdempotencyKeys[BatchEntry, BatchState]
    permissions: PermissionRepository
    names: ModelNames
    retention: CheckpointRetention
    job_table: JobTable
    engines: EnginePool | None = None
    """None: no inference."""

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        models: Mapping[str, BaseModelFile],
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

        `judge`: endpoint for model graders. `store_of_run`: run id -> store of its checkpoints. `job_table`:
        file of the job
        table. `project_bytes`: storage quota per project.
        """
        files, jobs = FileRepository(store, clock), JobRepository(store, clock)
        uploads = UploadRepository(store, files, clock)
        outbox = Outbox(store, clock)
        evals, eval_runs = EvalRepository(store, clock), EvalRunRepository(store, clock)
        batches, permissions = BatchRepository(store, clock), PermissionRepository(store, clock)
        projects, accounts = ProjectRepository(store, clock), AccountRepository(store, clock)
        charged = ChargedResources(jobs.logs, eval_runs.logs, batches.logs)
        limits = ProjectLimits(charged, projects, clock)
        return cls(
            files,
            jobs,
            KeyRepository(store, clock),
            projects,
            accounts,
            charged,
            limits,
            QueueView(jobs, limits, clock),
            GraderService(judge),
            ProjectStorage(files, uploads, clock, project_bytes),
            models,
            clock,
            IdempotencyKeys(jobs.logs, JobClaimed, clock),
            IdempotencyKeys(files.logs, FileClaimed, clock),
            uploads,
            IdempotencyKeys(uploads.logs, UploadClaimed, clock),
            IdempotencyKeys(accounts.logs, ServiceAccountClaimed, clock),
            outbox,
            IdempotencyKeys(outbox.webhooks.logs, WebhookClaimed, clock),
            webhook_hosts,
            evals,
            IdempotencyKeys(evals.logs, EvalClaimed, clock),
            eval_runs,
            IdempotencyKeys(eval_runs.logs, EvalRunClaimed, clock),
            batches,
            IdempotencyKeys(batches.logs, BatchClaimed, clock),
            permissions,
            ModelNames(models, jobs, permissions, projects),
            CheckpointRetention(store_of_run, clock),
            JobTable(jobs, job_table),
            engines,
        )


def project_of(request: Request) -> str:
    """Return the project of the request's key."""
    return str(request.scope[PROJECT])


def key_id_of(request: Request) -> str:
    """Return the id of the request's key."""
    return str(request.scope[KEY_ID])


def idempotent_request(request: Request, sha256: str) -> IdempotentRequest:
    """Return a create request with its retry count and idempotency key. `sha256`: digest of its contents."""
    count = request.headers.get("x-stainless-retry-count", "0")
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise ApiError(f"An Idempotency-Key must have 1 to {MAX_KEY} characters.", code="invalid_value")
    is_count = count.isascii() and count.isdigit() and len(count) < 4
    return IdempotentRequest(project_of(request), sha256, int(count) if is_count else 0, key)


async def connected_request(request: Request, sha256: str) -> IdempotentRequest:
    """Likewise, if the client is still connected.

    A disconnected client retries. Without this check, its first request could create a resource after the retry
    found none and created another.
    """
    if await request.is_disconnected():
        raise ClientDisconnect
    return idempotent_request(request, sha256)


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


def query_of(request: Request, *names: str) -> Mapping[str, str]:
    """Return the query parameters. Raises `ApiError` for parameters that neither the route nor `names` declare."""
    names = (*names, *declared_query(request))
    params = request.query_params.multi_items()
    for name, _ in params:
        if sum(name == other for other, _ in params) > 1:
            raise ApiError(f"The parameter '{name:.80}' is given twice.", param=name, code="invalid_value")
        if name not in names and not (name.startswith("metadata[") and "metadata" in names):
            raise ApiError(
                f"Unknown parameter: '{name:.80}'. It is not honoured, so it is rejected, not ignored.",
                param=name,
                code="unknown_parameter",
            )
    return dict(request.query_params)
