"""Writes the memo of a campaign from its records: what is there now, decided or not."""

from pathlib import Path
from typing import NamedTuple

from assay.launch.campaign.folder import OpenCampaign, recorded_decisions
from assay.records.decision import Decision
from assay.reporting.pages.memo_markdown import memo_markdown
from assay.reporting.pages.memo_page import render_memo_page
from assay.reporting.views.memo import Memo, ordered


class WrittenMemo(NamedTuple):
    """The memo and its files."""

    memo: Memo
    page: Path
    markdown: Path


def newest_decisions(campaign: OpenCampaign) -> dict[str, Decision]:
    """Each candidate's decision with the most seeds; of two with as many, the declared look's."""
    return {each.candidate: each for each in recorded_decisions(campaign.folder)}


def write_memo(campaign: OpenCampaign, *, stopped_by: str | None = None) -> WrittenMemo:
    """`memo.html` and `memo.md` in the campaign's folder."""
    newest = newest_decisions(campaign)
    names = [each.name for each in campaign.config.candidates]
    memo = Memo(
        campaign=campaign.config.name,
        question=campaign.config.question,
        made_s=campaign.record.created_s,
        decisions=ordered([newest[name] for name in names if name in newest]),
        undecided=[name for name in names if name not in newest],
        stopped_by=stopped_by,
        budget_s=campaign.config.budget_device_hours * 3600.0,
    )
    page, markdown = campaign.folder / "memo.html", campaign.folder / "memo.md"
    page.write_text(render_memo_page(memo), encoding="utf-8")
    markdown.write_text(memo_markdown(memo), encoding="utf-8")
    return WrittenMemo(memo, page, markdown)
