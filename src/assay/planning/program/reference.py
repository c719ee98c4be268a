"""Reference of all program keys, as Markdown."""

from assay.base.key_reference import key_reference
from assay.planning.program.program import Program


def program_reference() -> str:
    """Return the reference that `docs/program.md` holds."""
    introduction = [
        "# Programs, key by key",
        "",
        "A program is a YAML file; `assay plan new FILE` writes one to start from; unknown keys are refused.",
        "A moment is `2027-01-18`, `week 4`, `week 4 day 2` or `end of week 2`; `NAME` is yours to choose.",
        "A week or a day alone is its first midnight: weeks 4 to 6 are `since: week 4, until: end of week 6`.",
        "Shares and probabilities are numbers from 0 to 1; numbers stand without unit or separator.",
        "This page is what `assay plan keys` prints.",
    ]
    return key_reference(introduction, Program)
