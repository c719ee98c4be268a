"""Sentences of the commands in Python's terms: a command becomes a call, and an option a keyword."""

import re
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar, cast

import click

from assay.base.errors import known_error, path_error

SubjectT = TypeVar("SubjectT", bound=Callable[..., Any])
KEYWORDS = "Keywords are the command's options, with underscores; keys of a recipe are texts: 'trainer.epochs=2'."
CALLS = {
    ("train",): "train", ("train", "new"): "Recipe.new", ("train", "stop"): "run({}).stop",
    ("runs",): "runs", ("runs", "list"): "runs", ("runs", "show"): "run({}).report",
    ("runs", "audit"): "run({}).audit", ("runs", "replay"): "run({}).replay", ("eval", "work"): "run({}).evaluate",
    ("data", "build"): "Dataset.build", ("data", "index"): "Dataset.index",
    ("decide", "compare"): "compare", ("decide", "run"): "decide",
    ("decide", "show"): "Campaign({}).memo", ("decide", "again"): "Campaign({}).decide_again",
}  # fmt: skip
"""A command -> its call; the braces take its first argument."""
FEW_KEYWORDS = {
    "runs": (), "run({}).report": (), "run({}).audit": ("deep",), "run({}).replay": ("step", "through"),
    "run({}).evaluate": ("suite",), "compare": ("allowed_loss",), "Recipe.new": ("name", "model", "epochs", "method"),
}  # fmt: skip
"""A call -> its keywords, if it does not take all options of the command."""
_COMMAND = re.compile(r"'assay ([^']+)'|^(next: | +)assay (.+)$", re.MULTILINE)
"""A command for a shell inside a sentence, or on a line of its own."""
_OPTION = re.compile(r"(--[a-z][a-z-]*)(?:([ =])([\w-]+(?:\.[\w-]+)*(?::(?=\s|$))?))?")
"""An option in a sentence, and the word after it, which may be its value."""


def in_python(text: str, arguments: Sequence[str]) -> str:
    """Return what the command `arguments` printed, with calls for commands and keywords for its options."""
    if "assay " not in text and "--" not in text:
        return text  # most lines of progress, for which no command needs to be imported
    if unknown := re.match(r"No such option '--([\w-]+)'", text):
        text = f"There is no keyword '{unknown[1].replace('-', '_')}'{text[unknown.end() :]} {KEYWORDS}"
    parts, end = [], 0
    for found in _COMMAND.finditer(text):
        call = _call_of(found[1] or found[3]) or (found[0] if found[1] else f"assay {found[3]}")
        parts += [_with_keywords(text[end : found.start()], arguments), f"{found[2] or ''}{call}"]
        end = found.end()
    return "".join([*parts, _with_keywords(text[end:], arguments)])


def worded(subject: SubjectT) -> SubjectT:
    """Word the errors of a function, or of all functions of a class, for Python."""
    if isinstance(subject, type):
        for name, member in vars(subject).items():
            if isfunction(member):
                setattr(subject, name, worded(member))
            elif isinstance(member, classmethod):
                setattr(subject, name, classmethod(worded(member.__func__)))
        return subject

    @wraps(subject)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return subject(*arguments, **options)
        except Exception as error:
            if (known := known_error(error) or path_error(error)) is None:
                raise
            known.args = (in_python(str(known), ()),)
            raise known from (error.__cause__ if known is error else error)

    return cast("SubjectT", call)


def _with_keywords(text: str, arguments: Sequence[str]) -> str:
    options = _command_of(arguments)[1] if "--" in text else {}

    def keyword_of(found: re.Match[str]) -> str:
        if (option := options.get(found[1])) is None:
            return found[0]
        name, after, value = _keyword(found[1]), found[2] or "", found[3] or ""
        if option.is_flag:
            return f"{name}=True{after}{value}"
        if isinstance(option.type, click.Choice) and value in option.type.choices:
            return f"{name}={value!r}"
        equals = "=" if re.match(r"[A-Z]{2}|\d|.*:$", value) else after
        return f"{name}{equals}{value}"

    return re.sub(r"'(\w+='[^']*')'", r"\1", _OPTION.sub(keyword_of, text))


def _call_of(line: str) -> str | None:
    """Return the call for a command line; None if Python has none."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    path, options = _command_of(words)
    values: list[str] = []
    keywords: dict[str, list[str]] = {}
    rest = iter(words[len(path) :])
    for word in rest:
        name, equals, value = word.partition("=")
        if (option := options.get(name)) is not None:
            value = "True" if option.is_flag else value if equals else next(rest, "...")
            is_plain = option.is_flag or re.fullmatch(r"\d+(\.\d+)?", value)
            keywords.setdefault(_keyword(name), []).append(value if is_plain else repr(value))
        elif word.startswith("--"):
            return None
        else:
            values.append(repr(word))
    call, then = CALLS.get(path), ""
    if path == ("train",) and (resumed := keywords.pop("resume", None)):
        call = "run('" + resumed[0].strip("'") + "').resume"
    elif path == ("train",) and (forked := keywords.pop("from", None)):
        run_id, _, step = forked[0].strip("'").partition("@")
        call, keywords = f"run('{run_id}').fork", keywords | ({"step": [step]} if step else {})
    elif path == ("train", "new") and (file := keywords.pop("out", None)):
        then = f".save({file[0]})"
    if call is None or ("{}" in call and not values) or not keywords.keys() <= {*FEW_KEYWORDS.get(call, keywords)}:
        return None
    call = call.format(values.pop(0)) if "{}" in call else call
    lists = {name: f"[{', '.join(found)}]" if found[1:] else found[0] for name, found in keywords.items()}
    values += [f"{name}={found}" for name, found in lists.items()]
    return f"assay.{call}({', '.join(values)}){then}"


def _keyword(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _command_of(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, click.Option]]:
    """Return the words that name a command, and its options."""
    from assay.cli.main import cli  # here: few sentences need it

    command: click.Command = cli
    path: list[str] = []
    for word in words:
        if not isinstance(command, click.Group) or (found := command.get_command(click.Context(command), word)) is None:
            break
        command, path = found, [*path, word]
    options = [option for option in command.params if isinstance(option, click.Option)]
    return tuple(path), {name: option for option in options for name in option.opts}
