"""How alike two texts are, in [0, 1]: the measures of the API's `text_similarity` grader.

Words are runs of letters and digits, and single punctuation marks, in lower case. METEOR matches equal words
only (no stems, no WordNet), so that a score does not depend on which dictionaries a machine has.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

Measure = Literal[
    "fuzzy_match", "bleu", "gleu", "meteor", "cosine",
    "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l",
]  # fmt: skip
MAX_ORDER = 4
_WORD = re.compile(r"\w+|[^\w\s]")


def similarity(measure: Measure, text: str, reference: str) -> float:
    """One of the measures that need no model; `cosine` needs `cosine_similarity` and an embedder."""
    if measure == "fuzzy_match":
        return fuzz.ratio(text, reference) / 100
    words, expected = split_words(text), split_words(reference)
    if measure == "bleu":
        return bleu(words, expected)
    if measure == "gleu":
        return gleu(words, expected)
    if measure == "meteor":
        return meteor(words, expected)
    if measure == "rouge_l":
        return _f1(LCSseq.similarity(words, expected), len(words), len(expected))
    assert measure.startswith("rouge_"), f"'{measure}' is not a measure of texts alone"
    return rouge(words, expected, int(measure.removeprefix("rouge_")))


def split_words(text: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return _WORD.findall(text.lower())


def rouge(words: Sequence[str], reference: Sequence[str], order: int) -> float:
    """ROUGE-N (Lin 2004) as F1 of the n-grams."""
    found, expected = _ngrams(words, order), _ngrams(reference, order)
    return _f1((found & expected).total(), found.total(), expected.total())


def bleu(words: Sequence[str], reference: Sequence[str]) -> float:
    """Sentence BLEU-4 (Papineni et al. 2002); an order without a match counts as half a match.

    Orders longer than the text or the reference are left out, so that a short exact answer scores 1.
    """
    if not words or not reference:
        return float(list(words) == list(reference))
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
    """Google-BLEU (Wu et al. 2016): the smaller of precision and recall over all 1- to 4-grams."""
    orders = range(1, MAX_ORDER + 1)
    found = sum((_ngrams(words, order) for order in orders), Counter[tuple[str, ...]]())
    expected = sum((_ngrams(reference, order) for order in orders), Counter[tuple[str, ...]]())
    longest = max(found.total(), expected.total())
    return (found & expected).total() / longest if longest else 1.0


def meteor(words: Sequence[str], reference: Sequence[str]) -> float:
    """METEOR (Banerjee & Lavie 2005) on equal words: F-mean, 9:1 to recall, less a penalty for chunks."""
    aligned = _alignment(words, reference)
    if not aligned:
        return 0.0
    precision, recall = len(aligned) / len(words), len(aligned) / len(reference)
    mean = 10 * precision * recall / (recall + 9 * precision)
    chunks = 1 + sum(b != (a[0] + 1, a[1] + 1) for a, b in itertools.pairwise(aligned))
    return mean * (1 - 0.5 * (chunks / len(aligned)) ** 3)


def cosine_similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """The cosine of two vectors; 0 where one of them is zero."""
    norms = math.sqrt(sum(x * x for x in first) * sum(y * y for y in second))
    return sum(x * y for x, y in zip(first, second, strict=True)) / norms if norms else 0.0


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def _f1(matches: int, num_found: int, num_expected: int) -> float:
    if num_found == 0 or num_expected == 0:
        return float(num_found == num_expected)
    return 2 * matches / (num_found + num_expected)


def _alignment(words: Sequence[str], reference: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of equal words, each word once; a word goes on from its neighbour's match where it can."""
    free: dict[str, list[int]] = {}
    for place, word in enumerate(reference):
        free.setdefault(word, []).append(place)
    aligned: list[tuple[int, int]] = []
    for place, word in enumerate(words):
        places = free.get(word)
        if places:
            following = aligned[-1][1] + 1 if aligned and aligned[-1][0] == place - 1 else -1
            chosen = following if following in places else places[0]
            places.remove(chosen)
            aligned.append((place, chosen))
    return aligned
