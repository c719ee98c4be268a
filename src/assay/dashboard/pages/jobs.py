"""What the API accepted: fine-tuning jobs, eval runs and batches, with their queue, events and actions.

All values are those of the API's own objects, so a page and a client cannot disagree.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from starlette.responses import RedirectResponse

from assay.base.clock import utc_text
from assay.base.units import age_text
from assay.dashboard.access import Reader, Visit
from assay.dashboard.dashboard import Dashboard, accepted_repository
from assay.dashboard.page import Action, Filter, Page, PageError, path_to
from assay.reporting.document import (
    Cell,
    Document,
    Fact,
    FactList,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Tone,
    Verdict,
    name,
    number,
)
from assay.reporting.values import one_line
from assay.serving.api_error import ApiError
from assay.serving.batches.batches import BatchState
from assay.serving.evals.runs import EvalRunState
from assay.serving.job import JobState, event_cursor, newest_events
from assay.serving.openai.app_state import DEFAULT_PROJECT, AppState
from assay.serving.openai.evals.objects import run_object
from assay.serving.openai.objects import batch_object, checkpoint_object, event_object, job_object

PER_PAGE = 100
KINDS = {"ftjob": "fine-tuning", "evalrun": "eval", "batch": "batch"}
TONES: Mapping[str, Tone] = {
    "failed": "bad", "expired": "bad", "succeeded": "good", "completed": "good", "cancelled": "ended",
    "canceled": "ended", "running": "ended", "in_progress": "ended", "finalizing": "ended",
}  # fmt: skip
"""By status; all others wait for something."""
STATUSES = ("validating_files", "queued", "running", "pausing", "paused", "in_progress", "validating", "finalizing",
            "cancelling", "succeeded", "completed", "failed", "expired", "cancelled", "canceled")  # fmt: skip


NOTHING = (
    "The API of {folder} has accepted nothing yet. Point a client of OpenAI's API at /v1 of this server; 'assay serve "
    "worker' executes what it sends."
)


class Accepted(NamedTuple):
    """A job, an eval run or a batch as the API shows it."""

    project: str
    shape: Mapping[str, Any]

    @property
    def resource_id(self) -> str:
        return str(self.shape["id"])

    @property
    def kind(self) -> str:
        return KINDS[self.resource_id.partition("-")[0]]

    @property
    def status(self) -> str:
        return str(self.shape["status"])

    @property
    def tone(self) -> Tone:
        return TONES.get(self.status, "open")

    @property
    def queue(self) -> Mapping[str, Any]:
        """Place and reason; empty for what does not wait."""
        return self.shape["x_assay"].get("queue") or {}

    def content(self) -> str:
        """Return what is done with which model."""
        if (method := self.shape.get("method")) is not None:
            return f"{method['type']} of {self.shape['model']}"
        return (
            f"{self.shape.get('endpoint') or self.shape.get('name')}, {self.shape['model'] or 'recorded completions'}"
        )

    def progress(self) -> str:
        """Return how much is done of how much."""
        ours = self.shape["x_assay"]
        if "committed_step" in ours:
            return f"step {ours['committed_step']:,}/{ours['total_steps']:,}" if ours["total_steps"] else ""
        counts = self.shape.get("request_counts") or self.shape["result_counts"]
        done = sum(count for key, count in counts.items() if key != "total")
        return f"{done:,}/{counts['total']:,}" if counts["total"] else ""

    def reason(self) -> str:
        """Return the one reason why it waits."""
        return str(self.queue.get("blocked_by") or self.shape["x_assay"].get("blocked_by") or "")


def jobs_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the queue, and the list of all that was accepted, newest first."""
    api, reader = dashboard.api, visit.reader
    kind, status = visit.choice("kind", list(KINDS.values())), visit.choice("status", STATUSES)
    project = visit.choice("project", projects_of(api, reader))
    projects = [project] if project else projects_of(api, reader)
    page_number = visit.page_number()
    found = _newest(api, projects, kind)
    matching = (accepted for accepted in found if status in ("", accepted.status))
    shown = list(islice(matching, (page_number - 1) * PER_PAGE, page_number * PER_PAGE + 1))
    now_s = dashboard.clock.now_s()
    waiting = [line for line in open_jobs(api, projects) if line.queue]
    nothing = "Nothing matches." if visit.query else NOTHING.format(folder=dashboard.home.folder)
    blocks = [TitledTable("", "", _table(shown[:PER_PAGE], reader, now_s)) if shown else Paragraph(nothing)]
    links = [(visit.with_query(page=page_number + 1), "older")] if len(shown) > PER_PAGE else []
    return Page(
        document=Document(
            title="Jobs",
            kind="jobs",
            subtitle="what the API accepted, newest first",
            sections=[
                *([Section("Queue", [queue_table(waiting)])] if waiting and not (kind or status) else []),
                Section("All jobs, evals and batches" if waiting else "", blocks),
            ],
            footer="The same as JSON: GET /v1/fine_tuning/jobs, /v1/evals/ID/runs and /v1/batches",
            links=links,
        ),
        area="Jobs",
        topics=("jobs", "minute"),
        filters=[
            Filter("kind", "Kind", kind, [("", "any"), *((name, name) for name in KINDS.values())]),
            Filter("status", "Status", status, [("", "any"), *((value, value) for value in STATUSES)]),
            *([Filter("project", "Project", project)] if reader.sees_all else []),
        ],
    )


