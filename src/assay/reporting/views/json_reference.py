"""Every key that `--json` prints, with its value and meaning, as Markdown: from the views and the records."""

import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from assay.base.clock import utc_text
from assay.base.field_meanings import field_meanings
from assay.base.nested_models import nested_models
from assay.planning.program.offer import Offer, Safety
from assay.planning.program.plan import Plan
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult
from assay.records.case import CaseStanding
from assay.records.ci_report import CiReport
from assay.records.commit_bisection import CommitBisection
from assay.records.coverage import Coverage
from assay.records.data_changes import DataChanges
from assay.records.dataset import DatasetManifest
from assay.records.dataset_diff import DatasetDiff
from assay.records.decision import Decision
from assay.records.drill import DrillReport
from assay.records.exported_model import ExportedModel
from assay.records.failure_causes import FailureDiagnosis
from assay.records.findings import TriageFindings
from assay.records.fix_check import FixCheck
from assay.records.goodput import Goodput, ProgramGoodput
from assay.records.guard import GuardStanding
from assay.records.hung_ranks import HungRanks
from assay.records.launch import Launch
from assay.records.replay import ReplayReport
from assay.records.rollout import RolloutReport
from assay.records.side_by_side import SideBySide
from assay.records.skew import Skew
from assay.records.slow_changes import SlowChanges
from assay.records.startup import Startup
from assay.records.symptoms import Symptoms
from assay.records.throughput import ThroughputCheck, ThroughputForecast
from assay.reporting.views.benchmark_history import HistoryLine
from assay.reporting.views.campaign_list import CampaignLine
from assay.reporting.views.check import CheckView
from assay.reporting.views.comparison import ComparisonView
from assay.reporting.views.dataset_order import OrderView
from assay.reporting.views.dataset_split import SplitView
from assay.reporting.views.evidence import PowerView, ProxyView
from assay.reporting.views.forecast import ForecastView
from assay.reporting.views.pipeline import PipelineView
from assay.reporting.views.run import RunView
from assay.reporting.views.run_diff import RunDiffView
from assay.reporting.views.run_list import RunLine
from assay.reporting.views.scaling import CodeLengthsView, ScalingView

HEAD = """# The keys of `--json`

Keys are added, never renamed. A time is ISO 8601 in UTC; what JSON cannot write (infinity, NaN) is null; where
a record is printed, it says its `kind` and `version` besides. This page is what `assay show --keys` prints.
"""


class Printed(NamedTuple):
    """What some commands print."""

    commands: str
    shape: str
    """How many, in which order."""
    model: type[BaseModel]


