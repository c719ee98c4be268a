"""What a check found of the way a training script resumes."""

from typing import Literal

from assay.reporting.views.view import View

PropertyStatus = Literal["holds", "round-off", "fails", "follows", "unseen", "untried"]


class ExercisedProperty(View):
    """A property in one exercise."""

    status: PropertyStatus
    """`follows`: it differs because another property fails."""
    text: str
    """What was seen."""


class PropertyView(View):
    """The worst result of a property over all exercises."""

    status: PropertyStatus
    seen: str
    """The figures, or what was not as it should be."""
    exercise: str
    """The first with this result; empty if none tried the property."""


class ResumeExerciseView(View):
    """What one disturbance showed."""

    name: str
    what: str
    """What was done."""
    results: dict[str, ExercisedProperty]
    """Name of the property -> result."""
    stopped_step: int | None
    """The last step before the disturbance."""
    resumed_step: int | None
    """The step of the checkpoint that it went on from."""
    first_new_step_s: float | None
    """Seconds from the start of the resume to the end of the first step that was not trained before."""
    lost_device_s: float | None
    """The same, times the workers."""
    exit_codes: tuple[int | None, ...]
    """Exit code of each start; negative: a signal; null: ended after its time."""


class UndisturbedView(View):
    """The script without a disturbance."""

    steps: int
    """Number of optimizer steps."""
    seconds: float
    """From start to end."""
    rows: str
    """How many different ones, and how often each."""


class ResumeCheckView(View):
    """A check of a script."""

    passed: bool
    """No required property fails."""
    required: tuple[str, ...]
    """The properties that decide the exit code."""
    properties: dict[str, PropertyView]
    """Name -> result; docs/check.md explains the names."""
    exercises: tuple[ResumeExerciseView, ...]
    """In the order in which they were tried."""
    undisturbed: UndisturbedView
    """What the exercises are compared with."""
    notes: tuple[str, ...]
    """What was not tried or not seen, and why."""
