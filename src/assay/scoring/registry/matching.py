"""The rules Match, Includes, FuzzyMatch and JsonMatch of OpenAI Evals 3.0.1.

They are reproduced exactly, with their oddities: an empty ideal is a prefix of everything; an empty text fuzzily
matches only an empty text; JSON null equals nothing, not even null; 1 equals 1.0 and true.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

from assay.base.parsing.nesting import parse_json

_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def match(completion: str, ideals: Sequence[str]) -> bool:
    """Return whether the completion begins with one of the ideals."""
    return any(completion.startswith(ideal) for ideal in ideals)


def includes(completion: str, ideals: Sequence[str], *, ignore_case: bool = False) -> bool:
    """Return whether the completion contains one of the ideals."""
    if ignore_case:
        return any(ideal.lower() in completion.lower() for ideal in ideals)
    return any(ideal in completion for ideal in ideals)


def fuzzy_match(completion: str, ideals: Sequence[str]) -> bool:
    """Return whether the normalised completion contains an ideal or vice versa; empty matches only empty."""
    text = normalised(completion)
    for ideal in map(normalised, ideals):
        if not text or not ideal:
            if text == ideal:
                return True
        elif text in ideal or ideal in text:
            return True
    return False


def token_f1(completion: str, ideals: Sequence[str]) -> float:
    """Return the best F1 of normalised words over the ideals; 0 without a common word."""
    return max(_f1(normalised(completion).split(), normalised(ideal).split()) for ideal in ideals)


def normalised(text: str) -> str:
    """Normalise to lower case, without ASCII punctuation and articles, with single spaces."""
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def json_match(completion: str, ideals: Sequence[str]) -> bool:
    """Return whether the completion is JSON that equals an ideal. Raises `ValueError` for an invalid ideal."""
    try:
        text = parse_json(completion)
    except ValueError:
        text = None
    # Parse all ideals first, so that an invalid one is found for every completion.
    parsed = [parse_json(ideal) for ideal in ideals]
    return any(json_equal(text, ideal) for ideal in parsed)


def json_equal(first: Any, second: Any) -> bool:
    """Compare recursively; null, or a key that only one of them has, is never equal."""
    if first is None or second is None:
        return False
    if isinstance(first, dict):
        return isinstance(second, dict) and all(
            json_equal(first.get(key), second.get(key)) for key in first.keys() | second.keys()
        )
    if isinstance(first, list):
        return (
            isinstance(second, list)
            and len(first) == len(second)
            and all(json_equal(a, b) for a, b in zip(first, second, strict=True))
        )
    return bool(first == second)


def _f1(words: list[str], ideal: list[str]) -> float:
    shared = (Counter(words) & Counter(ideal)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(words), shared / len(ideal)
    return (2 * precision * recall) / (precision + recall)
