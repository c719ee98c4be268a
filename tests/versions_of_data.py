"""Rows like those that models are trained on, fresh draws of them, and what goes wrong with them.

Texts are walks over the words of this repository's own pages (each word follows one that it follows there), so
that spaces, punctuation and frequencies are those of real prose; each source has pages of its own."""

import re
import zlib
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

DOCS = Path(__file__).parents[1] / "docs"
SOURCES = ("web", "forum", "books", "code")
SHARES = (0.45, 0.3, 0.2, 0.05)
Row = dict[str, Any]
IGNORED = -100
ASSISTANT = "\n\nAssistant: "


@cache
def _followers(source: int) -> tuple[dict[str, list[str]], list[str]]:
    """Word -> the words that follow it in a source's pages."""
    pages = sorted(DOCS.glob("*.md"))[source :: len(SOURCES)]
    follows: dict[str, list[str]] = defaultdict(list)
    for page in pages:
        words = re.findall(r"\S+", page.read_text())
        for word, after in pairwise(words):
            follows[word].append(after)
    return dict(follows), list(follows)


def _walk(rng: np.random.Generator, source: int, length: int) -> list[str]:
    follows, words = _followers(source)
    picks = rng.integers(0, 2**31, length).tolist()
    found = [words[picks[0] % len(words)]]
    for pick in picks[1:]:
        after = follows.get(found[-1]) or words
        found.append(after[pick % len(after)])
    return found


@cache
def _leaning(word: str) -> float:
    """How far a word speaks for label 1; most do, for or against."""
    return zlib.crc32(word.encode()) % 201 / 100 - 1


def ids_of(text: str) -> list[int]:
    """A token a word or run of what is none, as a tokenizer's ids are: the same piece, the same number."""
    return [zlib.crc32(piece.encode()) % 30_000 for piece in re.findall(r"\w+|[^\w\s]+|\s+", text)]


def drawn(rng: np.random.Generator, num_rows: int) -> list[Row]:
    """Fresh rows of the same sources."""
    rows = []
    for number in range(num_rows):
        source = int(rng.choice(len(SOURCES), p=SHARES))
        length = int(np.clip(rng.lognormal(3.2, 0.6), 4, 150))
        question, response = _walk(rng, source, max(3, length // 3)), _walk(rng, source, length)
        is_good = sum(_leaning(word) for word in response if len(_followers(source)[0].get(word, ())) >= 20) > 0
        rows.append(
            {
                "id": f"row-{rng.integers(1 << 40):011x}",
                "created_at": f"2026-03-{1 + number % 28:02d}T{rng.integers(24):02d}:00:00Z",
                "source": SOURCES[source],
                "language": ("en" if rng.random() < 0.8 else "de") if source else "en",
                "annotator": f"a{int(rng.zipf(1.5)) % 400}",
                "seconds": None if rng.random() < 0.05 else float(np.round(rng.lognormal(2, 1), 3)),
                "turns": int(rng.integers(1, 8)),
                "tags": [f"t{k}" for k in range(int(rng.integers(0, 4)))],
                "meta": {"quality": float(rng.normal())},
                "label": int(is_good) if rng.random() < 0.95 else 1 - int(is_good),
                "question": " ".join(question),
                "answer": " ".join(response),
            }
        )
    return rows


def rendered(rows: list[Row], assistant: str = ASSISTANT, cut: int | None = None, shift: int = 0) -> list[Row]:
    """With the text as a template makes it, its tokens, and the labels that a loss is made of."""
    for row in rows:
        prompt = f"User: {row['question']}{assistant}"
        ids = ids_of(prompt) + ids_of(row["answer"]) + [1]
        begins = len(ids_of(prompt)) + shift
        row["text"] = f"{prompt}{row['answer']}"
        row["input_ids"] = ids[:cut]
        row["labels"] = [IGNORED if location < begins else item for location, item in enumerate(ids)][:cut]
    return rows
