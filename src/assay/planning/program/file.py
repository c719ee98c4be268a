"""Reading a program, so that everything wrong with it is said at once, each with the line that it stands in.

YAML is composed twice: into values, and into the lines of its keys. Whatever later speaks of a dotted key
(`activities.memo.after`) finds the line by it, also where the key itself is missing: then it is its parent's.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import yaml
from pydantic import ValidationError

from assay.base.config import given_text
from assay.base.errors import ConfigError
from assay.base.kind_text import kind_text
from assay.base.nested_models import models_in
from assay.planning.program.checks import UNREAD, ProgramMistake, misfits, problems_of
from assay.planning.program.program import Program, meant
from assay.planning.program.progress import Progress

ReadT = TypeVar("ReadT", Program, Progress)
Check = Callable[[ReadT, Sequence[str]], Iterable[ProgramMistake]]
"""What is wrong with what was read; given the keys that could not be."""


class ProgramFile(NamedTuple):
    """A valid program, and where its keys stand."""

    program: Program
    path: Path
    lines: dict[str, int]
    """Dotted key -> line, from 1."""

    def place(self, key: str) -> str:
        """`programs/x.yaml:12`: the line of a key, or of the nearest one above it."""
        return _place(self.path, _line(self.lines, key))


def read_program(path: Path) -> ProgramFile:
    """Read and check a program; one `ConfigError` lists everything that is wrong with it."""
    cure = " 'assay plan new FILE' writes one to start from."
    program, lines = _read(path, Program, problems_of, cure=cure)
    return ProgramFile(program, path, lines)


def read_progress(path: Path, program: Program) -> Progress:
    """Read what happened so far; what the program does not hold, or lies after `now`, is said with its line."""
    progress, _ = _read(path, Progress, lambda told, _unread: misfits(program, told))
    return progress


def apply_changes(program: Program, changes: Mapping[str, Any], *, source: str) -> Program:
    """The program with a patch, checked like a file; `source` is what an error names."""
    try:
        changed = program.changed(changes)
    except KeyError as error:
        raise ConfigError(f"{source}: {error.args[0]}.") from error
    except ValidationError as error:
        raise ConfigError(_text(source, _schema_problems(error, {}))) from error
    if problems := list(problems_of(changed)):
        raise ConfigError(_text(source, problems))
    return changed


def _read(
    path: Path, schema: type[ReadT], check: Check[ReadT], *, cure: str = ""
) -> tuple[ReadT, dict[str, int]]:
    """A file's content and its keys' lines; one `ConfigError` lists everything that is wrong with it."""
    values, lines = _read_yaml(path, cure=cure)
    try:
        found = schema.model_validate(values)
    except ValidationError as error:
        mistakes = list(_schema_problems(error, lines, schema))
        rest, unread = _readable(values, schema, error)
        mistakes += check(rest, unread) if rest is not None else ()
        raise _listed(path, lines, dict.fromkeys(mistakes), schema.kind) from error
    if problems := list(check(found, ())):
        raise _listed(path, lines, problems, schema.kind)
    return found, lines


_STAND_INS: dict[str, Any] = {
    "name": UNREAD,
    "title": "",
    "calendar": {"start": "2027-01-04", "weeks": 52},
    "capacity": {"devices": 1},
    "budget": {"device_hours": 1},
    "decision": {"made_by": UNREAD, "by": "end of week 1"},
}
"""For what a program cannot be without, so that the rest of it can be checked."""

_WITH_NAMES = ("capacity",)
"""Sections that hold names; where nothing of one can be read, nothing can be said of who uses these."""


def _readable(
    values: dict[str, Any], schema: type[ReadT], error: ValidationError
) -> tuple[ReadT | None, tuple[str, ...]]:
    """What is left of a file without the values that cannot be read (None where that is too little), and the
    keys that were taken out: one bad value hides no other mistake."""
    tree, unread = copy.deepcopy(values), list[str]()
    while True:
        key = _take_out(tree, [part for part in error.errors()[0]["loc"] if part != "[key]"])
        if key is None:
            return None, ()
        unread.append(key)
        try:
            return schema.model_validate(tree), tuple(unread)
        except ValidationError as another:
            error = another


def _take_out(tree: dict[str, Any], location: Sequence[str | int]) -> str | None:
    """Remove what stands there, or where nothing does, what it should stand in; its key."""
    branch: Any = tree
    parents: list[tuple[Any, str | int]] = []
    for part in location:
        is_there = (
            part in branch if isinstance(branch, dict) else isinstance(part, int) and part < _length(branch)
        )
        if not is_there and parents:
            continue  # the tag of a union, or the place in a list that the file does not write as one
        if not is_there:
            break
        parents.append((branch, part))
        branch = branch[part]
    keys = [str(part) for part in location]
    if not parents:
        if len(keys) != 1 or keys[0] not in _STAND_INS or keys[0] in _WITH_NAMES:
            return None
        tree[keys[0]] = _STAND_INS[keys[0]]
        return keys[0]
    if len(keys) == 2 and len(parents) == 1 and keys[1] in _STAND_INS.get(keys[0], ()):
        branch[keys[1]] = _STAND_INS[keys[0]][keys[1]]
        return ".".join(keys)
    inside, part = parents[-1]
    del inside[part]
    return ".".join(str(part) for _, part in parents)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _read_yaml(path: Path, *, cure: str = "") -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file.{cure}") from error
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[str, int] = {}
        if node is not None:
            _note_lines(path, node, "", lines)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not readable as YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {kind_text(values)}.")
    return values, lines


def _note_lines(path: Path, node: yaml.Node, prefix: str, lines: dict[str, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted, line = f"{prefix}{key.value}", key.start_mark.line + 1
            if dotted in lines:
                raise ConfigError(
                    f"{path}:{line}: '{dotted}' stands here a second time; the first is in line "
                    f"{lines[dotted]}. YAML would silently keep the last: remove one."
                )
            lines[dotted] = line
            _note_lines(path, value, f"{dotted}.", lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[f"{prefix}{index}"] = value.start_mark.line + 1
            _note_lines(path, value, f"{prefix}{index}.", lines)


def _schema_problems(
    error: ValidationError, lines: Mapping[str, int], schema: type[Program | Progress] = Program
) -> Iterator[ProgramMistake]:
    for found in error.errors():
        key = _key_in_file([str(part) for part in found["loc"]], lines)
        if found["type"] == "extra_forbidden":
            yield ProgramMistake(key, _no_such_key(found["loc"], schema))
        elif found["type"] == "missing":
            yield ProgramMistake(key, "required, and not given.")
        else:
            yield ProgramMistake(key, f"{_expected(found)}{given_text(found['input'])}.")


_EXPECTED = {
    "tuple_type": "expected a list, in brackets; a range is [least, likely, most]",
    "string_type": "expected a text",
    "dict_type": "expected keys with values",
    "model_type": "expected keys with values",
}
_NUMBER = re.compile(r"\s*(?P<digits>\d[\d,_ ]*(?:\.\d+)?)\s*(?P<unit>%|[a-z]*)\s*", re.I)


def _expected(found: Any) -> str:
    """What stands wrong there, in a program lead's words, with the cure where it can be read off."""
    if found["type"] in ("float_parsing", "int_parsing", "int_from_float"):
        whole = "" if found["type"] == "float_parsing" else "whole "
        written = _NUMBER.fullmatch(str(found["input"]))
        if written is None:
            return f"expected a {whole}number"
        digits = float(re.sub(r"[,_ ]", "", written["digits"]))
        digits = digits / 100.0 if written["unit"] == "%" else digits
        if whole:
            digits = round(digits)
        return f"expected a {whole}number without separator or unit; perhaps {digits:.10g}"
    message = str(found["msg"]).removeprefix("Value error, ")
    return _EXPECTED.get(found["type"], message.replace("Input should be", "expected"))


