"""Measures of likeness: what holds for every text, and other people's programs as oracles."""

import importlib.util
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.words import words_of
from assay.scoring.text_similarity import cosine_similarity, similarity, split_words

MEASURES = ["fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_2", "rouge_3", "rouge_5", "rouge_l"]
WORDS = ["a", "cat", "sat", "on", "the", "mat", "yes", "no"]
TEXTS = st.lists(st.sampled_from([*WORDS, "."]), min_size=1, max_size=12).map(" ".join)
FOREIGN = [
    "你好世界",
    "こんにちは",
    "สวัสดี",
    "नमस्ते",
    "مرحبا",
    "שלום",
    "Straße",
    "e\u0301te\u0301",
    "👩‍🔬",
    "١٢٣",
]
ANY_TEXT = st.one_of(
    TEXTS, st.text(max_size=30), st.lists(st.sampled_from(FOREIGN), max_size=6).map(" ".join), st.just("")
)
SHAPELESS = set("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {
    chr(code) for codes in (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)) for code in codes
}
LATIN, HAN = "abcdefgh", "你好世界文字"


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=25, deadline=None)
@given(text=ANY_TEXT, reference=ANY_TEXT)
def test_every_measure_stays_between_0_and_1(measure, text, reference):
    assert 0.0 <= similarity(measure, text, reference) <= 1.0


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=25, deadline=None)
@given(text=ANY_TEXT)
def test_a_text_is_wholly_like_itself(measure, text):
    assert similarity(measure, text, text) == pytest.approx(1.0)


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=25, deadline=None)
@given(
    text=st.text(LATIN + " ", max_size=40),
    reference=st.one_of(st.text(HAN, min_size=1, max_size=20), st.text("xyz", min_size=1, max_size=20)),
)
def test_texts_with_nothing_in_common_get_nothing(measure, text, reference):
    assert similarity(measure, text, reference) == 0.0
    assert similarity(measure, reference, text) == 0.0


@pytest.mark.parametrize("measure", ["fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_l"])
@settings(max_examples=25, deadline=None)
@given(text=TEXTS, reference=TEXTS)
def test_only_the_same_words_are_wholly_alike(measure, text, reference):
    """Longer n-grams cannot tell `a b a` from `b a b`, of which each has both pairs."""
    if sorted(text.split()) != sorted(reference.split()):
        assert similarity(measure, text, reference) < 1.0


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("text", "reference"), [("no", "yes"), ("", "yes"), ("yes", ""), (" \n", "yes"), ("", "你")])
def test_a_wrong_or_empty_answer_to_a_reference_of_a_word_gets_nothing(measure, text, reference):
    assert similarity(measure, text, reference) == 0.0


@pytest.mark.parametrize("measure", MEASURES)
def test_huge_and_repeated_texts_are_measured(measure):
    rng = np.random.default_rng(0)
    text, reference = "spam " * 20_000, " ".join(f"w{k}" for k in rng.integers(0, 50, 5_000))
    assert similarity(measure, text, text) == pytest.approx(1.0)
    assert similarity(measure, text, reference) < 0.5


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("rouge_1", 10 / 12),  # 5 of 6 words each way
        ("rouge_2", 6 / 10),  # "the cat", "on the", "the mat"
        ("rouge_l", 10 / 12),
        ("gleu", 9 / 18),  # 5 + 3 + 1 + 0 of 6 + 5 + 4 + 3 n-grams
        ("bleu", (5 / 6 * 3 / 5 * 1 / 4 * 0.5 / 3) ** 0.25),
        ("meteor", 10 * (5 / 6) ** 2 / (10 * 5 / 6) * (1 - 0.5 * (2 / 5) ** 3)),
    ],
)
def test_the_measures_by_hand(measure, expected):
    assert similarity(measure, "the cat sat on the mat", "the cat lay on the mat") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat, it's", ["the", "cat", ",", "it", "'", "s"]),
        ("你好 GPT4", ["你", "好", "gpt4"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),  # marks stay with their letters
        ("ye\u200bs \u200b\u00ad", ["yes"]),  # what has no shape
    ],
)
def test_words_are_those_of_each_script(text, words):
    assert split_words(text) == words


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_no_visible_character_is_lost(text):
    visible = [c for c in text if not c.isspace() and unicodedata.category(c) != "Cf" and c not in SHAPELESS]
    assert "".join(words_of(text)) == "".join(visible)


