"""Reads a program or progress file, and reports all problems at once with their lines.

The YAML is composed once into values and the lines of keys. A dotted key (`activities.memo.after`) has the
line of its nearest existing parent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import yaml
from pydantic import ValidationError

from assay.base.closest_key import written_key
from assay.base.config import input_text, unreadable_yaml
from assay.base.errors import ConfigError
from assay.base.model_fields import models_in
from assay.base.names import meant
from assay.base.parsing.bounded_yaml import BoundedLoader
from assay.base.value_text import kind_text, message_of
from assay.planning.program.campaign_rule import with_campaigns
from assay.planning.program.checks import ProgramProblem, problems_of, short_budgets, unusable_run_counts
from assay.planning.program.gate_notes import notes_problems
from assay.planning.program.other_files import other_kind
from assay.planning.program.program import Program
from assay.planning.program.progress import Progress
from assay.planning.program.readable import readable
from assay.planning.program.risk import Mitigation, Option, WhatIf

ReadT = TypeVar("ReadT", Program, Progress)
Check = Callable[[ReadT, Sequence[str]], Iterable[ProgramProblem]]
"""Returns the problems of the object read, given the keys that could not be read."""

Prepare = Callable[[dict[str, Any], Path], Iterable[ProgramProblem]]
"""Fills the tree with content of other files, relative to a folder; returns their problems."""


class ProgramFile(NamedTuple):
    """A valid program, with the lines of its keys."""

    program: Program
    path: Path
    lines: dict[str, int]
    """Dotted key -> line, from 1."""

    def location(self, key: str) -> str:
        """Return `programs/x.yaml:12`: the line of a key, or of its nearest parent."""
        return _location(self.path, _line(self.lines, key))


def read_program(path: Path, *, allow_short_budget: bool = False) -> ProgramFile:
    """Read and check a program; one `ConfigError` lists all problems.

    With `allow_short_budget`, a budget below its runs' minimum passes if nothing else is wrong, so that
    `find_conflict` can report it with all that clashes.
    """

    def check(program: Program, unread: Sequence[str]) -> list[ProgramProblem]:
        found = list(problems_of(program, unread))
        if not unread:
            found += _invalid_changes(program)
        is_let_through = allow_short_budget and not unread and found == list(short_budgets(program))
        return [] if is_let_through else found

    hint = " 'assay plan new FILE' writes one to start from."
    program, lines = _read(path, Program, check, hint=hint, prepare=with_campaigns)
    return ProgramFile(program, path, lines)


def read_progress(path: Path, program: Program) -> Progress:
    """Read the progress; report names that the program does not have, moments after `now`, and
    contradictions."""
    progress, _ = _read(path, Progress, lambda notes, unread: notes_problems(program, notes, unread))
    return progress


def apply_changes(program: Program, changes: Mapping[str, Any], *, source: str) -> Program:
    """Return the program with a patch, checked like a file; `source` is named in errors."""
    try:
        tree = program.tree_with(changes)
    except KeyError as error:
        changed_key, problem = error.args
        raise ConfigError(f"{source}: '{changed_key}': {problem}.") from error
    try:
        changed = Program.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_text(source, _schema_problems(error, tree))) from error
    if problems := list(problems_of(changed)):
        raise ConfigError(_text(source, problems))
    return changed


def _invalid_changes(program: Program) -> Iterator[ProgramProblem]:
    """Yield problems of the changes in options, what-ifs and mitigations."""
    proposed: dict[str, Option | WhatIf | Mitigation] = {
        **{f"options.{name}": option for name, option in program.options.items()},
        **{f"what_ifs.{name}": what_if for name, what_if in program.what_ifs.items()},
        **{
            f"risks.{risk}.mitigations.{name}": mitigation
            for risk, item in program.risks.items()
            for name, mitigation in item.mitigations.items()
        },
    }
    for key, proposal in proposed.items():
        try:
            tree = program.tree_with(proposal.changes)
            known_problems = set(unusable_run_counts(program))
            for problem in unusable_run_counts(Program.model_validate(tree)):
                if problem not in known_problems:
                    yield _of_change(key, proposal.changes, problem)
        except KeyError as error:
            changed, problem = error.args
            yield ProgramProblem(f"{key}.changes.{changed}", f"{problem}.")
        except ValidationError as error:
            for problem in _schema_problems(error, tree):
                yield _of_change(key, proposal.changes, problem)


def _of_change(key: str, changes: Mapping[str, Any], problem: ProgramProblem) -> ProgramProblem:
    """Attribute a problem of a changed program to the change that causes it."""
    changed = next((name for name in changes if problem.key.startswith(name)), "")
    message = problem.message if problem.key == changed else f"{problem.key}: {problem.message}"
    return ProgramProblem(f"{key}.changes.{changed}".rstrip("."), message)


def _read(
    path: Path,
    schema: type[ReadT],
    check: Check[ReadT],
    *,
    hint: str = "",
    prepare: Prepare | None = None,
) -> tuple[ReadT, dict[str, int]]:
    """Return the content and the lines of its keys; one `ConfigError` lists all problems."""
    values, lines = _read_yaml(path, hint=hint)
    if (other := other_kind(values, str(path), expected=schema.kind)) is not None:
        raise ConfigError(f"{path} is no valid {schema.kind}: {other}")
    unprepared: list[ProgramProblem] = list(prepare(values, path.parent)) if prepare is not None else []
    try:
        found = schema.model_validate(values)
    except ValidationError as error:
        problems = unprepared + list(_schema_problems(error, values, schema))
        if (rest := readable(values, schema, error)) is not None:
            problems += [problem._replace(key=rest.key(problem.key)) for problem in check(rest.found, rest.unread)]
        raise _listed(path, lines, dict.fromkeys(problems), schema.kind) from error
    problems = unprepared + list(check(found, ()))
    if problems:
        raise _listed(path, lines, problems, schema.kind)
    return found, lines


def _read_yaml(path: Path, *, hint: str = "") -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file.{hint}") from error
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from error
    try:
        loader = BoundedLoader(text)
        node, lines, values = loader.get_single_node(), dict[str, int](), None
        if node is not None:
            _note_lines(path, node, "", lines)
            values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise unreadable_yaml(path, error) from error
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
    error: ValidationError, values: Mapping[str, Any], schema: type[Program | Progress] = Program
) -> Iterator[ProgramProblem]:
    for found in error.errors():
        key = written_key(values, found["loc"], is_lacking=found["type"] == "missing")
        if found["type"] == "extra_forbidden":
            yield ProgramProblem(key, _no_such_key(found["loc"], schema))
        elif found["type"] == "missing":
            yield ProgramProblem(key, "required, and not given.")
        elif found["type"] == "union_tag_not_found":
            yield ProgramProblem(f"{key}.type", "required, and not given.")
        elif found["type"] == "union_tag_invalid":
            known = found["ctx"]["expected_tags"].replace("'", "")
            yield ProgramProblem(f"{key}.type", f"'{found['ctx']['tag']}' is none of these: {known}.")
        else:
            is_range = found["type"] == "tuple_type" and ".effect." in key
            a_range = "; a range is [least, likely, most]" if is_range else ""
            yield ProgramProblem(key, f"{message_of(found)}{a_range}{input_text(found['input'])}.")


def _no_such_key(location: Sequence[str | int], schema: type[Program | Progress]) -> str:
    """Suggest a key of that section; without a close match, list all."""
    known = _sibling_keys(schema, [str(part) for part in location[:-1]])
    return f"no such key{meant(str(location[-1]), known) or '; known here: ' + ', '.join(known)}."


def _sibling_keys(model: Any, location: Sequence[str]) -> list[str]:
    """Return the keys of the section at an error's location, skipping names and tags."""
    models = models_in(model)
    for part in location:
        inner = [
            inner_model.model_fields[part].annotation for inner_model in models if part in inner_model.model_fields
        ]
        types = [(inner_model, inner_model.model_fields.get("type")) for inner_model in models]
        tagged = [inner_model for inner_model, field in types if field and part in get_args(field.annotation)]
        models = [found for annotation in inner for found in models_in(annotation)] or tagged or models
    return [name for model in models for name in model.model_fields]


def _line(lines: Mapping[str, int], key: str) -> int:
    """Return the line of a key, or of its nearest parent; 0 if there is none."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key, 0)


def _location(path: Path, line: int) -> str:
    return f"{path}:{line}" if line else str(path)


def _listed(path: Path, lines: Mapping[str, int], problems: Iterable[ProgramProblem], what: str) -> ConfigError:
    found = sorted(((_line(lines, problem.key), problem) for problem in problems), key=lambda entry: entry[0])
    texts = [f"  {_location(path, line)}: {problem.key}: {problem.message}" for line, problem in found]
    return ConfigError("\n".join([f"{path} is not a valid {what}:", *texts]))


def _text(source: str, problems: Iterable[ProgramProblem]) -> str:
    return f"{source}:\n" + "\n".join(f"  {problem.key}: {problem.message}" for problem in problems)