def _no_such_key(location: Sequence[str | int], schema: type[Program | Progress]) -> str:
    """With a guess among the keys of that section; without one, all of them."""
    known = _keys_beside(schema, [str(part) for part in location[:-1]])
    return f"no such key{meant(str(location[-1]), known) or '; known here: ' + ', '.join(known)}."


def _keys_beside(model: Any, location: Sequence[str]) -> list[str]:
    """The keys of the section that an error's location leads to, past names and tags."""
    models = models_in(model)
    for part in location:
        inner = [each.model_fields[part].annotation for each in models if part in each.model_fields]
        types = [(each, each.model_fields.get("type")) for each in models]
        tagged = [each for each, field in types if field and part in get_args(field.annotation)]
        models = [found for annotation in inner for found in models_in(annotation)] or tagged or models
    return [name for each in models for name in each.model_fields]


def _key_in_file(parts: list[str], lines: Mapping[str, int]) -> str:
    """The dotted key without what the schema adds to it: the tag of a union, the marker of a key."""
    kept: list[str] = []
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part != "[key]" and (is_last or not lines or ".".join([*kept, part]) in lines):
            kept.append(part)
    return ".".join(kept)


def _line(lines: Mapping[str, int], key: str) -> int:
    """The line of a key, or of the nearest one above it; 0 where there is none."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key, 0)


def _place(path: Path, line: int) -> str:
    return f"{path}:{line}" if line else str(path)


def _listed(path: Path, lines: Mapping[str, int], problems: Iterable[ProgramMistake], what: str) -> ConfigError:
    found = sorted(((_line(lines, each.key), each) for each in problems), key=lambda entry: entry[0])
    texts = [f"  {_place(path, line)}: {each.key}: {each.message}" for line, each in found]
    return ConfigError("\n".join([f"{path} is not a valid {what}:", *texts]))


def _text(source: str, problems: Iterable[ProgramMistake]) -> str:
    return f"{source}:\n" + "\n".join(f"  {problem.key}: {problem.message}" for problem in problems)
