"""Configuration is a frozen value: one class beside the code that it configures, unknown keys refused.

A configuration file is YAML; `a.b=value` overrides stand on the command line. `load_config` says of every
value where it came from (the file, the command line, or a default), and answers a mistyped key with the
key that was probably meant.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from assay.base.errors import ConfigError, regular
from assay.base.meant_key import keys_below, meant_key, written_key
from assay.base.value_text import SECTION, expected, kind_text, message_of
from assay.base.versioned import Versioned, stored_problem


class FrozenConfig(Versioned):
    """What a user may choose. Keyword-only, typed, immutable; each field's docstring is its documentation."""

    also_called: ClassVar[Mapping[str, str]] = {}
    """What other tools call a field of this class -> its name here; for the answer to a wrong key."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        defer_build=True,  # of what a command never uses, nothing
    )


ConfigT = TypeVar("ConfigT", bound=FrozenConfig)

COMMAND_LINE = "command line"
"""The origin of a value that no file gave."""


class LoadedConfig(NamedTuple):
    """A configuration and where each of its given values came from."""

    values: dict[str, Any]
    """The merged tree, before validation."""

    origins: dict[str, str]
    """Dotted key -> `file.yaml` or `command line`; a key that is absent has its default."""

    lines: Mapping[str, int] = MappingProxyType({})
    """Dotted key -> its line in the file, of elements of lists, too."""

    def place(self, key: str) -> str:
        """` (recipe.yaml:12)`, ` (command line)`; empty where nobody knows."""
        parts = key.split(".")
        around = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        origin = next((self.origins[each] for each in around if each in self.origins), None)
        if origin is None and key in self.lines:
            origin = next((each for each in self.origins.values() if each != COMMAND_LINE), None)
        if origin is None or origin == COMMAND_LINE:
            return f" ({origin})" if origin else ""
        line = next((self.lines[each] for each in around if each in self.lines), None)
        return f" ({origin}{'' if line is None else f':{line}'})"


class WrongKeyError(ValueError):
    """What a check of a whole configuration finds wrong with one of its keys."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


def read_config_file(path: Path, overrides: Sequence[str]) -> LoadedConfig:
    """Read a YAML mapping and lay `a.b=value` overrides over it; nothing is validated yet."""
    import yaml  # here and below: most commands read none

    from assay.base.parsing.bounded_yaml import BoundedLoader

    try:
        text = regular(path).read_text(encoding="utf-8")
        loader = BoundedLoader(text)
        node = loader.get_single_node()
        values = None if node is None else loader.construct_document(node)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise unreadable_yaml(path, error) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {kind_text(values)}.")
    origins = {key: str(path) for key, _ in dotted_leaves(values)}
    for override in overrides:
        key, value = parse_override(override)
        set_dotted(values, key, value, where="in the file")
        origins[key] = COMMAND_LINE
    return LoadedConfig(values, origins, dict(_lines(node)))


def unreadable_yaml(path: Path, error: Exception) -> ConfigError:
    """What a parser found, at its line, with what is most likely meant: its own words tell of its blocks."""
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", error))
    if mark is None:
        return ConfigError(f"{path}: not readable as YAML: {error}")
    cure = next((cure for words, cure in _YAML_CURES.items() if words in problem), problem)
    return ConfigError(f"{path}:{mark.line + 1}: not readable as YAML: {cure}.{_line_of(path, mark.line)}")


_YAML_CURES = {
    "but found '<block mapping start>'": "the line is not indented as the lines that it stands among",
    "expected <block end>": "the line is not indented as the lines that it stands among",
    "mapping values are not allowed here": "a ': ' in the middle of a value, or a line that is indented too "
    "far; put a value with a ': ' in quotes",
    "found character '\\t'": "a tab; indent by spaces",
    "could not find expected ':'": "a key without a ':' behind it, here or in the line above",
    "cannot start any token": "a value that begins with such a sign stands in quotes",
    "expected ',' or ']'": "a '[' that is not closed",
    "expected ',' or '}'": "a '{' that is not closed",
    "found unexpected end of stream": "a quote or a bracket that is not closed",
}
"""The parser's words -> what is likely wrong."""


def _line_of(path: Path, line: int) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return f"\n    {lines[line]:.200}" if line < len(lines) and lines[line].strip() else ""