def test_a_part_of_a_sentence_without_spaces_is_told_from_another_one():
    assert similarity("rouge_1", "你好世界", "你好朋友") == pytest.approx(0.5)


PLAIN = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12)


@pytest.fixture
def oracle(requires):
    def named(module: str):
        requires(module, importlib.util.find_spec(module) is not None, "install assay[dev] to compare with it")
        return importlib.import_module(module)

    return named


@settings(max_examples=25, deadline=None)
@given(pairs=st.lists(st.tuples(PLAIN, PLAIN), min_size=2, max_size=2))
def check_against_rouge_score(scorer_of, pairs):
    for words, reference in pairs:
        text, expected = " ".join(words), " ".join(reference)
        for measure, expected_score in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")):
            if len(reference) >= 2:
                score = scorer_of(expected_score).score(expected, text)[expected_score].fmeasure
                assert similarity(measure, text, expected) == pytest.approx(score)


def test_rouge_is_that_of_rouge_score(oracle):
    oracle("rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    scorers = {name: RougeScorer([name]) for name in ("rouge1", "rouge2", "rougeL")}
    check_against_rouge_score(scorers.__getitem__)


class NoWordNet:
    def synsets(self, word):
        return []


class NoStems:
    def stem(self, word):
        return word


@settings(max_examples=200, deadline=None)
@given(words=PLAIN, reference=PLAIN)
def check_against_nltk(bleu_score, gleu_score, words, reference):
    text, expected = " ".join(words), " ".join(reference)
    order = min(4, len(words), len(reference))
    smoothing = bleu_score.SmoothingFunction(epsilon=0.5).method1
    expected_score = bleu_score.sentence_bleu([reference], words, (1 / order,) * order, smoothing_function=smoothing)
    assert similarity("bleu", text, expected) == pytest.approx(float(expected_score))
    assert similarity("gleu", text, expected) == pytest.approx(gleu_score.sentence_gleu([reference], words))


def test_bleu_and_gleu_are_those_of_nltk(oracle):
    oracle("nltk")
    from nltk.translate import bleu_score, gleu_score

    check_against_nltk(bleu_score, gleu_score)


@settings(max_examples=200, deadline=None)
@given(
    words=st.permutations(WORDS),
    reference=st.permutations(WORDS),
    cut=st.integers(1, 8),
    other=st.integers(1, 8),
)
def check_against_nltks_meteor(meteor_score, words, reference, cut, other):
    """Words that occur once can be aligned in one way only. An exact answer is told otherwise by design."""
    words, reference = words[:cut], reference[:other]
    expected_score = meteor_score.single_meteor_score(reference, words, stemmer=NoStems(), wordnet=NoWordNet())
    if words != reference:
        assert similarity("meteor", " ".join(words), " ".join(reference)) == pytest.approx(expected_score)


def test_meteor_is_that_of_nltk(oracle):
    oracle("nltk")
    from nltk.translate import meteor_score

    check_against_nltks_meteor(meteor_score)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=20), reference=st.text(max_size=20))
def test_fuzzy_match_is_twice_the_common_subsequence_over_both_lengths(text, reference):
    """By the textbook's table, where rapidfuzz counts bits."""
    lengths = [0] * (len(reference) + 1)
    for character in text:
        above = lengths[:]
        for column, other in enumerate(reference):
            lengths[column + 1] = above[column] + 1 if character == other else max(above[column + 1], lengths[column])
    total_length = len(text) + len(reference)
    assert similarity("fuzzy_match", text, reference) == pytest.approx(
        2 * lengths[-1] / total_length if total_length else 1.0
    )


VECTORS = st.lists(st.floats(-1e200, 1e200, allow_subnormal=False), min_size=3, max_size=3)


@settings(max_examples=100, deadline=None)
@given(first=VECTORS, second=VECTORS)
def test_a_cosine_is_a_number_between_minus_1_and_1(first, second):
    assert -1.0 <= cosine_similarity(first, second) <= 1.0
    assert cosine_similarity(first, first) == pytest.approx(1.0 if any(first) else 0.0)


@pytest.mark.parametrize(("first", "second"), [([1.0], [1.0, 2.0]), ([float("nan")], [1.0]), ([1.0], [float("inf")])])
def test_vectors_that_cannot_be_compared_are_refused(first, second):
    with pytest.raises(ValueError, match=r"number|argument"):
        cosine_similarity(first, second)
