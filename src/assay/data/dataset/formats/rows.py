"""Reads raw rows in the formats of assay, TRL and OpenAI, and renders them as text with trained spans.

    text      {text}
    chat      {messages}, where `weight: 0` excludes an assistant message;  {prompt, completion}
    pairs     {prompt, chosen, rejected};  {chosen, rejected} with a common prefix;
              {input: {messages}, preferred_output, non_preferred_output};  optionally with `margin`
    prompts   {prompt, ...} or {messages, ...}; all other fields form the item for graders

Prompt and completion are either two texts, which are concatenated, or two lists of messages, which a chat
template renders. A text prompt before messages becomes the first user message, unless the messages repeat it.
Every problem raises a `DataError` that names the row.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from assay.base.errors import ConfigError, DataError
from assay.base.parsing.nesting import object_of_pairs, parse_json
from assay.base.value_text import kind_text
from assay.data.dataset.formats.boundaries import guarded
from assay.data.dataset.formats.conversation_parts import REASONING, RESERVED, Message, common_length
from assay.data.dataset.formats.template import ChatTemplate, Rendered
from assay.data.dataset.raw.span import Row
from assay.records.dataset import Format

FIELDS: Mapping[Format, tuple[tuple[str, ...], ...]] = {
    "chat": (("messages",), ("prompt", "completion")),
    "pairs": (
        ("prompt", "chosen", "rejected"),
        ("chosen", "rejected"),
        ("input", "preferred_output", "non_preferred_output"),
    ),
    "prompts": (("prompt",), ("messages",)),
}
"""Format -> alternative sets of fields; a row has one of them."""
_KWARGS = "chat_template_kwargs"
"""TRL's field of further variables for the template."""
_SYSTEM = ("system", "system_prompt")
_CONTEXT_FIELDS = ("tools", "functions", _KWARGS)
OTHER_FIELDS: Mapping[Format, tuple[str, ...]] = {
    "chat": (*_CONTEXT_FIELDS, *_SYSTEM),
    "pairs": (*_CONTEXT_FIELDS, *_SYSTEM, "margin"),
    "prompts": (*_CONTEXT_FIELDS, "item"),
}
_RENDERED = {
    *_CONTEXT_FIELDS,
    *(name for field_sets in FIELDS.values() for field_set in field_sets for name in field_set),
}
"""Fields that a template reads."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "ai": "assistant"}
_ALSO_CALLED = {
    "conversations": "messages", "conversation": "messages", "dialog": "messages", "response": "completion",
    "answer": "completion", "output": "completion", "instruction": "prompt", "question": "prompt",
}  # fmt: skip


_UNREAD = ("refusal", "audio", "reasoning_details")
"""Content of API messages that no template reads."""
_OTHER_WEIGHTS = ("train", "training", "train_detail", "trainable", "loss", "loss_mask", "mask")
"""Fields by which other tools choose trained messages."""


class RenderedRow(NamedTuple):
    """A row rendered as text."""

    sequences: tuple[Rendered, ...]
    """One sequence, or chosen and rejected; their spans are trained, or follow the prompt."""
    group: str
    """Key of rows that stay on one side of a split: the prompt, if there is one."""
    is_templated: bool = False
    """Whether a template wrote the special tokens, so that the tokenizer adds none."""
    margin: float = 0.0
    item: str = ""
    """JSON."""

    @property
    def text(self) -> str:
        """The whole text, by which duplicates are found."""
        return "\x1f".join([*(sequence.text for sequence in self.sequences), self.item])


@dataclass(frozen=True)
class RowReader:
    """Reads and renders rows of one format."""

    format: Format
    text_field: str
    template: ChatTemplate | None
    """Renders messages."""
    end: str
    """End token after a text or completion; empty for none."""
    control: re.Pattern[str] | None = None
    """Finds control tokens, which texts must not contain; None if rows may contain them."""
    control_is_text: bool = False
    """Whether control tokens are encoded as text instead of rejected."""

    def read(self, row: Row, where: str) -> RenderedRow | None:
        read: Callable[[Row, str], RenderedRow | None] = getattr(self, f"_{self.format}")
        return read(row, where)

    def _labelled(self, row: Row, where: str) -> RenderedRow | None:
        text = _text_of(row, self.text_field, where)
        return None if text is None else RenderedRow((Rendered(self._plain(text, self.text_field, where), ()),), text)

    def _text(self, row: Row, where: str) -> RenderedRow | None:
        text = _text_of(row, self.text_field, where)
        return None if text is None else RenderedRow((Rendered(self._ended(text, self.text_field, where), ()),), text)

    def _chat(self, row: Row, where: str) -> RenderedRow | None:
        _check_no_system(row, where)
        if row.get("messages") is not None:
            messages = _messages(row["messages"], "messages", where)
            if not messages:
                return None
            _check_prompt_repeated(row.get("prompt"), messages, where)
            rendered = self._conversation((), messages, _context(row, where), where)
            return RenderedRow((rendered,), rendered.text, True)
        prompt, completion = _several(row, ("prompt", "completion"), where)
        if prompt is None and completion is None:
            return None
        rendered, is_templated, group = self._with_completion(
            prompt, completion, "completion", _context(row, where), where
        )
        return RenderedRow((rendered,), group, is_templated)

    def _pairs(self, row: Row, where: str) -> RenderedRow | None:
        _check_no_system(row, where)
        if row.get("preferred_output") is not None or row.get("non_preferred_output") is not None:
            source = row.get("input")
            source = source if isinstance(source, Mapping) else {}
            row = {
                "prompt": source.get("messages"), "chosen": row.get("preferred_output"),
                "rejected": row.get("non_preferred_output"), "tools": source.get("tools"),
                "margin": row.get("margin"),
            }  # fmt: skip
        chosen, rejected = _several(row, ("chosen", "rejected"), where)
        if chosen is None and rejected is None:
            return None
        if isinstance(chosen, str) != isinstance(rejected, str):
            raise DataError(
                f"{where}: one of chosen and rejected is text and the other is not. Write both in the same form."
            )
        prompt, context = row.get("prompt"), _context(row, where)
        if prompt is None or (isinstance(prompt, str) and _is_whole(chosen) and _is_whole(rejected)):
            _check_prompt_repeated(prompt, [] if isinstance(chosen, str) else chosen, where)
            prompt, chosen, rejected = _common_prompt(chosen, rejected, where)
        if chosen == rejected:
            raise DataError(f"{where}: chosen and rejected are the same: the row prefers nothing.")
        good, is_templated, group = self._with_completion(prompt, chosen, "chosen", context, where)
        bad, _, _ = self._with_completion(prompt, rejected, "rejected", context, where)
        if good.text == bad.text:
            raise DataError(
                f"{where}: chosen and rejected are the same once the chat template has rendered them: the "
                "row prefers nothing."
            )
        return RenderedRow((good, bad), group, is_templated, margin=_margin(row.get("margin"), where))

    def _prompts(self, row: Row, where: str) -> RenderedRow | None:
        name = "prompt" if row.get("prompt") is not None else "messages"
        prompt = row.get(name)
        if prompt is None or prompt == [] or (isinstance(prompt, str) and not prompt.strip()):
            return None
        item = row.get("item") if row.get("item") is not None else row
        if isinstance(prompt, str):
            rendered, is_templated = (Rendered(self._plain(_checked(prompt, name, where), name, where), ()), False)
        else:
            messages = _messages(prompt, name, where)
            if messages[-1]["role"] == "assistant":
                raise DataError(
                    f"{where}: the last message is the assistant's; a prompt ends before the completion. Leave it out."
                )
            plain = [_without_weight(message) for message in messages]
            context = self._plain(_context(row, where), "tools", where)
            rendered = self._template(where).render_prompt(self._plain(plain, name, where), context, where)
            is_templated = True
        return RenderedRow((rendered,), rendered.text, is_templated, item=_json(item, where))

    def _with_completion(
        self, prompt: Any, completion: Any, name: str, context: Mapping[str, Any], where: str
    ) -> tuple[Rendered, bool, str]:
        """Return the rendered prompt and completion, whether a template rendered it, and the row's group."""
        if isinstance(prompt, str) and isinstance(completion, str):
            if context["tools"]:
                raise DataError(
                    f"{where}: has 'tools', but prompt and completion are plain text, so nothing renders the tools. "
                    "Write messages."
                )
            if not completion.strip():
                raise DataError(f"{where}: '{name}' is empty: there is nothing to learn.")
            begin = self._plain(_checked(prompt, "prompt", where), "prompt", where)
            text = self._ended(completion, name, where)
            return Rendered(begin + text, ((len(begin), len(begin) + len(text)),)), False, begin.strip() or text
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}] if prompt and not _is_whole(completion) else []
        if isinstance(completion, Mapping):
            completion = [completion]
        messages, replies = _messages(prompt, "prompt", where), _messages(completion, name, where)
        if replies[: len(messages)] == messages:  # the completion repeats the prompt
            replies = replies[len(messages) :]
        rendered = self._conversation(messages, replies, context, where)
        has_question = any(message["role"] == "user" for message in messages)
        return rendered, True, _json([messages, context], where) if has_question else rendered.text

    def _conversation(
        self, before: Sequence[Message], messages: Sequence[Message], context: Mapping[str, Any], where: str
    ) -> Rendered:
        speaks = [message["role"] == "assistant" for message in messages]
        is_trained = [does and message.get("weight") != 0 for does, message in zip(speaks, messages, strict=True)]
        if not any(is_trained):
            why = "every assistant message has weight 0" if any(speaks) else "no message is the assistant's"
            raise DataError(f"{where}: {why}: there is nothing to learn.")
        for number, (message, has_loss) in enumerate(zip(messages, is_trained, strict=True), start=1):
            if has_loss and not str(message.get("content") or "").strip() and not message.get("tool_calls"):
                raise DataError(f"{where}: message {number}: the assistant says nothing. Fill it, or give it weight 0.")
        plain = self._plain([_without_weight(message) for message in (*before, *messages)], "messages", where)
        context = self._plain(context, "tools", where)
        rendered = self._template(where).render_conversation(
            plain, [*(False for _ in before), *is_trained], context, where
        )
        if not rendered.spans:
            raise DataError(f"{where}: the chat template leaves out what the assistant says. Name another one.")
        return rendered

    def _template(self, where: str) -> ChatTemplate:
        if self.template is None:
            raise ConfigError(
                f"{where}: has messages, and the tokenizer comes with no chat template. Name one: "
                "--chat-template chatml, or a .jinja file."
            )
        return self.template

    def _ended(self, text: str, name: str, where: str) -> str:
        """Append the end token, unless the row has written it itself."""
        return f"{self._plain(_checked(text, name, where).removesuffix(self.end), name, where)}{self.end}"

    def _plain(self, value: Any, name: str, where: str) -> Any:
        """Reject control tokens in texts, or guard them, so that they are encoded as text."""
        if self.control is None:
            return value
        if (plain := guarded(value, self.control)) != value and not self.control_is_text:
            found = self.control.search(json.dumps(value, ensure_ascii=False, default=str))
            raise DataError(
                f"{where}: '{name}' holds {found[0] if found else 'a control token'}, a control token of the "
                "tokenizer. Choose whether such tokens are text (--control-tokens text) or tokens, as in rows "
                "that are already rendered (--control-tokens keep)."
            )
        return plain


