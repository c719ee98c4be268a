"""ModelBasedClassify of OpenAI Evals: a judge reads a prompt built from the sample and picks one of the choices.

The rules of version 3.0.1 are reproduced with one exception: there, the answer instructions are appended to a
*chat* prompt again for every sample (the list is modified in place); here each prompt has them once.
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError, DataError
from assay.inference.protocol import Message

INVALID = "__invalid__"
MatchRule = Literal["include", "exact", "endswith", "starts_or_endswith"]
Prompt = str | tuple[dict[str, str], ...]

_EVAL_TYPE_PROMPTS = {
    "classify": (
        "Answer the question by printing only a single choice from {choices} (without quotes or "
        "punctuation) corresponding to the correct answer with no other text."
    ),
    "classify_cot": (
        "First, answer by printing a single choice from {choices} (without quotes or punctuation) "
        "corresponding to the correct answer. Then, from the next line, explain your reasonings step by step."
    ),
    "cot_classify": (
        "First, write out in a step by step manner your reasoning to be sure that your conclusion is correct. "
        "Avoid simply stating the correct answer at the outset. Then print only a single choice from {choices} "
        "(without quotes or punctuation) on its own line corresponding to the correct answer. At the end, "
        "repeat just the answer by itself on a new line.\n\nReasoning:"
    ),
}


class ModelGradedSpec(FrozenConfig):
    """One entry of `modelgraded/*.yaml`."""

    model_config = ConfigDict(extra="ignore")  # specs may contain authors' comments

    prompt: Prompt
    choice_strings: str | tuple[str, ...]
    """A list, `from_n`, `from_n_abc`, `from_n_ABC`, or a text whose characters are the choices."""
    input_outputs: dict[str, str]
    """Sample key of a prompt -> key of its completion in the judge's prompt."""
    eval_type: str | None = None
    choice_scores: dict[str, float] | str | None = None
    """Score by choice, or `from_strings`: the choice is a number."""
    output_template: str | None = None
    """Template for each of several completions of one prompt."""


def choices_of(spec: ModelGradedSpec, num_completions: int) -> tuple[str, ...]:
    """Return the choices of a spec."""
    named = {
        "from_n": [str(index + 1) for index in range(num_completions)],
        "from_n_abc": [string.ascii_lowercase[index % 26] for index in range(num_completions)],
        "from_n_ABC": [string.ascii_uppercase[index % 26] for index in range(num_completions)],
    }
    strings = spec.choice_strings
    choices = tuple(named.get(strings, list(strings)) if isinstance(strings, str) else strings)
    for choice in choices:
        if any(character in string.punctuation for character in choice):
            raise ConfigError(
                f"choice '{choice}' holds punctuation, which is removed from completions before they are matched."
            )
    return choices


def judge_prompt(
    spec: ModelGradedSpec, choices: Sequence[str], values: Mapping[str, Any], eval_type: str | None
) -> list[Message]:
    """Build the judge's prompt; `eval_type` (the eval's argument) appends answer instructions."""
    turns = [{"role": "user", "content": spec.prompt}] if isinstance(spec.prompt, str) else list(spec.prompt)
    if eval_type is not None:
        if eval_type not in _EVAL_TYPE_PROMPTS:
            raise ConfigError(f"eval_type '{eval_type}' is unknown. Use {', '.join(_EVAL_TYPE_PROMPTS)}.")
        shown = " or ".join(f'"{choice}"' for choice in choices)
        added = "\n\n" + _EVAL_TYPE_PROMPTS[eval_type].format(choices=shown)
        turns[-1] = {**turns[-1], "content": turns[-1]["content"] + added}
    texts = {key: chat_as_text(value) if _is_chat(value) else value for key, value in values.items()}
    return [Message(role=turn["role"], content=filled(turn["content"], texts)) for turn in turns]


def judgement(
    completion: str,
    spec: ModelGradedSpec,
    choices: Sequence[str],
    *,
    eval_type: str | None,
    match_rule: MatchRule = "starts_or_endswith",
) -> tuple[str, float | None]:
    """Return the judge's choice with its score: that of the first matching line, or of the last if it reasons first."""
    parsed_as = spec.eval_type or eval_type
    if parsed_as is None:
        raise ConfigError(
            "neither the eval nor its modelgraded spec names an eval_type, so the judge's output cannot be parsed."
        )
    choice = choice_in(completion, choices, last_first=parsed_as.startswith("cot_classify"), match_rule=match_rule)
    return choice, _score(choice, choices, spec.choice_scores)


def choice_in(completion: str, choices: Sequence[str], *, last_first: bool, match_rule: MatchRule) -> str:
    """Return the choice that a line matches without punctuation; `__invalid__` if none does."""
    lines = completion.strip().split("\n")
    for line in reversed(lines) if last_first else lines:
        bare = "".join(character for character in line.strip() if character not in string.punctuation)
        if not bare:
            continue
        for choice in choices:
            if _matches(bare, choice, match_rule):
                return choice
    return INVALID


def several_as_one(completions: Sequence[str], template: str) -> str:
    """Join several completions of one prompt into the text that the judge compares."""
    parts = [
        filled(
            template,
            {
                "i": index + 1,
                "i_abc": string.ascii_lowercase[index % 26],
                "i_ABC": string.ascii_uppercase[index % 26],
                "output": completion,
                "n": len(completions),
            },
        )
        for index, completion in enumerate(completions)
    ]
    return "".join(parts).strip()


def escaped(prompt: Any) -> Any:
    """Double the braces of a prompt, as the judge's prompt requires."""
    if _is_chat(prompt):
        return [
            {**turn, "content": _double_braces(turn["content"])} if "content" in turn else dict(turn) for turn in prompt
        ]
    return _double_braces(prompt)


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template by `str.format`. Raises `DataError` for a missing key."""
    try:
        keys = [key for _, key, _, _ in string.Formatter().parse(template) if key]
        return template.format(**{key: values[key] for key in keys})
    except (KeyError, IndexError, ValueError) as error:
        raise DataError(
            f"a prompt of the registry cannot be filled: {error!r}. Available keys: {sorted(values)}."
        ) from error


def chat_as_text(chat: Sequence[Mapping[str, str]]) -> str:
    """Render a conversation as text with roles as prefixes; a single message has none."""
    if len(chat) == 1:
        return chat[0]["content"]
    prefixes = {"system": "", "example_user": "User: ", "example_assistant": "Assistant: "}
    lines = []
    for turn in chat:
        role = turn.get("name", turn.get("role", ""))
        lines.append(f"{prefixes.get(role, role.capitalize() + ': ')}{turn['content']}\n")
    return "".join(lines).lstrip()


def _score(choice: str, choices: Sequence[str], scores: Mapping[str, float] | str | None) -> float | None:
    if scores is None:
        return None
    by_choice = {name: float(name) for name in choices} if isinstance(scores, str) else scores
    return min(by_choice.values()) if choice == INVALID else by_choice[choice]


def _matches(line: str, choice: str, rule: MatchRule) -> bool:
    match rule:
        case "include":
            return line in choice
        case "exact":
            return line == choice
        case "endswith":
            return line.endswith(choice)
        case "starts_or_endswith":
            return line.startswith(choice) or line.endswith(choice)
    raise ConfigError(f"match_fn '{rule}' is unknown. Use include, exact, endswith or starts_or_endswith.")


def _double_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _is_chat(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(turn, Mapping) for turn in value)
