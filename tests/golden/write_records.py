"""Writes the golden records: `python tests/golden/write_records.py`.

`records.jsonl` has one line for each kind of record: the JSON of a record that has a value other than the
default in every field. Until release 1.0 the file is written again when the fields of a record change, and the
commit shows the difference. From release 1.0 on, a line stands for what lies on disks and stays beside the line
of a new version.
"""

import sys
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from assay.records.record import Record

CHECKOUT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("records.jsonl")
MOMENTS = ("now", "started", "ended", "expected_end", "events")
"""Fields that hold a moment of a program's calendar, written as text."""


def golden_record(record_class: type[Record]) -> Record:
    """Of this kind, with something in every field."""
    return record_class.model_validate(overrides(record_class.kind) or sample(record_class))


def overrides(kind: str) -> dict[str, Any] | None:
    """Of kinds whose fields must fit one another."""
    if kind == "program":
        from assay.planning.program.file import read_program

        return read_program(CHECKOUT / "programs" / "helpfulness.yaml").program.model_dump(mode="json")
    if kind == "progress":
        ended = {"started": "week 1", "ended": "week 2"}
        goes_on = {
            "started": "week 2", "expected_end": "week 4", "device_hours": 2.5, "device_hours_to_come": 0,
        }  # fmt: skip
        return {
            "now": "week 3", "activities": {"a": ended, "b": goes_on},
            "events": {"e": "week 1 day 2"},
        }  # fmt: skip
    if kind == "drill_report":
        exercise = {"name": "kill", "run_id": "r", "weights_digest": "w", "num_attempts": 2, "seconds": 1.5}
        exercises = [{**exercise, "problem": "other weights"}]
        return {
            "recipe_sha256": "a", "parts": {"loader.lanes": 8}, "workers": 2, "exercises": exercises,
            "verdict": "fail",
        }  # fmt: skip
    return None


def sample(model: type[BaseModel]) -> dict[str, Any]:
    """A JSON tree with a value for every field."""
    return {name: _value(field.annotation, name) for name, field in model.model_fields.items()}


def _value(annotation: Any, name: str) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _value(next(argument for argument in arguments if argument is not NoneType), name)
    if origin is Literal:
        return arguments[-1]
    if name == "working_hours":
        return [9, 17]
    if origin in (tuple, list, frozenset):
        inner = arguments[:1] if len(arguments) == 2 and arguments[1] is Ellipsis else arguments
        return [_value(item, name) for item in inner]
    if origin is dict:
        key = _value(arguments[0], "key")
        return {key: _value(arguments[1], name)}
    if hasattr(annotation, "__metadata__"):
        return _value(annotation.__origin__, name)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sample(annotation)
    text = "week 4 day 2" if name in MOMENTS else f"the {name}"
    plain = {str: text, int: 3, float: 0.5, bool: True, date: "2027-01-04", Any: {"any": [1, "é"]}}
    return plain[annotation]


def main() -> None:
    sys.path.insert(0, str(CHECKOUT / "tests"))
    from record_kinds import record_kinds

    lines = [golden_record(record_class).to_json() for _, record_class in sorted(record_kinds().items())]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
