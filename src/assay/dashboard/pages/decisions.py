"""Decisions: the campaigns, a campaign's memo with all its looks, and each record that a number of it follows from."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from assay.base.digest import sha256_of_bytes
from assay.dashboard.access import Visit
from assay.dashboard.dashboard import Dashboard
from assay.dashboard.page import Filter, Page, PageError, path_to
from assay.reporting.document import Cell, Code, Document, Fact, FactList, Listing, Paragraph, Section
from assay.reporting.documents.campaign_list import campaigns_document
from assay.reporting.documents.memo import Memo, home_of, memo_document, record_paths, run_record
from assay.reporting.views.evidence import CampaignLine, campaign_lines
from assay.workflows.campaign.folder import OpenCampaign, changed_since, find_campaign
from assay.workflows.campaign.memo import read_memo

MAX_RECORD = 200_000
"""Characters of a record that are shown."""
TOPICS = ("campaigns", "runs")
NOTHING = (
    "No campaigns in {folder} yet. A campaign trains a baseline and its candidates over several seeds and decides by "
    "declared gates: write a campaign file (docs/decide.md) and start it with 'assay decide run FILE'."
)


def decisions_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return all campaigns with the newest decision of each candidate."""
    words = ("scale", "narrow", "stop", "open")
    search, decision = visit.query.get("search", ""), visit.choice("decision", words)
    with dashboard.ledger() as ledger:
        all_lines = campaign_lines(ledger)
    lines = [line for line in all_lines if search in line.campaign and _has_decision(line, decision)]
    shown, links = visit.rows_of_page(len(lines))
    if shown:
        document = campaigns_document(
            lines,
            shown=shown,
            address=lambda line: path_to("decisions", line.campaign),
            now_s=dashboard.clock.now_s(),
            links=links,
        )
    else:
        nothing = "No campaign matches." if all_lines else NOTHING.format(folder=dashboard.home.folder)
        document = Document(title="Decisions", kind="campaigns", sections=[Section("", [Paragraph(nothing)])])
    return Page(
        document=document,
        area="Decisions",
        topics=TOPICS,
        filters=[
            Filter("search", "Campaign", search),
            Filter("decision", "Decision", decision, [("", "any"), *((word, word) for word in words)]),
        ],
    )


def decision_page(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the memo of a campaign; its numbers link to runs and records."""
    campaign = _campaign(dashboard, visit)
    memo = read_memo(campaign)
    runs = {run_record(run): path_to("runs", run.run_id) for run in memo.runs()}
    records = {path: _record_address(campaign.record.name, path) for path in record_paths(memo)}
    document = memo_document(replace(memo, addresses=records | runs))
    warned = Section("Changed since", [Listing(changed)]) if (changed := list(_changed(dashboard, memo))) else None
    return Page(
        document=replace(
            document,
            sections=[*([warned] if warned else []), *document.sections],
            footer=f"{document.footer} The same as JSON: assay decide show {campaign.record.name} --json",
            links=[
                (f"/benchmarks?{urlencode({'campaign': campaign.record.name})}", "its scores over time"),
                ("/decisions", "all campaigns"),
            ],
        ),
        area="Decisions",
        topics=TOPICS,
    )


def decision_record(dashboard: Dashboard, visit: Visit) -> Page:
    """Return a record that a memo names, with links to its run, checkpoint and items."""
    campaign, path = _campaign(dashboard, visit), visit.query.get("path", "")
    memo = read_memo(campaign)
    if path not in record_paths(memo):
        raise PageError(404, f"the memo of campaign '{campaign.record.name}' names no record '{path}'.")
    try:
        data = (campaign.home.folder / path).read_bytes()
    except OSError as error:
        raise PageError(404, f"the record {path} cannot be read: {error.strerror}.") from error
    text, tree = data.decode("utf-8", "replace"), {}
    with suppress(ValueError):
        tree = json.loads(text)
        text = json.dumps(tree, indent=1, ensure_ascii=False)
    cut = [Paragraph(f"The first {MAX_RECORD:,} of {len(text):,} characters.")] if len(text) > MAX_RECORD else []
    facts = [Fact("file", path), Fact("SHA-256 of the file", sha256_of_bytes(data)), *_origin(tree)]
    return Page(
        document=Document(
            title=path.rpartition("/")[2],
            kind=str(tree.get("kind", "record")).replace("_", " ") if isinstance(tree, dict) else "record",
            subtitle=f"of campaign {campaign.record.name}",
            sections=[Section("", [FactList(facts), *cut, Code(text[:MAX_RECORD])])],
            links=[(path_to("decisions", campaign.record.name), "the memo")],
        ),
        area="Decisions",
    )


def _has_decision(line: CampaignLine, decision: str) -> bool:
    is_open = line.recommendation is None or not line.is_final
    return not decision or (is_open if decision == "open" else line.recommendation == decision)


def _campaign(dashboard: Dashboard, visit: Visit) -> OpenCampaign:
    name = visit.path["campaign"]
    if name not in dashboard.home.campaign_names():
        raise PageError(404, f"no campaign '{name}' in {dashboard.home.folder}.")
    return find_campaign(dashboard.home, name)


def _changed(dashboard: Dashboard, memo: Memo) -> Iterator[Cell]:
    with dashboard.ledger() as ledger:
        for decision in changed_since(memo.decisions, ledger):
            yield Cell(
                f"{home_of(decision.campaign)}/{decision.path()} differs from the decision that the ledger has on "
                f"record; 'assay decide again {decision.campaign}' decides again from the results.",
                "bad",
            )


def _origin(tree: Any) -> Iterator[Fact]:
    """Yield the run, checkpoint and items of a record."""
    if not isinstance(tree, Mapping) or not isinstance(run_id := tree.get("run_id"), str):
        return
    yield Fact("run", Cell(run_id, link=path_to("runs", run_id)))
    if isinstance(tree.get("step"), int):
        yield Fact("checkpoint", f"step {tree['step']:,}", str(tree.get("weights_digest", ""))[:12])
        if tree.get("kind") == "benchmark_result":
            address = path_to("benchmarks", str(tree["benchmark"]), run_id, str(tree["step"]))
            yield Fact("items", Cell(f"{tree.get('num_items', 0):,} items with their scores", link=address))


def _record_address(campaign: str, path: str) -> str:
    return f"{path_to('decisions', campaign, 'record')}?path={quote(path, safe='')}"
