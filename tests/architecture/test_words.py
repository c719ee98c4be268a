"""Identifiers use the words of the field: those on the left of this table are not names here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from import_graph import syntax

ROOT = Path(__file__).parents[2]

REPLACEMENTS = {
    "place places placed": "launcher, location, position, slot, index",
    "ask asks asked": "request, requested, query",
    "tell tells told teller telling": "stream, notify, report, label leakage",
    "each every": "the noun: run, commit, gate",
    "shelf shelves": "repository",
    "desk": "service, processor",
    "door": "server, auth middleware",
    "board turns pace standing": "worker registry, fair share, ETA, status",
    "repeats": "idempotency keys",
    "wish wishes wished": "desired state",
    "vain": "without progress",
    "luck worlds lots": "random draws, simulations",
    "dossier course sketch": "offer report, recommended action, greedy schedule",
    "begun calm played": "in progress, baseline, simulated",
    "cure cures mend mended mends": "hint, fix",
    "beside": "background",
    "remark remarks notices findings": "notes, events, results",
    "striking doubles strange odd whose": "ranking, duplicates, unexpected, outlier, owner",
    "seal bench": "sealed holdout",
    "answer answers answered taught": "completion (a model's output), training sample",
    "learned": "collected rollouts, training samples, trained",
    "paid": "reward, shaped reward",
    "settled": "step statistics",
    "book judged": "reward cache",
    "journal journaled": "rollout log",
    "helpers": "frozen models, reference model",
    "spell spelled spells": "detokenize, type inference",
    "likeliest": "top logprobs",
    "stretch stretches portion portions reach spread": "segment, slice, shuffle radius",
    "surroundings whereabouts": "environment, last seen",
    "heir heirs lead bye hand": "successor, leader, handover message",
    "retry_policy": "retry policy, retry budget",
    "watcher": "observer",
    "say says said": "output, message, text",
    "made makes": "the verb of the thing: built, trained, completed",
    "wanted given taken kept": "target, argument, acquired, retained",
    "there ways thing things both theirs mine": "the noun",
}
BANNED = {word for words in REPLACEMENTS for word in words.split()}

ALLOWED: dict[str, str] = {
    "turns": "of a conversation",
    "tell": "of Python's file protocol",
    "MathAnswer": "the grader type of the fine-tuning API",
    "math_answer": "the grader type of the fine-tuning API",
    "TensorBoardSink": "the tool's name",
    "connection_made": "of asyncio.Protocol",
    "every": "the interval in steps, as the key outer.every",
}
"""Identifiers that hold such a word in another sense, with the sense."""


def words_of(identifier: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that this file itself gives: functions, classes, parameters, variables, fields, aliases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr), node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node.lineno


def banned_names(path: Path) -> Iterator[tuple[str, int]]:
    is_test = path.is_relative_to(ROOT / "tests")
    for name, line in [(path.stem, 0), *defined_names(syntax(path))]:
        if is_test and name.startswith("test_"):
            continue  # a sentence about behaviour: "each" and "made" are English
        words = words_of(name)
        if len(words) > 1:  # `commit_every` and `every_s` are intervals
            words = [word for word in words if word != "every"]
        if name not in ALLOWED and (BANNED.intersection(words) or "log_probs" in name):
            yield name, line


def _files() -> list[Path]:
    return [path for folder in ("src", "tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_identifier_holds_a_word_that_the_field_does_not_use() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in _files() for name, line in banned_names(path)]
    assert found == []


def test_the_banned_words_are_found() -> None:
    tree = ast.parse("def asked(told): made = [each for each in told]\nclass JobShelf: kept: int")
    assert {name for name, _ in defined_names(tree)} == {"asked", "told", "made", "each", "JobShelf", "kept"}
    assert words_of("JobShelf_of_SSEThing") == ["job", "shelf", "of", "sse", "thing"]
