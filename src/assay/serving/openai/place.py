"""What every route is given: where things lie, and who asks."""

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
from assay.serving.admin.accounts import AccountShelf, AccountState
from assay.serving.admin.projects import ProjectShelf
from assay.serving.admin.spend import ChargedThings
from assay.serving.base_models import BaseModelFile
from assay.serving.batches.batches import BatchShelf, BatchState
from assay.serving.engines.pool import EnginePool
from assay.serving.engines.sources import ModelNames
from assay.serving.evals.evals import EvalShelf, EvalState
from assay.serving.evals.runs import EvalRunShelf, EvalRunState
from assay.serving.files import FileShelf, FileState
from assay.serving.graders import GraderDesk
from assay.serving.idempotency_keys import AskedFor, Repeats
from assay.serving.job import JobState
from assay.serving.jobs import JobShelf
from assay.serving.keys import KeyShelf
from assay.serving.openai.declared import declared_query
from assay.serving.openai.job_table import JobTable
from assay.serving.permissions import PermissionShelf
from assay.serving.queue.limits import ProjectLimits
from assay.serving.queue.standing import QueueView
from assay.serving.quota import ProjectStorage
from assay.serving.refusal import RefusedError
from assay.serving.retention import CheckpointKeeper, StoreOfRun
from assay.serving.uploads import UploadShelf, UploadState
from assay.serving.webhooks.outbox import Outbox
from assay.serving.webhooks.webhooks import WebhookState
from assay.store.objects import ObjectStore

ResultT = TypeVar("ResultT")
MAX_KEY = 255
PROJECT = "assay.project"
"""Where a request's scope names the project of its client."""
ASKER = "assay.asker"
"""Where it names the id of its key; empty where there are no keys."""
DEFAULT_PROJECT = "default"
"""The project of whoever asks without a key."""


class Place(NamedTuple):
    """One server's things."""

    files: FileShelf
    jobs: JobShelf
    keys: KeyShelf
    projects: ProjectShelf
    accounts: AccountShelf
    charged: ChargedThings
    limits: ProjectLimits
    queue: QueueView
    graders: GraderDesk
    storage: ProjectStorage
    models: Mapping[str, BaseModelFile]
    clock: Clock
    job_repeats: Repeats[JobEntry, JobState]
    file_repeats: Repeats[FileEntry, FileState]
    uploads: UploadShelf
    upload_repeats: Repeats[UploadEntry, UploadState]
    account_repeats: Repeats[ServiceAccountEntry, AccountState]
    outbox: Outbox
    webhook_repeats: Repeats[WebhookEntry, WebhookState]
    webhook_hosts: Sequence[str]
    """Hosts that webhooks may have though they are not public."""
    evals: EvalShelf
    eval_repeats: Repeats[EvalEntry, EvalState]
    eval_runs: EvalRunShelf
    eval_run_repeats: Repeats[EvalRunEntry, EvalRunState]
    batches: BatchShelf
    batch_repeats: Repeats[BatchEntry, BatchState]
    permissions: PermissionShelf
    names: ModelNames
    keeper: CheckpointKeeper
    job_table: JobTable
    engines: EnginePool | None = None
    """None: nothing is answered by models."""

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
        """What lies in a store. `judge`: the endpoint that model-graded graders ask. `store_of_run`: where the
        checkpoints of jobs lie; None where none do. `job_table`: the file of the table of jobs, see there.
        `project_bytes`: what a project may keep."""
        files, jobs = FileShelf(store, clock), JobShelf(store, clock)
        uploads = UploadShelf(store, files, clock)
        outbox = Outbox(store, clock)
        evals, eval_runs = EvalShelf(store, clock), EvalRunShelf(store, clock)
        batches, permissions = BatchShelf(store, clock), PermissionShelf(store, clock)
        projects, accounts = ProjectShelf(store, clock), AccountShelf(store, clock)
        charged = ChargedThings(jobs.shelf, eval_runs.shelf, batches.shelf)
        limits = ProjectLimits(charged, projects, clock)
        return cls(
            files,
            jobs,
            KeyShelf(store, clock),
            projects,
            accounts,
            charged,
            limits,
            QueueView(jobs, limits, clock),
            GraderDesk(judge),
            ProjectStorage(files, uploads, clock, project_bytes),
            models,
            clock,
            Repeats(jobs.shelf, JobClaimed, clock),
            Repeats(files.shelf, FileClaimed, clock),
            uploads,
            Repeats(uploads.shelf, UploadClaimed, clock),
            Repeats(accounts.shelf, ServiceAccountClaimed, clock),
            outbox,
            Repeats(outbox.webhooks.shelf, WebhookClaimed, clock),
            webhook_hosts,
            evals,
            Repeats(evals.shelf, EvalClaimed, clock),
            eval_runs,
            Repeats(eval_runs.shelf, EvalRunClaimed, clock),
            batches,
            Repeats(batches.shelf, BatchClaimed, clock),
            permissions,
            ModelNames(models, jobs, permissions, projects),
            CheckpointKeeper(store_of_run, clock),
            JobTable(jobs, job_table),
            engines,
        )


def project_of(request: Request) -> str:
    """The project in which everything that is asked for is looked up."""
    return str(request.scope[PROJECT])


def asker_of(request: Request) -> str:
    """The id of the key that asks."""
    return str(request.scope[ASKER])


def asked_for(request: Request, sha256: str) -> AskedFor:
    """A request to make something, as the SDK repeats it; `sha256`: of what it asks for."""
    count = request.headers.get("x-stainless-retry-count", "0")
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise RefusedError(f"An Idempotency-Key has 1 to {MAX_KEY} characters.", code="invalid_value")
    is_count = count.isascii() and count.isdigit() and len(count) < 4
    return AskedFor(project_of(request), sha256, int(count) if is_count else 0, key)


async def still_asked_for(request: Request, sha256: str) -> AskedFor:
    """Likewise, by a client that is there. One that is gone has asked again, or will: were its first request
    done behind the repeat, which found nothing, there would be two."""
    if await request.is_disconnected():
        raise ClientDisconnect
    return asked_for(request, sha256)


async def while_connected(request: Request, work: Awaitable[ResultT]) -> ResultT:
    """The result of work that holds what others wait for: cancelled where the client hangs up. To be called
    once the request has been read to its end."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect_of(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect_of(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def query_of(request: Request, *names: str) -> Mapping[str, str]:
    """What stands behind the path's question mark; anything but what the route declares, and `names`, is
    refused."""
    names = (*names, *declared_query(request))
    given = request.query_params.multi_items()
    for name, _ in given:
        if sum(name == other for other, _ in given) > 1:
            raise RefusedError(f"The parameter '{name:.80}' is given twice.", param=name, code="invalid_value")
        if name not in names and not (name.startswith("metadata[") and "metadata" in names):
            raise RefusedError(
                f"Unknown parameter: '{name:.80}'. It is not honoured, so it is refused rather than ignored.",
                param=name,
                code="unknown_parameter",
            )
    return dict(request.query_params)