def check_format_fields(format: Format, fields: Iterable[str], where: str) -> None:
    """Raise `ConfigError` if no row can have the format; the error names the field that was probably meant."""
    present = sorted(set(fields))
    roots = {name.partition(".")[0] for name in present}
    field_sets = FIELDS.get(format, ())
    if not field_sets or any(roots.issuperset(field_set) for field_set in field_sets):
        return
    nearest = max(field_sets, key=lambda field_set: len(roots & set(field_set)))
    missing = next(name for name in nearest if name not in roots)
    expected = "; or ".join(", ".join(field_set) for field_set in field_sets)
    others = [name for name in FIELDS if name != format and any(map(roots.issuperset, FIELDS[name]))]
    hint = f" They are rows of --format {others[0]}." if others else _meant(missing, present)
    raise ConfigError(
        f"{where}: no row has '{missing}'. Rows of the format '{format}' have {expected}; these have: "
        f"{', '.join(present)}.{hint}"
    )


def _meant(missing: str, present: Iterable[str]) -> str:
    """Return a hint that names the field that was probably meant by a missing one."""
    close = [name for name in present if _ALSO_CALLED.get(name) == missing]
    close += difflib.get_close_matches(missing, present, n=1, cutoff=0.7)
    return f" Perhaps you meant '{close[0]}' to be '{missing}': rename the field." if close else ""


