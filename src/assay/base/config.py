"""Configuration is a frozen value: one class beside the code that it configures, unknown keys refused.

A configuration file is YAML; `a.b=value` overrides come from the command line or from Python. Errors say where a value
came from (the file and line, or an override) and suggest the closest key for a mistyped one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from assay.base.closest_key import closest_key, keys_below, written_key
from assay.base.errors import ConfigError, regular
from assay.base.value_text import SECTION, expected, kind_text, message_of
from assay.base.versioned import Versioned, stored_problem


class FrozenConfig(Versioned):
    """A configuration: keyword-only, typed, immutable; the docstring of each field documents it."""

    also_called: ClassVar[Mapping[str, str]] = {}
    """Names that other tools use for fields -> the field, to suggest it when such a key is refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        defer_build=True,  # a command builds only the models that it uses
    )


ConfigT = TypeVar("ConfigT", bound=FrozenConfig)

OVERRIDE = "override"
"""The origin of a value that was given as an override."""


class LoadedConfig(NamedTuple):
    """The values of a configuration before validation, and the origin of each."""

    values: dict[str, Any]
    """The merged tree, before validation."""

    origins: dict[str, str]
    """Dotted key -> `file.yaml` or `override`; a missing key has its default."""

    lines: Mapping[str, int] = MappingProxyType({})
    """Dotted key -> its line in the file, also for list elements."""

    def origin_text(self, key: str) -> str:
        """Return ` (recipe.yaml:12)` or ` (override)`; empty for a key of unknown origin."""
        parts = key.split(".")
        around = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        origin = next((self.origins[text] for text in around if text in self.origins), None)
        if origin is None and key in self.lines:
            origin = next((text for text in self.origins.values() if text != OVERRIDE), None)
        if origin is None or origin == OVERRIDE:
            return f" ({origin})" if origin else ""
        line = next((self.lines[text] for text in around if text in self.lines), None)
        return f" ({origin}{'' if line is None else f':{line}'})"


class WrongKeyError(ValueError):
    """A validator of a whole configuration rejects one of its keys."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


def read_config_file(path: Path, overrides: Sequence[str]) -> LoadedConfig:
    """Read a YAML mapping and apply `a.b=value` overrides to it, without validation."""
    import yaml  # imported here and below: most commands read no YAML

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
    return with_overrides(LoadedConfig(values, origins, dict(_lines(node))), overrides)


def with_overrides(loaded: LoadedConfig, overrides: Sequence[str]) -> LoadedConfig:
    """Set `a.b=value` overrides in a configuration, and return it."""
    for override in overrides:
        key, value = parse_override(override)
        set_dotted(loaded.values, key, value, where="in the file")
        loaded.origins[key] = OVERRIDE
    return loaded


def unreadable_yaml(path: Path, error: Exception) -> ConfigError:
    """Return the error for a YAML file that cannot be parsed: the line and the likely mistake."""
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", error))
    if mark is None:
        return ConfigError(f"{path}: not readable as YAML: {error}")
    hint = next((hint for words, hint in _YAML_HINTS.items() if words in problem), problem)
    return ConfigError(f"{path}:{mark.line + 1}: not readable as YAML: {hint}.{_line_of(path, mark.line)}")


_YAML_HINTS = {
    "but found '<block mapping start>'": "the line is not indented like the lines around it",
    "expected <block end>": "the line is not indented like the lines around it",
    "mapping values are not allowed here": "a value contains ': ', or the line is indented too far; quote a value "
    "that contains ': '",
    "found character '\\t'": "the line is indented with a tab; use spaces",
    "could not find expected ':'": "a key is not followed by ':', here or in the line above",
    "cannot start any token": "a value that begins with this character must be quoted",
    "expected ',' or ']'": "a '[' is not closed",
    "expected ',' or '}'": "a '{' is not closed",
    "found unexpected end of stream": "a quote or a bracket is not closed",
}
"""Text in the parser's message -> the likely mistake."""


def _line_of(path: Path, line: int) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return f"\n    {lines[line]:.200}" if line < len(lines) and lines[line].strip() else ""


