"""Generates docs/json.md: every key that `--json` prints, with its type and meaning, from views and records."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from assay.base.clock import utc_text
from assay.base.model_fields import field_meanings, models_in, nested_models
from assay.planning.program.offer import Offer, Safety
from assay.planning.program.plan import Plan
from assay.records.api_check import ApiCheck
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult
from assay.records.ci_report import CiChanged, CiReport
from assay.records.commit_bisection import CommitBisection
from assay.records.coverage import Coverage
from assay.records.data_changes import DataChanges
from assay.records.dataset import DatasetManifest
from assay.records.dataset_diff import DatasetDiff
from assay.records.decision import Decision
from assay.records.drill import DrillReport
from assay.records.exported_model import ExportedModel
from assay.records.failure_causes import FailureDiagnosis
from assay.records.fix_check import FixCheck
from assay.records.goodput import Goodput, ProgramGoodput
from assay.records.guard import GuardStatus
from assay.records.hung_ranks import HungRanks
from assay.records.launch import Launch
from assay.records.replay import OuterReplayReport, ReplayReport, RolloutReport
from assay.records.side_by_side import SideBySide
from assay.records.skew import Skew
from assay.records.slow_changes import SlowChanges
from assay.records.startup import Startup
from assay.records.symptoms import Symptoms
from assay.records.throughput import GpuFacts, ThroughputCheck, ThroughputForecast
from assay.records.triage_overview import TriageOverview
from assay.reporting.views.benchmark_history import HistoryLine
from assay.reporting.views.benchmark_items import ItemView
from assay.reporting.views.check import CheckView
from assay.reporting.views.comparison import ComparisonView
from assay.reporting.views.cost import CostReport
from assay.reporting.views.dataset_order import OrderView
from assay.reporting.views.dataset_split import SplitView
from assay.reporting.views.evidence import CampaignLine, LadderView, PowerView, ProxyView
from assay.reporting.views.forecast import ProgramEstimateView
from assay.reporting.views.pipeline import PipelineView
from assay.reporting.views.resume_check import ResumeCheckView
from assay.reporting.views.runs.run import RunView
from assay.reporting.views.runs.run_diff import RunDiffView
from assay.reporting.views.runs.run_groups import RunGroup
from assay.reporting.views.runs.run_list import ImportLine, RunLine
from assay.reporting.views.runs.samples import StepRollouts
from assay.reporting.views.runs.session_audit import SessionAudit
from assay.reporting.views.scaling import CodeLengthsView, ScalingView
from assay.reporting.views.shapes import ShapesView

HEAD = """# The keys of `--json`

This page is what `assay runs keys` prints. Keys are added, never renamed.