def missing_field(name: str, option: str, present: Sequence[str], *, missing: str) -> ConfigError:
    """Return the error for a field that no row has, with the closest fields and all that exist."""
    guesses = [field for field in present if name in field or field in name]
    guesses += difflib.get_close_matches(name, present, n=1, cutoff=0.7)
    hint = f" Perhaps you meant {option} {guesses[0]}." if guesses else ""
    without = ", or build without labels (--no-label)" if option == "--label" else ""
    return ConfigError(f"{missing} ({option}).{hint} Name one of those that are there{without}: {', '.join(present)}.")


def nested(row: Row) -> Row:
    """Rebuild structs from a flattened table row: `input.messages` becomes `messages` of `input`.

    Removes null keys of messages, which Arrow adds because messages of other rows have them.
    """
    whole: Row = {}
    for name, value in row.items():
        *roots, leaf = name.split(".")
        struct = whole
        for root in roots:
            inner = struct.setdefault(root, {})
            struct = inner if isinstance(inner, dict) else {}
        struct[leaf] = value
    return {name: _without_nulls(value) if name in _RENDERED else value for name, value in whole.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _text_of(row: Row, name: str, where: str) -> str | None:
    text = row.get(name)
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    if not isinstance(text, str):
        chats = " Conversations are read with --format chat." if isinstance(text, list) else ""
        raise DataError(
            f"{where}: field '{name}' is {kind_text(text)}; expected text. Name the right field "
            f"(--text); this row has: {', '.join(row)}.{chats}"
        )
    return text


def _several(row: Row, names: Sequence[str], where: str) -> list[Any]:
    """Return the values of several fields; raises `DataError` if only some are present."""
    values = [row.get(name) for name in names]
    present = [name for name, value in zip(names, values, strict=True) if value is not None]
    if present and len(present) < len(names):
        (missing, *_) = (name for name in names if name not in present)
        raise DataError(f"{where}: has '{present[0]}' and no '{missing}'.{_meant(missing, row)}")
    return values


def _messages(value: Any, name: str, where: str) -> list[Message]:
    if isinstance(value, str):
        raise DataError(
            f"{where}: '{name}' is text where messages are expected: a list of objects with 'role' and "
            "'content'. Write both prompt and completion as text, or both as messages."
        )
    if not isinstance(value, Sequence) or not all(isinstance(message, Mapping) for message in value):
        raise DataError(
            f"{where}: '{name}' is {kind_text(value)}; expected a list of messages, each with 'role' and 'content'."
        )
    return [_message(message, f"{where}: {name}[{index}]") for index, message in enumerate(value)]


def _message(message: Message, where: str) -> Message:
    if "role" not in message and "from" in message and "value" in message:
        raise DataError(f"{where}: has 'from' and 'value'; messages have 'role' and 'content'. Rename them.")
    role = message.get("role")
    if role not in ROLES:
        meant = _OTHER_ROLES.get(str(role).lower()) or next(
            iter(difflib.get_close_matches(str(role), ROLES, n=1)), None
        )
        hint = f" Perhaps you meant '{meant}'." if meant else ""
        raise DataError(f"{where}: the role is {role!r}; expected one of {', '.join(ROLES)}.{hint}")
    for key in _OTHER_WEIGHTS:
        if message.get(key) is not None:
            raise DataError(
                f"{where}: '{key}' is not read: whether a message is trained is its 'weight', 0 or 1. Rename "
                "the field, or leave it out."
            )
    for key in (*REASONING, *_UNREAD):
        if (value := message.get(key)) and (key in _UNREAD or not isinstance(value, str)):
            raise DataError(f"{where}: '{key}' is {kind_text(value)}, which no template reads. Write it as text.")
    message = _with_calls(message, where)
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(content, where)
    if content is None and message.get("tool_calls"):
        content = ""  # some templates would write "None"
    if content is None:
        raise DataError(f"{where}: has no 'content'.")
    if not isinstance(content, str):
        raise DataError(f"{where}: 'content' is {kind_text(content)}; expected text.")
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise DataError(f"{where}: 'weight' is {weight!r}; a message is trained (1) or not (0).")
    _checked(json.dumps(message, ensure_ascii=False, default=str), "messages", where)
    return {**message, "content": content}


def _with_calls(message: Message, where: str) -> Message:
    """Normalize tool calls, OpenAI's older `function_call` included, to objects with parsed arguments."""
    plain = {key: value for key, value in message.items() if key != "function_call"}
    if message["role"] == "function":
        plain["role"] = "tool"
    calls = message.get("tool_calls")
    if calls is None and message.get("function_call") is not None:
        calls = [message["function_call"]]
    if not calls:
        return plain
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise DataError(f"{where}: 'tool_calls' is {kind_text(calls)}; expected a list of objects.")
    return {**plain, "tool_calls": [_call(call, f"{where}: tool_calls[{at}]") for at, call in enumerate(calls)]}


def _call(call: Message, where: str) -> Message:
    function = call.get("function", call)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"{where}: the function has no 'name'.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments or "{}", object_pairs_hook=object_of_pairs, parse_constant=_no_number)
        except ValueError as error:
            raise DataError(
                f"{where}: 'arguments' is not JSON: {error}. Write an object, or its JSON as text."
            ) from error
    if not isinstance(arguments, Mapping | None):
        raise DataError(f"{where}: 'arguments' is {kind_text(arguments)}; expected an object, or its JSON.")
    about = {key: value for key, value in call.items() if key not in ("function", "name", "arguments")}
    return {"type": "function", **about, "function": {**function, "name": name, "arguments": arguments or {}}}


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _joined(parts: Sequence[Any], where: str) -> str:
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: 'content' has parts that are not text. Only text models are supported.")
    return "".join(map(str, texts))


def _without_weight(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "weight"}


def _is_whole(completion: Any) -> bool:
    """Return whether a completion is a whole conversation, which begins with the prompt's messages."""
    first = completion[0] if isinstance(completion, list) and completion else None
    return isinstance(first, Mapping) and first.get("role") in ("system", "developer", "user")


def _context(row: Row, where: str) -> dict[str, Any]:
    """Return the template's further variables; TRL's files may hold `tools` as JSON text."""
    others = row.get(_KWARGS)
    name = "tools" if row.get("tools") is not None else "functions"
    tools = row.get(name)
    if others is not None and not isinstance(others, Mapping):
        raise DataError(f"{where}: '{_KWARGS}' is {kind_text(others)}; expected an object.")
    if isinstance(tools, str):
        try:
            tools = parse_json(tools)
        except ValueError as error:
            raise DataError(f"{where}: '{name}' is not JSON: {error}.") from error
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        raise DataError(f"{where}: '{name}' is not a list of objects, each the definition of a tool.")
    if tools is not None and name == "functions":
        tools = [{"type": "function", "function": function} for function in tools]
    return {**(others or {}), "tools": tools}


def _check_prompt_repeated(prompt: Any, messages: Any, where: str) -> None:
    """Raise `DataError` for a prompt that the messages do not contain, because only messages are read."""
    lost = prompt.strip() if isinstance(prompt, str) else ""
    if lost and not any(lost in str(message.get("content")) for message in messages):
        raise DataError(
            f"{where}: 'prompt' ({lost[:40]!r}) is in none of the messages, and only messages are read. Make it the "
            "first message, or rename the field."
        )


def _check_no_system(row: Row, where: str) -> None:
    for name in _SYSTEM:
        if (value := row.get(name)) and str(value).strip():
            raise DataError(f"{where}: '{name}' is not read. Make it the first message, or rename the field.")


def _common_prompt(chosen: Any, rejected: Any, where: str) -> tuple[Any, Any, Any]:
    """Split off the common prefix of chosen and rejected as the prompt."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        boundary = common_length(chosen, rejected)
        # Cut at white space: a common beginning of a word is not part of the prompt.
        while boundary and boundary < max(len(chosen), len(rejected)) and not chosen[boundary - 1].isspace():
            boundary -= 1
        return chosen[:boundary], chosen[boundary:], rejected[boundary:]
    good, bad = _messages(chosen, "chosen", where), _messages(rejected, "rejected", where)
    boundary = common_length(good, bad)
    if good == bad or boundary == 0:
        same = "the same" if good == bad else "completions of different prompts"
        raise DataError(f"{where}: chosen and rejected are {same}.")
    return good[:boundary], good[boundary:], bad[boundary:]


def _margin(value: Any, where: str) -> float:
    if value is None:
        return 0.0
    try:
        margin = float(value)
    except (TypeError, ValueError):
        margin = math.nan
    if isinstance(value, bool) or not math.isfinite(margin):
        raise DataError(f"{where}: 'margin' is {value!r}; expected a finite number.")
    return margin


def _json(value: Any, where: str) -> str:
    try:
        return _checked(json.dumps(value, ensure_ascii=False, allow_nan=False), "item", where)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: the item for graders is not JSON: {error}.") from error


def check_encodable(text: str, name: str, where: str) -> None:
    """Reject lone surrogates, which UTF-8 cannot encode, and U+0000, which the API and PostgreSQL reject."""
    if "\0" in text:
        raise DataError(f"{where}: field '{name}' holds U+0000, a NUL character. Remove it, or drop the line.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field '{name}' holds {text[error.start]!a}, a lone surrogate, which UTF-8 cannot "
            "encode. Fix or drop the line."
        ) from error


def _checked(text: str, name: str, where: str) -> str:
    """Check that a text is encodable and holds none of the marks used in templates."""
    check_encodable(text, name, where)
    if found := RESERVED.search(text):
        raise DataError(f"{where}: '{name}' holds U+{ord(found[0]):04X}, a noncharacter, which texts must not contain.")
    return text