def _lines(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the dotted key and line of every node below a YAML node."""
    if isinstance(node.value, str):
        return
    for index, child in enumerate(node.value):
        key, value = child if isinstance(child, tuple) else (None, child)
        name = f"{prefix}{index if key is None else key.value}"
        yield name, (value if key is None else key).start_mark.line + 1
        yield from _lines(value, f"{name}.")


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `optimizer.learning_rate=1e-4` into (`optimizer.learning_rate`, 0.0001). Values are YAML."""
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
    """Build the configuration; raises one `ConfigError` that names every wrong key with the fix."""
    try:
        return config_class.model_validate(loaded.values)
    except ValidationError as error:
        problems = "\n".join(f"  {problem}" for problem in _problems(config_class, error.errors(), loaded))
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", config_class.__name__.removesuffix("Config")).lower()
        file = next((origin for origin in loaded.origins.values() if origin != OVERRIDE), None)
        message = f"{file} is not a valid {kind}" if file else f"the {kind} is not valid"
        raise ConfigError(f"{message}:\n{problems}") from error


def validated_options(config_class: type[ConfigT], options: Mapping[str, Any]) -> ConfigT:
    """Build the configuration from options of the command line; an error names each wrong one as it was typed."""
    try:
        return config_class.model_validate(dict(options))
    except ValidationError as error:
        lines = []
        for item in error.errors():
            is_missing = item["type"] == "missing"
            problem = "required (see --help)" if is_missing else f"{message_of(item)}{input_text(item['input'])}"
            lines.append(f"{option_name(str(item['loc'][0]))}: {problem}")
        raise ConfigError("\n".join(lines)) from error


def option_name(field: str) -> str:
    """Return the option of the command line that sets a field: `--grace` of `grace_s`."""
    return f"--{field.removesuffix('_s').strip('_').replace('_', '-')}"


def stored(config_class: type[ConfigT], tree: Mapping[str, Any], *, where: str, wrote: str = "") -> ConfigT:
    """Return the configuration stored in a record of any known version; raises `ConfigError`.

    `where` names the record (`run lm-0312: the recipe`); `wrote` is the version of assay that wrote it, if known.
    """
    try:
        return config_class.from_stored(tree)
    except ValidationError as error:
        by = f", written by assay {wrote}" if wrote else ""
        raise ConfigError(f"{where}{by}: {stored_problem(error, wrote=wrote)}.") from error


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs more than once; None if all differ."""
    return next((name for name in names if names.count(name) > 1), None)


def dotted_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and value of every leaf of a nested mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def changed_leaves(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys of the leaves that differ, with both values; a missing one is None."""
    old, new = dict(dotted_leaves(before)), dict(dotted_leaves(after))
    return {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}


def input_text(value: Any) -> str:
    """Return ` (given: VALUE)` for an error message, at most 80 characters of it; empty for a section.

    A date is shown as YAML writes it.
    """
    if isinstance(value, Mapping | list | tuple):
        return ""
    shown = value.isoformat() if isinstance(value, date) else repr(value)
    return f" (given: {shown:.80})"


def _problems(config_class: type[FrozenConfig], errors: list[ErrorDetails], loaded: LoadedConfig) -> Iterator[str]:
    for key, alike in _by_key(loaded.values, errors).items():
        error = alike[0]
        raised = error.get("ctx", {}).get("error")
        if isinstance(raised, WrongKeyError):
            yield f"{raised.key}{loaded.origin_text(raised.key)}: {raised}."
            continue
        is_known = key in loaded.origins or error["type"] == "extra_forbidden"
        origin = loaded.origin_text(key) if is_known else ""
        if error["type"] == "extra_forbidden":
            guess = closest_key(config_class, error["loc"])
            known = ", ".join(keys_below(config_class, error["loc"][:-1]))
            hint = f" Perhaps you meant '{guess}'." if guess else f" Known here: {known}."
            hint = " Another 'type' of that section has it." if guess == key else hint
            yield f"{key}{origin}: no such key.{hint}"
        elif error["type"] == "union_tag_invalid":
            tag, named = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "")
            yield f"{key}.type{origin}: '{tag}' is none of these: {named}."
        elif error["type"] == "union_tag_not_found":
            yield f"{key}.type: required, and not given."
        elif error["type"] == "missing":
            yield f"{key}: required, and not given."
        elif error["type"] in SECTION:
            inside = ", ".join(keys_below(config_class, error["loc"]))
            seen = input_text(error["input"])
            yield f"{key or 'the whole'}{origin}: expected keys with values ({inside}){seen}"
        else:
            # A union reports one error for each of its types.
            message = " or ".join(dict.fromkeys(filter(None, map(expected, alike)))) if len(alike) > 1 else ""
            message = f"expected {message}" if message else message_of(error)
            yield f"{key or 'the whole'}{origin}: {message}{input_text(error['input'])}"


def _by_key(values: Mapping[str, Any], errors: list[ErrorDetails]) -> dict[str, list[ErrorDetails]]:
    """Group errors by the dotted key in the file. A list with invalid elements is not also reported as too short."""
    found: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        loc = error["loc"]
        inside = [item for item in errors if item["loc"][: len(loc)] == loc and item["loc"] != loc]
        if error["type"] != "too_short" or not inside:
            key = written_key(values, loc, is_lacking=error["type"] == "missing")
            found.setdefault(key, []).append(error)
    return found


def set_dotted(tree: dict[str, Any], dotted_key: str, value: Any, *, where: str) -> None:
    """Set one value in a nested mapping; raises `ConfigError` if a parent key holds a scalar (`where` says in what)."""
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
    # YAML 1.1 reads 1e-4 (without a dot) as a string, but the user means a number.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