`T?` is `T` or null, `T[]` a list, `{T}` an object with names as keys. Null means unknown, not measured or not
applicable; infinity and NaN are null, too. `time` is ISO 8601 in UTC. A key in `_s` holds seconds (of a point
in time: since the Unix epoch), `_h` hours since the program's start, `_sha256` a digest. `because` explains the
verdict, `next` is the recommended next step, `low` and `high` are the ends of an interval (95% if there is no
`confidence`), `sources` maps inputs to their SHA-256. A record also has `kind` and `version`.
"""


class Printed(NamedTuple):
    """The output of some commands."""

    commands: str
    shape: str
    """How many objects, in which order."""
    model: type[BaseModel]


PRINTED = (
    Printed("assay runs list", "a list, the newest run first", RunLine),
    Printed("assay runs import", "a list", ImportLine),
    Printed("assay runs groups", "a list, one object a recipe", RunGroup),
    Printed("assay runs show, assay train", "one object; `train` prints it once the run is done", RunView),
    Printed("assay runs show PIPELINE, assay train PIPELINE", "one object", PipelineView),
    Printed("assay train --check", "one object", CheckView),
    Printed("assay runs diff", "one object", RunDiffView),
    Printed("assay train --on background, assay train --on SCHEDULER", "one object, at once", Launch),
    Printed("assay runs audit", "one object", AuditReport),
    Printed("assay runs audit SESSION", "one object", SessionAudit),
    Printed("assay runs goodput RUN...", "one object", Goodput),
    Printed("assay runs goodput PROGRAM", "one object", ProgramGoodput),
    Printed("assay runs goodput --by", "one object", CostReport),
    Printed("assay runs export", "one object", ExportedModel),
    Printed("assay decide compare", "a list, one object a candidate", ComparisonView),
    Printed("assay runs replay", "one object", ReplayReport),
    Printed("assay runs replay --outer", "one object", OuterReplayReport),
    Printed("assay runs rollout", "one object", RolloutReport),
    Printed("assay runs rollouts", "a list, one object a step", StepRollouts),
    Printed("assay train drill", "one object", DrillReport),
    Printed(
        "assay data index, assay data build, assay data hold-out, assay data score",
        "one object",
        DatasetManifest,
    ),
    Printed(
        "assay data show",
        "the keys of a [dataset manifest](#datasetmanifest) and, as `order`, null where it could not be "
        "measured, one object",
        OrderView,
    ),
    Printed("assay data split", "one object", SplitView),
    Printed("assay data diff", "one object", DatasetDiff),
    Printed("assay eval run, assay eval work, assay eval import", "one object a line", BenchmarkResult),
    Printed("assay eval history", "a list, benchmark by benchmark, each by step", HistoryLine),
    Printed("assay eval items", "a list, by id", ItemView),
    Printed("assay eval coverage", "one object", Coverage),
    Printed("assay decide list", "a list, the newest campaign first", CampaignLine),
    Printed("assay decide run, assay decide show, assay decide again", "a list, one object a candidate", Decision),
    Printed("assay ladder", "one object", LadderView),
    Printed("assay throughput", "one object", ThroughputForecast),
    Printed("assay throughput --against", "one object", ThroughputCheck),
    Printed("assay throughput --gpu", "one object", GpuFacts),
    Printed("assay doctor shapes", "one object", ShapesView),
    Printed("assay scaling fit", "one object", ScalingView),
    Printed("assay scaling code-length", "one object", CodeLengthsView),
    Printed("assay decide power", "one object", PowerView),
    Printed("assay decide proxy", "one object", ProxyView),
    Printed("assay triage overview", "one object", TriageOverview),
    Printed("assay triage failures", "one object", FailureDiagnosis),
    Printed("assay triage guard", "a list, by name", GuardStatus),
    Printed("assay triage symptoms", "one object", Symptoms),
    Printed("assay triage ci", "one object", CiReport),
    Printed("assay triage ci --changed", "one object", CiChanged),
    Printed("assay triage data", "one object", DataChanges),
    Printed("assay triage slow", "one object", SlowChanges),
    Printed("assay triage slow --ab", "one object", SideBySide),
    Printed("assay triage bisect", "one object", CommitBisection),
    Printed("assay triage skew", "one object", Skew),
    Printed("assay triage hang", "one object", HungRanks),
    Printed("assay triage fixed", "one object", FixCheck),
    Printed("assay check resume", "one object", ResumeCheckView),
    Printed("assay check api", "one object", ApiCheck),
    Printed("assay triage startup", "one object", Startup),
    Printed("assay plan solve", "one object", Plan),
    Printed("assay plan offer", "one object", Offer),
    Printed("assay plan risk", "one object", Safety),
    Printed("assay plan status", "one object", ProgramEstimateView),
)


def json_reference() -> str:
    """Return the page: a section for the output of each command, followed by the models that are new in it."""
    printed_models = [printed.model for printed in PRINTED]
    inside = [*printed_models, *nested_models(printed_models)]
    models = list(dict.fromkeys(part for model in inside for part in (model, *_bases(model))))
    shared = _shared_enumerations(models)
    lines = [HEAD.rstrip()]
    described = set[type[BaseModel]](printed_models)
    for printed in PRINTED:
        commands = ", ".join(f"`{command}`" for command in printed.commands.split(", "))
        lines += _section(printed.model, "##", shared, f"{commands}: {printed.shape}. ")
        for model in _nested(printed.model, described):
            lines += _section(model, "###", shared)
    lines += ["", "## Enumerations", ""]
    lines += [f"- `{name}`: {_choices(annotation)}" for annotation, name in shared.items()]
    return "\n".join(lines) + "\n"


def heading(model: type[BaseModel]) -> str:
    """Return a model's name on the page."""
    return model.__name__.removesuffix("View")


