"""What a check of a resume found: one result a property, as a document and as JSON."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of
from assay.checks.resume.check import ExerciseResult, ResumeCheck
from assay.checks.resume.properties import EFFECTS, PROPERTIES, PropertyResult, Status, worst_result
from assay.reporting.document import (
    Block,
    Cell,
    Code,
    Document,
    Fact,
    Listing,
    Paragraph,
    Section,
    TitledTable,
    Tone,
    Verdict,
    name,
    number,
)
from assay.reporting.views.resume_check import (
    ExercisedProperty,
    PropertyView,
    ResumeCheckView,
    ResumeExerciseView,
    UndisturbedView,
)

STATUS_CELLS: Mapping[Status, tuple[str, Tone | None]] = {
    "fails": ("fails", "bad"),
    "follows": ("follows", "open"),
    "round-off": ("up to round-off", "good"),
    "holds": ("holds", "good"),
    "unseen": ("not seen", "open"),
    "untried": ("not tried", None),
}


class PropertySummary(NamedTuple):
    """The worst result of a property over all exercises."""

    name: str
    result: PropertyResult
    exercise: str
    """The first with this result; empty if none tried the property."""


def summaries(check: ResumeCheck) -> list[PropertySummary]:
    """Return a summary of each property."""
    return [_summary(check.exercises, name) for name in PROPERTIES]


def failures(check: ResumeCheck, required: Sequence[str]) -> list[PropertySummary]:
    """Return the required properties that do not hold. A property that was not seen does not fail."""
    return [found for found in summaries(check) if found.name in required and found.result.status == "fails"]


def _summary(exercises: Sequence[ExerciseResult], name: str) -> PropertySummary:
    tried = [(exercise.results[name], exercise.name) for exercise in exercises if name in exercise.results]
    if not tried:
        return PropertySummary(name, PropertyResult("untried", "no exercise reached it"), "")
    worst = worst_result([result for result, _ in tried])
    return PropertySummary(name, worst, next(exercise for result, exercise in tried if result == worst))


def check_document(check: ResumeCheck, command: str, resume: str, required: Sequence[str], *, now_s: float) -> Document:
    """Return the document: the properties, the exercises, and what was not tried or not seen."""
    found = summaries(check)
    commands = {command: "Training and resume"} if command == resume else {command: "Training", resume: "Resume"}
    sections = [
        Section("Properties", [_property_table(found)]),
        Section("Exercises", [_exercise_table(check.exercises)]),
        Section("Not tried, not seen", _omissions(check, found)),
        Section("Commands", [Code(line, title=title) for line, title in commands.items()]),
    ]
    return Document(
        title="How a training script resumes",
        kind="resume check",
        subtitle=utc_text(now_s),
        verdict=_verdict(found, required),
        tiles=_tiles(check, found),
        sections=[section for section in sections if section.blocks],
        footer="Rows, losses, learning rates and digests were read inside the script's processes while it ran. "
        "'assay check resume --json' prints the same facts.",
    )


def _verdict(found: Sequence[PropertySummary], required: Sequence[str]) -> Verdict:
    failed = [item for item in found if item.result.status == "fails"]
    if named := [item for item in failed if item.name in required]:
        first = named[0]
        return Verdict(
            "bad",
            f"{number_of(len(named), 'property', 'properties')} fail{'s' if len(named) == 1 else ''}",
            f"{first.name}, in the exercise '{first.exercise}': {first.result.text}.",
        )
    if failed:
        return Verdict("open", "holds as far as required", f"not required, and failing: {failed[0].name}.")
    unseen = [item.name for item in found if item.result.status == "unseen"]
    if unseen:
        return Verdict("open", "holds as far as seen", f"not seen: {', '.join(unseen)}.")
    untried = [item.name for item in found if item.result.status == "untried"]
    loose = [f"{item.name}: {item.result.text}" for item in found if item.result.status == "round-off"]
    how = f"Equal up to round-off; {loose[0]}." if loose else "Losses and weights are equal to the bit."
    how += f" Not tried: {', '.join(untried)}." if untried else ""
    return Verdict("good", "resumes" if loose else "resumes exactly", how)


def _tiles(check: ResumeCheck, found: Sequence[PropertySummary]) -> list[Fact]:
    tried = [item for item in found if item.result.status in ("fails", "holds", "round-off")]
    tiles = [
        Fact("Properties that hold", f"{sum(item.result.status != 'fails' for item in tried)} of {len(tried)}"),
        Fact("Undisturbed", number_of(len(check.baseline.steps), "step"), duration_text(check.baseline_s)),
        Fact("Different rows", *check.baseline.row_facts()),
    ]
    restarts = [exercise.first_new_step_s for exercise in check.exercises if exercise.first_new_step_s is not None]
    if restarts:
        tiles.append(
            Fact("First new step", duration_text(sorted(restarts)[len(restarts) // 2]), "after the resume; median")
        )
    return tiles


def _property_table(found: Sequence[PropertySummary]) -> TitledTable:
    return TitledTable.of(
        "",
        "The worst result of all exercises. An effect of a failure is not a failure of its own: it 'follows'.",
        found,
        (name("property"), lambda item: item.name),
        ("what holds", lambda item: PROPERTIES[item.name]),
        (name("result"), lambda item: Cell(*STATUS_CELLS[item.result.status])),
        ("seen", lambda item: item.result.text),
        (name("exercise", drop_order=1), lambda item: item.exercise),
    )


def _exercise_table(exercises: Sequence[ExerciseResult]) -> TitledTable:
    return TitledTable.of(
        "",
        "A lost device-second is one between the start of the resume and the end of its first new step.",
        exercises,
        (name("exercise"), lambda exercise: exercise.name),
        ("disturbance", lambda exercise: exercise.what),
        (number("stopped after step"), lambda exercise: _count(exercise.stopped_step)),
        (number("resumed from"), lambda exercise: _count(exercise.resumed_step)),
        (number("first new step"), lambda exercise: _seconds(exercise.first_new_step_s)),
        (number("device time lost", drop_order=1), lambda exercise: _seconds(exercise.lost_device_s)),
        (name("exit codes", drop_order=2), lambda exercise: ", ".join(map(_exit_text, exercise.exit_codes))),
        ("fails", lambda exercise: Cell(text, "bad") if (text := _failed(exercise)) else ""),
    )


def _count(value: int | None) -> str:
    return "—" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "—" if value is None else duration_text(value)


def _exit_text(code: int | None) -> str:
    return "killed" if code is None else str(code)


def _failed(exercise: ExerciseResult) -> str:
    return ", ".join(name for name, result in exercise.results.items() if result.status == "fails")


def _omissions(check: ResumeCheck, found: Sequence[PropertySummary]) -> list[Block]:
    unseen = [f"{item.name}: {item.result.text}." for item in found if item.result.status == "unseen"]
    untried = [item.name for item in found if item.result.status == "untried" and item.name not in EFFECTS]
    items = [*unseen, *check.notes, *([f"No exercise showed: {', '.join(untried)}."] if untried else [])]
    limits = (
        "Power cuts of the machine, full disks, wrong clocks, lost nodes and changed software are not part of this "
        "check. Rows that are equal in content count as one row."
    )
    return [*([Listing(items)] if items else []), Paragraph(limits)]


def check_view(check: ResumeCheck, required: Sequence[str]) -> ResumeCheckView:
    """Return the same facts as a view, for `--json`."""
    return ResumeCheckView(
        passed=not failures(check, required),
        required=tuple(required),
        properties={
            found.name: PropertyView(status=found.result.status, seen=found.result.text, exercise=found.exercise)
            for found in summaries(check)
        },
        exercises=tuple(_exercise_view(exercise) for exercise in check.exercises),
        undisturbed=UndisturbedView(
            steps=len(check.baseline.steps),
            seconds=round(check.baseline_s, 3),
            rows=" rows, ".join(check.baseline.row_facts()),
        ),
        notes=check.notes,
    )


def _exercise_view(exercise: ExerciseResult) -> ResumeExerciseView:
    results = {name: ExercisedProperty.of(result) for name, result in exercise.results.items()}
    return ResumeExerciseView.of(exercise, results=results)