PRINTED = (
    Printed("assay runs", "a list, the newest run first", RunLine),
    Printed("assay show, assay train", "one object; `train` prints it once the run is done", RunView),
    Printed("assay show PIPELINE, assay train PIPELINE", "one object", PipelineView),
    Printed("assay train --check", "one object", CheckView),
    Printed("assay diff", "one object", RunDiffView),
    Printed("assay train --on background, assay train --on slurm", "one object, at once", Launch),
    Printed("assay audit", "one object", AuditReport),
    Printed("assay goodput RUN...", "one object", Goodput),
    Printed("assay goodput PROGRAM", "one object", ProgramGoodput),
    Printed("assay export", "one object", ExportedModel),
    Printed("assay compare", "a list, one object a candidate", ComparisonView),
    Printed("assay replay", "one object", ReplayReport),
    Printed("assay rollout", "one object", RolloutReport),
    Printed("assay drill", "one object", DrillReport),
    Printed(
        "assay data index, assay data build, assay data hold-out, assay data score",
        "one object",
        DatasetManifest,
    ),
    Printed(
        "assay data show",
        "the keys of a [dataset manifest](#dataset-manifest) and, as `order`, null where it could not be "
        "measured, one object",
        OrderView,
    ),
    Printed("assay data split", "one object", SplitView),
    Printed("assay data diff", "one object", DatasetDiff),
    Printed("assay eval run, assay eval work, assay eval import", "one object a line", BenchmarkResult),
    Printed("assay eval history", "a list, benchmark by benchmark, each by step", HistoryLine),
    Printed("assay eval coverage", "one object", Coverage),
    Printed("assay campaign list", "a list, the newest campaign first", CampaignLine),
    Printed(
        "assay campaign run, assay campaign show, assay decide", "a list, one object a candidate", Decision
    ),
    Printed("assay throughput", "one object", ThroughputForecast),
    Printed("assay throughput --check", "one object", ThroughputCheck),
    Printed("assay scaling fit", "one object", ScalingView),
    Printed("assay scaling code-length", "one object", CodeLengthsView),
    Printed("assay evidence power", "one object", PowerView),
    Printed("assay evidence proxy", "one object", ProxyView),
    Printed("assay triage", "one object", TriageFindings),
    Printed("assay triage failures", "one object", FailureDiagnosis),
    Printed("assay triage guard", "a list, by name", GuardStanding),
    Printed("assay triage symptoms", "one object", Symptoms),
    Printed(
        "assay triage case open, assay triage case add, assay triage case vote, assay triage case check, "
        "assay triage case show",
        "one object",
        CaseStanding,
    ),
    Printed("assay triage ci", "one object", CiReport),
    Printed("assay triage data", "one object", DataChanges),
    Printed("assay triage slow", "one object", SlowChanges),
    Printed("assay triage slow --ab", "one object", SideBySide),
    Printed("assay triage bisect", "one object", CommitBisection),
    Printed("assay triage skew", "one object", Skew),
    Printed("assay triage hang", "one object", HungRanks),
    Printed("assay triage fixed", "one object", FixCheck),
    Printed("assay triage startup", "one object", Startup),
    Printed("assay plan solve", "one object", Plan),
    Printed("assay plan offer", "one object", Offer),
    Printed("assay plan risk", "one object", Safety),
    Printed("assay plan status", "one object", ForecastView),
)


def json_reference() -> str:
    """The page: a table for what each command prints, then one for each kind of object inside."""
    lines = [HEAD.rstrip()]
    roots = [printed.model for printed in PRINTED]
    for printed in PRINTED:
        commands = ", ".join(f"`{command} --json`" for command in printed.commands.split(", "))
        verb = "print" if ", " in printed.commands else "prints"
        lines += [*_section(printed.model), f"{commands} {verb} {printed.shape}.", "", *_table(printed.model)]
    lines += ["", "# Objects inside of others"]
    for model in sorted(nested_models(roots), key=heading):
        lines += [*_section(model), *_table(model)]
    return "\n".join(lines) + "\n"


def heading(model: type[BaseModel]) -> str:
    """`ClassifierEvaluation` -> `Classifier evaluation`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.__name__.removesuffix("View"))
    return words[0] + words[1:].lower()


def _section(model: type[BaseModel]) -> list[str]:
    about = (model.__doc__ or "").strip().replace("\n    ", "\n")
    return ["", f"## {heading(model)}", "", about, ""]


def _table(model: type[BaseModel]) -> list[str]:
    meanings = field_meanings(model)
    rows = [_row(field.alias or key, field, meanings[key]) for key, field in model.model_fields.items()]
    return ["| key | value | meaning |", "|---|---|---|", *rows]


def _row(key: str, field: FieldInfo, docstring: str) -> str:
    meaning = re.sub(r"\bNone\b", "null", " ".join(docstring.split()))
    return f"| `{key}` | {_cell(_value(field.annotation, field.metadata))} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _value(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What stands there, in words."""
    if any(getattr(each, "func", None) is utc_text for each in metadata):
        return "time"
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_value, sorted(parts, key=lambda part: part is NoneType))))
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in parts)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{heading(annotation).lower()}](#{heading(annotation).lower().replace(' ', '-')})"
    if origin is tuple and Ellipsis not in parts:
        return f"[{', '.join(map(_value, parts))}]"
    if origin in (tuple, list, Sequence):
        return f"list: {_value(parts[0])}"
    if origin in (dict, Mapping):
        return f"by name: {_value(parts[1])}"
    return _PLAIN.get(annotation, "anything")


_PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null"}