def _nested(model: type[BaseModel], described: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The models inside of this one, and the bases that it shares, that have no section yet; marks them."""
    inside = [
        *_bases(model),
        *(part for field in model.model_fields.values() for part in models_in(field.annotation)),
    ]
    for part in inside:
        if part not in described:
            described.add(part)
            yield part
            yield from _nested(part, described)


def _bases(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The direct base whose keys the model has, too."""
    return [base for base in model.__bases__ if issubclass(base, BaseModel) and base.model_fields]


def _section(model: type[BaseModel], level: str, shared: Mapping[Any, str], introduction: str = "") -> list[str]:
    about = " ".join((model.__doc__ or "").split())
    items = _items(model, shared)
    bases = "".join(f" It has the keys of {_link(base)}{' and:' if items else '.'}" for base in _bases(model))
    text = ["", f"{level} {heading(model)}", "", f"{introduction}{about}{bases}"]
    return [*text, "", *items] if items else text


def _items(model: type[BaseModel], shared: Mapping[Any, str]) -> list[str]:
    """One item for each key with a meaning, one for each sequence of keys without."""
    meanings = field_meanings(model)
    items: list[str] = []
    was_bare = False
    for key, field in _own_fields(model).items():
        meaning = re.sub(r"\bNone\b", "null", " ".join(meanings[key].split()))
        shown = f"`{field.alias or key}` ({_type(field.annotation, shared, field.metadata)})"
        if was_bare and not meaning:
            items[-1] += f", {shown}"
        else:
            items.append(f"- {shown}: {meaning}" if meaning else f"- {shown}")
        was_bare = not meaning
    return items


def _own_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    inherited = {key for base in _bases(model) for key in base.model_fields}
    return {key: field for key, field in model.model_fields.items() if key not in inherited}


def _shared_enumerations(models: Iterable[type[BaseModel]]) -> dict[Any, str]:
    """The long enumerations that several keys have -> the name of one of these keys."""
    fields = {
        (key, field.annotation): field.alias or key for model in models for key, field in model.model_fields.items()
    }
    keys = dict[Any, list[str]]()
    for (_, annotation), name in fields.items():
        for literal in _literals(annotation):
            keys.setdefault(literal, []).append(name)
    counts = Counter(literal for model in models for literal in _own_literals(model))
    return {
        literal: min(names, key=len)
        for literal, names in keys.items()
        if counts[literal] > 1 and len(get_args(literal)) > MOST_REPEATED_CHOICES
    }


def _own_literals(model: type[BaseModel]) -> list[Any]:
    return [literal for field in _own_fields(model).values() for literal in _literals(field.annotation)]


def _literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _literals(part)


def _choices(annotation: Any) -> str:
    return ", ".join(f"`{choice}`" for choice in get_args(annotation))


def _link(model: type[BaseModel]) -> str:
    return f"[{heading(model)}](#{heading(model).lower()})"


def _type(annotation: Any, shared: Mapping[Any, str], metadata: Sequence[Any] = ()) -> str:
    """The type of a value in the page's notation."""
    if any(getattr(item, "func", None) is utc_text for item in metadata):
        return "time"
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0], shared, parts[1:])
    if origin in (Union, UnionType):
        types = dict.fromkeys(_type(part, shared) for part in parts if part is not NoneType)
        return " or ".join(types) + ("?" if NoneType in parts else "")
    if origin is Literal:
        return f"[{shared[annotation]}](#enumerations)" if annotation in shared else _choices(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _link(annotation)
    if origin is tuple and Ellipsis not in parts:
        return f"\\[{', '.join(_type(part, shared) for part in parts)}\\]"
    if origin in (tuple, list, Sequence):
        return f"{_type(parts[0], shared)}[]"
    if origin in (dict, Mapping):
        keys = f"{_type(parts[0], shared)}: " if parts[0] is not str else ""
        return f"{{{keys}{_type(parts[1], shared)}}}"
    return _PLAIN.get(annotation, "any")


MOST_REPEATED_CHOICES = 4
"""An enumeration of more choices than these is printed once, however many keys have it."""

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
