"""N-grams in common, however a copy is written."""

import json
import unicodedata
from html import escape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.dataset.build import build_dataset
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import train_tokenizer
from assay.evals.contamination import (
    DatasetText,
    HeldOut,
    TextFiles,
    compared_words,
    contamination,
    ngram_hashes,
    prompts,
)
from assay.statistics.benchmark_items import ItemScore

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


class Texts:
    """Training text in memory."""

    fingerprint = "t"

    def __init__(self, *texts):
        self._texts = texts

    def texts(self):
        yield from self._texts


def share_found(text, copy):
    return contamination(prompts({"q": [text]}), [], Texts("Before it stands this. " + copy + " So it ends.")).overlap


@settings(max_examples=60, deadline=None)
@given(first=WORDS, second=WORDS)
def test_two_texts_share_a_hash_where_they_share_an_ngram_and_nowhere_else(first, second):
    def ngrams(words):
        return {tuple(words[k : k + 3]) for k in range(len(words) - 2)}

    shared = np.intersect1d(ngram_hashes(first, 3), ngram_hashes(second, 3))
    assert len(shared) == len(ngrams(first) & ngrams(second))


def test_a_text_shorter_than_an_ngram_has_none():
    assert len(ngram_hashes(["one", "two"], 3)) == 0


def test_a_leak_is_found_in_the_tokens_of_a_dataset(tmp_path, write_lines):
    rng = np.random.default_rng(0)
    texts = [" ".join(f"word{k}" for k in rng.integers(0, 900, 40)) for _ in range(30)]
    tokenizer = train_tokenizer(texts, vocab_size=400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rows = write_lines("rows.jsonl", *[{"text": text} for text in texts[:20]])
    config = BuildConfig(tokenizer=str(tmp_path / "tokenizer.json"), label_field=None)
    build_dataset([rows], tmp_path / "dataset", config)
    held_out = [HeldOut(texts[k], np.array([0, len(texts[k])]), (f"block{k}",)) for k in (3, 25)]
    training = DatasetText(Dataset.open(tmp_path / "dataset"), tokenizer)
    found = contamination(held_out, [], training, ngram=13)
    assert found.items_found == ("block3",)
    assert found.dataset_fingerprint == Dataset.open(tmp_path / "dataset").fingerprint


ENGLISH = (
    "Naïve café owners re-read the well-known state-of-the-art report: “Which of these twenty-one firms "
    "first sold coffee in Zürich, and why did it fail?”"
)
CHINESE = "下列哪一项最准确地描述了第一次世界大战爆发的直接原因，以及它对欧洲各国的影响？"
THAI = "ข้อใดต่อไปนี้อธิบายสาเหตุของสงครามโลกครั้งที่หนึ่งได้ถูกต้องที่สุด"
HINDI = "निम्नलिखित में से कौन सा कथन प्रथम विश्व युद्ध के तात्कालिक कारण का सबसे सटीक वर्णन करता है"
KOREAN = "다음 중 제일차 세계 대전의 직접적인 원인을 가장 정확하게 설명한 것은 무엇이며 그 까닭은 어디에 있는가"
COPIES = {
    "as it is": lambda text: text,
    "in capitals": str.upper,
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "compatible": lambda text: unicodedata.normalize("NFKC", text),
    "wide letters": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "zero-width characters": lambda text: "\u200b".join(text),
    "joiners and a mark of direction": lambda text: "\u200f" + "\u2060".join(text) + "\ufeff",
    "soft hyphens": lambda text: text.replace("e", "e\u00ad"),
    "other hyphens": lambda text: text.replace("-", "\u2011"),
    "no hyphens": lambda text: text.replace("-", " "),
    "hyphens at the ends of lines": lambda text: text.replace("which", "wh-\nich").replace("report", "re-\n  port"),
    "bold and links": lambda text: text.replace("report", "[**report**](https://example.org/a_b?c=d)"),
    "HTML": lambda text: "<p>" + escape(text).replace(" ", ' <span class="w x">', 3).replace("é", "&eacute;") + "</p>",
    "LaTeX": lambda text: rf"\textbf{{{text}}}".replace("first", r"\emph{first}"),
    "JSON": lambda text: json.dumps({"text": text.replace(" ", "\n")}),
    "JSON in JSON": lambda text: json.dumps(json.dumps([text])),
    "other line ends": lambda text: text.replace(" ", "\r\n"),
    "no punctuation": lambda text: "".join(
        c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text
    ),
    "emphasis": lambda text: text.replace("these", "_these_").replace("which", "`which`"),
}


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, THAI, HINDI, KOREAN], ids=["en", "zh", "th", "hi", "ko"])
@pytest.mark.parametrize("copy", COPIES)
def test_no_way_of_writing_hides_a_copy(text, copy):
    assert share_found(text, COPIES[copy](text)) == 1.0


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, THAI, HINDI, KOREAN], ids=["en", "zh", "th", "hi", "ko"])
def test_what_is_written_backwards_is_no_copy(text):
    assert share_found(text, " ".join(reversed(compared_words(text)))) == 0.0


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_every_text_has_its_own_words_in_every_normal_form(text):
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert compared_words(unicodedata.normalize(form, text)) == compared_words(text)


def test_what_is_too_short_is_said_and_not_passed():
    texts = {"short": ["What is 2 + 3?"], "long": [ENGLISH], "new": [" ".join(f"w{k}" for k in range(20))]}
    items = [ItemScore(name, name, 1.0) for name in texts]
    found = contamination(prompts(texts), items, Texts(ENGLISH, "What is 2 + 3?"))
    assert (found.num_items, found.num_items_searched, found.items_found) == (3, 2, ("long",))
    nothing = contamination(prompts({"short": texts["short"]}), items[:1], Texts("What is 2 + 3?"))
    assert (nothing.num_ngrams, nothing.num_items_searched, nothing.overlap) == (0, 0, None)


def test_what_all_items_share_is_no_items_own():
    shared = " ".join(f"instruction{k}" for k in range(30))
    texts = {name: [shared, " ".join(f"{name}{k}" for k in range(20))] for name in ("a", "b")}
    assert contamination(prompts(texts), [], Texts(shared)).num_found == 0
    assert contamination(prompts(texts), [], Texts(texts["b"][1])).items_found == ("b",)


@pytest.mark.parametrize("block", [16, 64, 100])
@pytest.mark.parametrize("text", [ENGLISH * 8, CHINESE * 8], ids=["en", "zh"])
def test_items_of_a_text_are_searched_over_their_borders(block, text):
    size = len(text.encode())
    boundaries = np.array([*range(0, size, block), size])
    held_out = HeldOut(text, boundaries, tuple(f"block{k}" for k in range(len(boundaries) - 1)))
    found = contamination([held_out], [], Texts(text))
    assert found.overlap == 1.0
    assert found.num_ngrams == len(compared_words(text)) - 12


def test_half_characters_that_json_can_spell_are_searched(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "\\ud800 ' + ENGLISH + '"}')
    found = contamination(prompts({"q": ["\ud800 " + ENGLISH]}), [], TextFiles([tmp_path]))
    assert found.overlap == 1.0
