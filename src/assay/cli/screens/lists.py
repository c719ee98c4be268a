"""Lists on a terminal: the runs, the campaigns."""

from collections.abc import Sequence

from rich.text import Text

from assay.base.clock import SystemClock
from assay.base.units import age_text, duration_text
from assay.cli.screens.terminal import (
    RECOMMENDATION_STYLES,
    device_hours_text,
    minute_text,
    name,
    number,
    status_text,
    stdout,
    table_of,
    world_sizes_text,
)
from assay.evaluation.decision.words import interval_words
from assay.records.evaluation import Estimate
from assay.reporting.views.campaign_list import CampaignLine
from assay.reporting.views.run_list import RunLine


def print_runs(lines: Sequence[RunLine]) -> None:
    """A line for each run."""
    now_s = SystemClock().now_s()
    table = table_of(
        lines,
        (name("run"), lambda line: line.run_id),
        ("status", lambda line: status_text(line.status)),
        (number("step"), _step),
        ("ranks", lambda line: world_sizes_text(line.world_sizes)),
        (number("attempts"), lambda line: str(line.attempts)),
        (
            number("measured"),
            lambda line: "" if line.value is None else f"{line.metric or ''} {line.value:.4f}".strip(),
        ),
        (number("device time"), lambda line: device_hours_text(3600 * line.device_hours)),
        (number("begun (UTC)"), lambda line: minute_text(line.created)),
        (number("age"), lambda line: age_text(now_s - line.created)),
        (number("last sign"), lambda line: "" if line.last_seen is None else age_text(now_s - line.last_seen)),
        *([("tags", lambda line: " ".join(line.tags))] if any(line.tags for line in lines) else []),
        *([("note", lambda line: line.note or "")] if any(line.note for line in lines) else []),
        ("where", lambda line: (line.started or "") if line.status in ("running", "unknown") else ""),
    )
    stdout().print(table)


def print_campaigns(lines: Sequence[CampaignLine]) -> None:
    """A line for each candidate; all but the campaign is empty before the first look."""
    table = table_of(
        lines,
        (name("campaign"), lambda line: line.campaign),
        (name("candidate"), lambda line: line.candidate or ""),
        (name("decision"), _decision),
        (name("effect"), _effect),
        (number("seeds"), lambda line: "" if line.seeds is None else str(line.seeds)),
        (
            number("device time"),
            lambda line: "" if line.device_hours is None else duration_text(3600.0 * line.device_hours),
        ),
        (number("declared (UTC)"), lambda line: minute_text(line.created)),
    )
    stdout().print(table)


def _step(line: RunLine) -> str:
    return f"{line.step:,}" if line.total_steps is None else f"{line.step:,}/{line.total_steps:,}"


def _decision(line: CampaignLine) -> str | Text:
    if line.recommendation is None:
        return "no look yet"
    word = line.recommendation + ("" if line.is_final else ", open")
    return Text(word, style=RECOMMENDATION_STYLES[line.recommendation])


def _effect(line: CampaignLine) -> str:
    if line.effect is None or line.confidence is None:
        return ""
    effect = Estimate(value=line.effect, low=line.low, high=line.high, confidence=line.confidence)
    return interval_words(effect, line.unit or "")