def job_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return a job with its events, or an eval run or batch with its results."""
    api, reader = dashboard.api, visit.reader
    accepted = _accepted(api, reader, visit.path["job_id"])
    if accepted is None:
        raise PageError(404, f"no job '{visit.path['job_id']}' in this project.")
    state = api.jobs.state(accepted.resource_id)
    return Page(
        document=Document(
            title=accepted.resource_id,
            kind=accepted.kind,
            subtitle=f"project {accepted.project}",
            verdict=_verdict(accepted),
            tiles=_tiles(accepted),
            sections=_results(accepted) if state is None else _sections(api, state, accepted, visit),
            footer=f"The same as JSON: {_sources(accepted)}",
        ),
        area="Jobs",
        topics=(f"job:{accepted.resource_id}",),
        actions=[] if accepted.status in ("succeeded", "completed", "failed", "expired") else _actions(accepted),
    )


def act_on_job(dashboard: Dashboard, visit: Visit, *, verb: str) -> RedirectResponse:
    """Pause, resume or cancel what an address names."""
    api, job_id = dashboard.api, visit.path["job_id"]
    accepted = _accepted(api, visit.reader, job_id)
    acts: dict[str, Callable[[str], object]] = {"cancel": accepted_repository(api, job_id).cancel}
    if accepted is not None and accepted.kind == KINDS["ftjob"]:
        acts |= {"pause": api.jobs.pause, "resume": lambda job_id: api.jobs.resume(job_id, _budget(visit))}
    if accepted is None or verb not in acts:
        raise PageError(404, f"no job '{job_id}' in this project that can {verb}.")
    try:
        acts[verb](job_id)
    except ApiError as error:
        raise PageError(error.status, error.message) from error
    return RedirectResponse(path_to("jobs", job_id), 303)


def _budget(visit: Visit) -> float | None:
    text = visit.form.get("budget_device_hours", "").strip()
    try:
        budget = float(text) if text else None
    except ValueError:
        budget = -1.0
    if budget is not None and not 0 < budget < float("inf"):
        raise PageError(400, f"budget_device_hours={text}: expected a number of device-hours above 0.")
    return budget


def _accepted(api: AppState, reader: Reader, resource_id: str) -> Accepted | None:
    """Return a resource that the reader sees, as the API shows it; None if there is none."""
    if (ended := api.job_table.shape(resource_id)) is not None:
        accepted = Accepted(str(ended["organization_id"]), ended)
    else:
        state = accepted_repository(api, resource_id).state(resource_id)
        if state is None or state.is_deleted:
            return None
        accepted = Accepted(state.created.project, _shape(api, state))
    return accepted if reader.sees_all or accepted.project == reader.project else None


def _shape(api: AppState, state: JobState | EvalRunState | BatchState) -> Mapping[str, Any]:
    if isinstance(state, JobState):
        return job_object(state, api.queue.status(state))
    if isinstance(state, BatchState):
        return batch_object(state, api.queue.spent_reason)
    return run_object(state, "", api.queue.spent_reason)


def projects_of(api: AppState, reader: Reader) -> list[str]:
    """Return the projects of which the reader sees jobs."""
    return sorted({DEFAULT_PROJECT, *api.projects.ids()}) if reader.sees_all else [reader.project]


def _newest(api: AppState, projects: list[str], kind: str) -> Iterator[Accepted]:
    """Yield what was accepted, newest first; logs are read one at a time."""
    ids = [
        accepted_repository(api, f"{id_kind}-").newest(project)
        for id_kind, word in KINDS.items()
        for project in projects
        if kind in ("", word)
    ]
    everyone = Reader()
    for resource_id in merge(*ids, key=lambda resource_id: resource_id.partition("-")[2], reverse=True):
        if (accepted := _accepted(api, everyone, resource_id)) is not None:
            yield accepted


def open_jobs(api: AppState, projects: list[str]) -> Iterator[Accepted]:
    """Yield the jobs of projects that have not ended."""
    for _, state in api.jobs.states(api.jobs.open_ids()):
        if state.created.project in projects:
            yield Accepted(state.created.project, _shape(api, state))


def _link(accepted: Accepted) -> Cell:
    return Cell(accepted.resource_id, link=path_to("jobs", accepted.resource_id))


def _hours(accepted: Accepted) -> str:
    return f"{accepted.shape['x_assay']['charged_device_hours']:.4f}"


def queue_table(waiting: list[Accepted]) -> TitledTable:
    """Return the jobs that wait, each with its place and the one reason."""
    table = Table.of(
        sorted(waiting, key=lambda line: (line.queue["position"] or 1 << 30, line.resource_id))[:PER_PAGE],
        (name("job"), _link),
        (number("place"), lambda line: str(line.queue["position"] or "")),
        (name("project"), lambda line: line.project),
        ("waits because", Accepted.reason),
        (number("expected finish (UTC)"), lambda line: _time(line.shape.get("estimated_finish"))),
    )
    return TitledTable("", "Jobs that wait, in the order in which they are launched.", table.without_empty_columns())


def _table(lines: list[Accepted], reader: Reader, now_s: float) -> Table:
    return Table.of(
        lines,
        (name("id"), _link),
        (name("kind"), lambda line: line.kind),
        (name("project"), lambda line: line.project if reader.sees_all else ""),
        (name("status"), lambda line: Cell(line.status.replace("_", " "), line.tone)),
        ("content", lambda line: one_line(line.content())),
        (number("progress"), Accepted.progress),
        (number("device-hours"), _hours),
        (number("created (UTC)"), lambda line: _time(line.shape["created_at"])),
        (number("age"), lambda line: age_text(now_s - line.shape["created_at"])),
        ("error", lambda line: _error(line.shape)),
    ).without_empty_columns()


def _time(at_s: float | None) -> str:
    return "" if at_s is None else utc_text(at_s)


def _error(shape: Mapping[str, Any]) -> str:
    if (error := shape.get("error")) is not None:
        return one_line(error["message"])
    faults = (shape.get("errors") or {}).get("data", [])
    return "; ".join(one_line(fault["message"]) for fault in faults[:3])


def _verdict(accepted: Accepted) -> Verdict:
    queue_position = accepted.queue.get("position")
    parts = [
        _error(accepted.shape),
        f"place {queue_position} of {accepted.queue['waiting']}" if queue_position else "",
        accepted.reason(),
        accepted.progress(),
    ]
    sentence = "; ".join(part for part in parts if part) or accepted.content()
    return Verdict(
        accepted.tone,
        accepted.status.replace("_", " "),
        f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}.",
    )


def _tiles(accepted: Accepted) -> list[Fact]:
    shape, ours = accepted.shape, accepted.shape["x_assay"]
    budget = ours.get("budget_device_hours")
    facts = [
        Fact("content", one_line(accepted.content())),
        Fact("device-hours", _hours(accepted), f"of {budget:.4g}" if budget else ""),
        Fact("created (UTC)", _time(shape["created_at"])),
    ]
    if finish := shape.get("estimated_finish"):
        facts.append(Fact("expected finish (UTC)", _time(finish), one_line(ours.get("estimate") or "")))
    if finished := shape.get("finished_at") or shape.get("completed_at") or ours.get("finished_at"):
        facts.append(Fact("finished (UTC)", _time(finished)))
    return facts


def _sections(api: AppState, state: JobState, accepted: Accepted, visit: Visit) -> list[Section]:
    shape, ours = accepted.shape, accepted.shape["x_assay"]
    method = shape["method"]
    facts = [
        Fact("run", Cell(ours["run"], link=path_to("runs", ours["run"])) if ours["run"] else "not started"),
        Fact("model", one_line(shape["fine_tuned_model"] or shape["model"])),
        Fact("training file", shape["training_file"]),
        Fact("validation file", shape["validation_file"] or "a part of the training file"),
        Fact("seed", str(shape["seed"])),
        *(Fact(key, str(value)) for key, value in method[method["type"]]["hyperparameters"].items()),
        *(Fact(f"metadata: {one_line(key)}", one_line(value)) for key, value in (shape["metadata"] or {}).items()),
    ]
    events, older = _events(api, state, visit)
    checkpoints = [checkpoint_object(state, checkpoint) for checkpoint in reversed(state.usable_checkpoints)]
    table = Table.of(
        checkpoints[:PER_PAGE],
        (number("step"), lambda found: f"{found['step_number']:,}"),
        (name("model"), lambda found: found["fine_tuned_model_checkpoint"]),
        (
            "metrics",
            lambda found: ", ".join(f"{key}={value:.4g}" for key, value in found["metrics"].items() if key != "step"),
        ),
    )
    return [
        Section("Request", [FactList(facts)]),
        Section("Events", [TitledTable("", "Newest first.", events), *older]),
        Section("Checkpoints", [TitledTable("", "", table) if checkpoints else Paragraph("None yet.")]),
    ]


def _events(api: AppState, state: JobState, visit: Visit) -> tuple[Table, list[Paragraph]]:
    """Return a page of events, and the link to older ones."""
    after = visit.query.get("after", "")
    cursor = event_cursor(state, after) if after else None
    if after and cursor is None:
        raise PageError(400, f"after={after}: expected the id of an event of this job.")
    found = list(islice(newest_events(state, api.jobs.log(state.created.job_id).entry, cursor), PER_PAGE + 1))
    events = [event_object(event) for event in found[:PER_PAGE]]
    table = Table.of(
        events,
        (number("at (UTC)"), lambda event: utc_text(event["created_at"])),
        (name("level"), lambda event: Cell(event["level"], "bad" if event["level"] == "error" else None)),
        ("message", lambda event: one_line(event["message"])),
    )
    older = Cell("older events", link=visit.with_query(after=events[-1]["id"])) if len(found) > PER_PAGE else None
    return table, [] if older is None else [Paragraph(older)]


def _sources(accepted: Accepted) -> str:
    """Return the requests whose answers have all facts of a page."""
    if accepted.kind == KINDS["ftjob"]:
        job = f"GET /v1/fine_tuning/jobs/{accepted.resource_id}"
        return f"{job}, {job}/events, {job}/checkpoints"
    folder = f"evals/{accepted.shape['eval_id']}/runs" if accepted.kind == KINDS["evalrun"] else "batches"
    return f"GET /v1/{folder}/{accepted.resource_id}"


def _results(accepted: Accepted) -> list[Section]:
    """Return counts of an eval run or a batch."""
    shape = accepted.shape
    if (criteria := shape.get("per_testing_criteria_results")) is not None:
        table = TitledTable.of(
            "",
            "",
            criteria,
            (name("criterion"), lambda found: one_line(found["testing_criteria"])),
            *((number(word), lambda found, word=word: f"{found[word]:,}") for word in ("passed", "failed", "errored")),
        )
        return [Section("Results", [table])]
    facts = [
        *(Fact(key, f"{count:,}") for key, count in shape["request_counts"].items()),
        *(Fact(key.replace("_", " "), str(shape[key] or "none")) for key in ("input_file_id", "output_file_id")),
    ]
    return [Section("Requests", [FactList(facts)])]


def _actions(accepted: Accepted) -> list[Action]:
    address = path_to("jobs", accepted.resource_id)
    cancel = Action("Cancel", f"{address}/cancel", explanation="Final: what was committed stays.")
    if accepted.status in ("cancelled", "canceled", "cancelling"):
        return []
    if accepted.kind != KINDS["ftjob"]:
        return [cancel]
    if accepted.status in ("paused", "pausing"):
        budget = Filter("budget_device_hours", "New budget in device-hours (optional)", kind="number")
        return [Action("Resume", f"{address}/resume", explanation="From the last commit.", fields=[budget]), cancel]
    return [Action("Pause", f"{address}/pause", explanation="Commits first; resume at any time."), cancel]
