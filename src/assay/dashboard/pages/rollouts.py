"""Rollouts of a run, step by step: what the policy said, beside what it said at another step."""

from assay.base.errors import ConfigError
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError, path_to
from assay.reporting.documents.runs.rollouts import MAX_PROMPTS, rollouts_document
from assay.reporting.views.runs.samples import step_rollouts


def rollouts_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the rollouts of `step`, by default the last one, beside those of `against` if it is given."""
    run_id, step, against = visit.path["run_id"], visit.number("step"), visit.number("against")
    with dashboard.ledger(run_id) as ledger:
        try:
            later = step_rollouts(ledger, run_id, step)
            earlier = None if against is None else step_rollouts(ledger, run_id, against)
        except ConfigError as error:
            raise PageError(404, str(error)) from error
    first_prompt = (visit.page_number() - 1) * MAX_PROMPTS
    links = [(path_to("runs", run_id), f"run {run_id}")]
    if later.step > later.first_step:
        links.append((visit.with_query(step=later.step - 1, page=1), "the step before"))
    if later.step < later.last_step:
        links.append((visit.with_query(step=later.step + 1, page=1), "the step after"))
    if against is None and later.step != later.first_step:
        links.append((visit.with_query(against=later.first_step, page=1), "beside the first step"))
    if sum(later.outcomes.values()) > first_prompt + MAX_PROMPTS:
        links.append((visit.with_query(page=visit.page_number() + 1), "more prompts"))
    return Page(
        document=rollouts_document(later, earlier, first_prompt=first_prompt, links=links),
        area="Runs",
        filters=[
            Filter("step", "Step", str(later.step), kind="number"),
            Filter("against", "Beside step", "" if against is None else str(against), kind="number"),
        ],
    )
