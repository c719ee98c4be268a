"""Writes the memo of a campaign from its records, decided or not."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from assay.records.campaign import CampaignRun
from assay.reporting.documents.markdown import markdown
from assay.reporting.documents.memo import TONES, Memo, memo_document, memo_summary, record_paths
from assay.reporting.documents.one_page_pdf import one_page_pdf
from assay.reporting.documents.render import render_document
from assay.reporting.views.pipeline import stage_runs
from assay.store.attempts import saved_attempts
from assay.store.settings import Money
from assay.workflows.campaign.folder import OpenCampaign, newest_decisions, recorded_decisions
from assay.workflows.campaign.train import device_seconds_of

MEMO_PAGE = "memo.html"
"""File name in the campaign's folder."""


class WrittenMemo(NamedTuple):
    """A memo and its page."""

    memo: Memo
    page: Path


def write_memo(campaign: OpenCampaign, *, stopped_by: str | None = None) -> WrittenMemo:
    """Write `memo.html`, `memo.md` and the first page, `memo.pdf`, into the campaign's folder."""
    memo = read_memo(campaign, stopped_by=stopped_by)
    with_records = replace(memo, records=_records(memo, campaign.home.folder))
    campaign.store.put(MEMO_PAGE, render_document(memo_document(with_records)).encode())
    campaign.store.put("memo.md", markdown(memo_document(memo)).encode())
    campaign.store.put("memo.pdf", one_page_pdf(memo_summary(memo)))
    return WrittenMemo(memo, campaign.folder / MEMO_PAGE)


def read_memo(campaign: OpenCampaign, *, stopped_by: str | None = None) -> Memo:
    """Return the facts of the memo from the campaign's records and prices."""
    newest = newest_decisions(campaign.folder)
    names = [candidate.name for candidate in campaign.config.candidates]
    order = [*TONES]
    memo = Memo(
        campaign=campaign.config.name,
        question=campaign.config.question,
        declared_s=campaign.record.created_s,
        decisions=sorted(
            (newest[name] for name in names if name in newest),
            key=lambda decision: order.index(decision.recommendation),
        ),
        undecided=[name for name in names if name not in newest],
        stopped_by=stopped_by,
        budget_s=campaign.config.budget_device_hours * 3600.0,
        looks=recorded_decisions(campaign.folder),
    )
    compared = {run.run_id for run in memo.runs()}
    held_s = _held_by_run(campaign, memo.runs())
    return replace(
        memo,
        cost=_cost_of_runs(campaign, held_s),
        evaluation_s=_evaluation_s(campaign, held_s),
        other_stages_s=sum(held for run_id, held in held_s.items() if run_id not in compared),
    )


def _records(memo: Memo, home: Path) -> dict[str, str]:
    """Return the text of every existing record that the memo names, formatted for reading."""
    existing = [path for path in record_paths(memo) if (home / path).is_file()]
    return {path: _laid_out((home / path).read_text(encoding="utf-8")) for path in existing}


def _laid_out(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    except ValueError:
        return text


def _held_by_run(campaign: OpenCampaign, runs: Iterable[CampaignRun]) -> dict[str, float]:
    """Return the training device time by run: of `runs`, and of all other runs of a pipeline, whose budget
    covers all stages."""
    held_s = {run.run_id: run.device_s for run in runs}
    if not campaign.home.has_pipeline(campaign.config.name):
        return held_s
    with campaign.home.open_ledger() as ledger:
        others = [
            stage_run
            for stage_run in stage_runs(campaign.home.pipeline(campaign.config.name))
            if stage_run not in held_s
        ]
        return held_s | {run_id: device_seconds_of(run_id, ledger) for run_id in others}


def _evaluation_s(campaign: OpenCampaign, run_ids: Iterable[str]) -> float:
    with campaign.home.open_ledger() as ledger:
        return sum(map(ledger.evaluation_s, run_ids))


def _cost_of_runs(campaign: OpenCampaign, held_s: Mapping[str, float]) -> str:
    """Return the cost of the device time at current prices; empty if a run has no single price."""
    settings, amount = campaign.home.settings(), 0.0
    for run_id, device_s in held_s.items():
        attempts = saved_attempts(campaign.home.run_dir(run_id))
        prices = {settings.price_of(attempt) for attempt in attempts}
        price = prices.pop() if len(prices) == 1 else None
        if price is None:
            return ""
        amount += device_s / 3600 * price
    return str(Money(amount, settings.currency)) if held_s else ""