def _lines(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Dotted key and line of all that a YAML node holds."""
    if isinstance(node.value, str):
        return
    for index, each in enumerate(node.value):
        key, value = each if isinstance(each, tuple) else (None, each)
        name = f"{prefix}{index if key is None else key.value}"
        yield name, (value if key is None else key).start_mark.line + 1
        yield from _lines(value, f"{name}.")


def parse_override(text: str) -> tuple[str, Any]:
    """`optimizer.learning_rate=1e-4` -> (`optimizer.learning_rate`, 0.0001). Values are YAML."""
    import yaml

    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"'{text}' is not an override. Write key=value, e.g. seed=1.")
    try:
        return key.strip().removeprefix("--"), _yaml_value(value)
    except yaml.YAMLError as error:
        braces = "" if "{{" not in value else f" Quote a template inside: {key}='\"...\"'."
        raise ConfigError(f"'{text:.200}': the value is not readable as YAML: {error}.{braces}") from error


def validated(config_class: type[ConfigT], loaded: LoadedConfig) -> ConfigT:
    """Build the configuration, or raise one `ConfigError` that names every wrong key with a cure."""
    try:
        return config_class.model_validate(loaded.values)
    except ValidationError as error:
        problems = "\n".join(f"  {problem}" for problem in _problems(config_class, error.errors(), loaded))
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", config_class.__name__.removesuffix("Config")).lower()
        file = next((origin for origin in loaded.origins.values() if origin != COMMAND_LINE), None)
        said = f"{file} is not a valid {kind}" if file else f"the {kind} is not valid"
        raise ConfigError(f"{said}:\n{problems}") from error


def stored(config_class: type[ConfigT], tree: Mapping[str, Any], *, where: str, wrote: str = "") -> ConfigT:
    """A configuration as a record holds it, of any version up to today's, or one `ConfigError`.

    `where` names the record (`run lm-0312: the recipe`), `wrote` the assay that wrote it, where that is known.
    """
    try:
        return config_class.from_stored(tree)
    except ValidationError as error:
        by = f", written by assay {wrote}" if wrote else ""
        raise ConfigError(f"{where}{by}: {stored_problem(error, wrote=wrote)}.") from error


def first_repeated(names: Sequence[str]) -> str | None:
    """The first of some names that occurs again; None where all differ."""
    return next((name for name in names if names.count(name) > 1), None)


def dotted_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a tree that is no group of keys itself."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def given_text(value: Any) -> str:
    """The value that was seen, to stand behind a message; nothing for a whole section.

    A section's first 80 characters tell nobody anything: its key says where it is. A date is as YAML has it.
    """
    if isinstance(value, Mapping | list | tuple):
        return ""
    shown = value.isoformat() if isinstance(value, date) else repr(value)
    return f" (given: {shown:.80})"


def _problems(
    config_class: type[FrozenConfig], errors: list[ErrorDetails], loaded: LoadedConfig
) -> Iterator[str]:
    for key, alike in _by_key(loaded.values, errors).items():
        error = alike[0]
        raised = error.get("ctx", {}).get("error")
        if isinstance(raised, WrongKeyError):
            yield f"{raised.key}{loaded.place(raised.key)}: {raised}."
            continue
        is_known = key in loaded.origins or error["type"] == "extra_forbidden"
        place = loaded.place(key) if is_known else ""
        if error["type"] == "extra_forbidden":
            guess = meant_key(config_class, error["loc"])
            known = ", ".join(keys_below(config_class, error["loc"][:-1]))
            hint = f" Perhaps you meant '{guess}'." if guess else f" Known here: {known}."
            hint = " Another 'type' of that section has it." if guess == key else hint
            yield f"{key}{place}: no such key.{hint}"
        elif error["type"] == "union_tag_invalid":
            tag, named = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "")
            yield f"{key}.type{place}: '{tag}' is none of these: {named}."
        elif error["type"] == "union_tag_not_found":
            yield f"{key}.type: required, and not given."
        elif error["type"] == "missing":
            yield f"{key}: required, and not given."
        elif error["type"] in SECTION:
            inside = ", ".join(keys_below(config_class, error["loc"]))
            given = given_text(error["input"])
            yield f"{key or 'the whole'}{place}: expected keys with values ({inside}){given}"
        else:
            # Of a value that may be one of several things, each says what it is not.
            message = " or ".join(dict.fromkeys(filter(None, map(expected, alike)))) if len(alike) > 1 else ""
            message = f"expected {message}" if message else message_of(error)
            yield f"{key or 'the whole'}{place}: {message}{given_text(error['input'])}"


def _by_key(values: Mapping[str, Any], errors: list[ErrorDetails]) -> dict[str, list[ErrorDetails]]:
    """The errors of each key, as a file has it. A list is not too short for what is wrong in it."""
    found: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        place = error["loc"]
        inside = [each for each in errors if each["loc"][: len(place)] == place and each["loc"] != place]
        if error["type"] != "too_short" or not inside:
            key = written_key(values, place, is_lacking=error["type"] == "missing")
            found.setdefault(key, []).append(error)
    return found


def set_dotted(tree: dict[str, Any], dotted_key: str, value: Any, *, where: str) -> None:
    """Lay one value into a tree; `ConfigError` for a key below what is a value `where`."""
    *parents, last = dotted_key.split(".")
    for parent in parents:
        branch = tree.setdefault(parent, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"{dotted_key}: '{parent}' is a value {where}, not a group of keys.")
        tree = branch
    tree[last] = value


def _yaml_value(text: str) -> Any:
    from assay.base.parsing.bounded_yaml import parse_yaml

    value = parse_yaml(text)
    # YAML 1.1 reads 1e-4 (no dot) as a string; nobody who types it means one.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
