"""Text similarity in [0, 1]: the measures of the API's `text_similarity` grader.

Words (`assay.base.words`) are compared in lower case; `fuzzy_match` compares characters. METEOR matches equal words
only (no stems, no WordNet), so that scores do not depend on installed dictionaries.
"""

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Literal

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

from assay.base.words import words_of

Measure = Literal[
    "fuzzy_match", "bleu", "gleu", "meteor", "cosine",
    "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l",
]  # fmt: skip
MAX_ORDER = 4


def similarity(measure: Measure, text: str, reference: str) -> float:
    """Compute a measure that needs no model; for `cosine` see `cosine_similarity`."""
    if measure == "fuzzy_match":
        return fuzz.ratio(text, reference) / 100
    words, expected = split_words(text), split_words(reference)
    if not words or not expected or words == expected:
        # Without words the quotients below are undefined.
        return float(words == expected)
    match measure:
        case "bleu":
            return bleu(words, expected)
        case "gleu":
            return gleu(words, expected)
        case "meteor":
            return meteor(words, expected)
        case "rouge_l":
            return _f1(LCSseq.similarity(words, expected), len(words), len(expected))
    assert measure.startswith("rouge_"), f"'{measure}' is not a measure of texts alone"
    return rouge(words, expected, int(measure.removeprefix("rouge_")))


def split_words(text: str) -> list[str]:
    """Split into lower-case words and punctuation marks."""
    return words_of(text.lower())


def rouge(words: Sequence[str], reference: Sequence[str], order: int) -> float:
    """Compute ROUGE-N (Lin 2004) as F1 of n-grams; a shorter reference is compared by n-grams of its length."""
    order = min(order, len(reference))
    found, expected = _ngrams(words, order), _ngrams(reference, order)
    return _f1((found & expected).total(), found.total(), expected.total())


def bleu(words: Sequence[str], reference: Sequence[str]) -> float:
    """Compute sentence BLEU-4 (Papineni et al. 2002); an order without a match counts as half a match.

    Orders above the length of the text or the reference are skipped, so that a short exact match scores 1.
    """
    logs = []
    for order in range(1, min(MAX_ORDER, len(words), len(reference)) + 1):
        found = _ngrams(words, order)
        matches = (found & _ngrams(reference, order)).total()
        logs.append(math.log(max(matches, 0.5) / found.total()))
        if order == 1 and matches == 0:
            return 0.0
    brevity = min(0.0, 1 - len(reference) / len(words))
    return math.exp(brevity + sum(logs) / len(logs))


def gleu(words: Sequence[str], reference: Sequence[str]) -> float:
    """Compute Google-BLEU (Wu et al. 2016): the smaller of precision and recall over all 1- to 4-grams."""
    orders = range(1, MAX_ORDER + 1)
    found = sum((_ngrams(words, order) for order in orders), Counter[tuple[str, ...]]())
    expected = sum((_ngrams(reference, order) for order in orders), Counter[tuple[str, ...]]())
    return (found & expected).total() / max(found.total(), expected.total())


def meteor(words: Sequence[str], reference: Sequence[str]) -> float:
    """Compute METEOR (Banerjee & Lavie 2005) on equal words: F-mean, 9:1 to recall, less a fragmentation penalty.

    As in the authors' program, a text equal to its reference has no penalty.
    """
    aligned = _alignment(words, reference)
    if not aligned or words == reference:
        return float(words == reference)
    precision, recall = len(aligned) / len(words), len(aligned) / len(reference)
    mean = 10 * precision * recall / (recall + 9 * precision)
    chunks = 1 + sum(b != (a[0] + 1, a[1] + 1) for a, b in itertools.pairwise(aligned))
    return mean * (1 - 0.5 * (chunks / len(aligned)) ** 3)


def cosine_similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero.

    Raises `ValueError` for vectors of unequal length or with non-finite values.
    """
    norms = math.hypot(*first), math.hypot(*second)
    if not all(map(math.isfinite, norms)):
        raise ValueError("an embedding holds a non-finite number")
    if not all(norms):
        return 0.0
    cosine = sum(x / norms[0] * (y / norms[1]) for x, y in zip(first, second, strict=True))
    return max(-1.0, min(1.0, cosine))


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def _f1(matches: int, num_found: int, num_expected: int) -> float:
    return 2 * matches / (num_found + num_expected)


def _alignment(words: Sequence[str], reference: Sequence[str]) -> list[tuple[int, int]]:
    """Align equal words one to one, preferring a match adjacent to that of the preceding word."""
    free: dict[str, deque[int]] = {}
    for position, word in enumerate(reference):
        free.setdefault(word, deque()).append(position)
    matched: set[int] = set()
    aligned: list[tuple[int, int]] = []
    for position, word in enumerate(words):
        positions = free.get(word, deque())
        following = aligned[-1][1] + 1 if aligned and aligned[-1][0] == position - 1 else len(reference)
        if following < len(reference) and reference[following] == word and following not in matched:
            chosen = following
        else:
            while positions and positions[0] in matched:
                positions.popleft()
            if not positions:
                continue
            chosen = positions.popleft()
        matched.add(chosen)
        aligned.append((position, chosen))
    return aligned
