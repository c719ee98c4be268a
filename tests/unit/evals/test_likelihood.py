"""Multiple choice and bits per byte."""

import numpy as np
import pytest

from assay.base.errors import DataError
from assay.evals.config import BitsPerByte, MultipleChoice
from assay.evals.contamination import TextFiles
from assay.evals.likelihood import BitsPerByteScorer, MultipleChoiceScorer


class Lengths:
    """Finds a continuation as costly as it is long, 'cheap' at half the price."""

    def continuation_bits(self, prompt: str, continuation: str) -> tuple[float, int]:
        return len(continuation) * (0.5 if continuation == "cheap" else 1.0), 2


def choice_scorer(path, **options):
    config = MultipleChoice(type="multiple_choice", name="m", items=path.name, **options)
    return MultipleChoiceScorer(config, path.parent, Lengths())


def test_the_likeliest_choice_is_compared_with_the_right_one(write_lines):
    path = write_lines(
        "q.jsonl",
        {"prompt": "p", "choices": ["long one", "x"], "answer": 1},
        {"id": "b", "cluster": "c", "prompt": "p", "choices": ["long one", "x"], "answer": 0},
    )
    first, second = choice_scorer(path).score_chunk(0)
    assert (first.item_id, first.cluster, first.score, first.completion) == ("000001", "000001", 1.0, "x")
    assert (second.item_id, second.cluster, second.score) == ("b", "c", 0.0)


def test_normalising_by_bytes_does_not_favour_short_choices(write_lines):
    path = write_lines("q.jsonl", {"prompt": "p", "choices": ["xx", "cheap"], "answer": 1})
    assert choice_scorer(path).score_chunk(0)[0].score == 0.0
    assert choice_scorer(path, normalise="bytes").score_chunk(0)[0].score == 1.0


@pytest.mark.parametrize(
    "row",
    [{"prompt": "p", "choices": ["a"], "answer": 0}, {"prompt": "p", "choices": ["a", "b"], "answer": 2},
     {"choices": ["a", "b"], "answer": 0}, {"prompt": "p", "choices": ["a", ""], "answer": 0}],
)  # fmt: skip
def test_an_item_that_asks_nothing_is_named(write_lines, row):
    with pytest.raises(DataError, match="item '000001': expected prompt"):
        choice_scorer(write_lines("q.jsonl", row))


def bits_scorer(folder, model, training=None, **options):
    config = BitsPerByte(type="bits_per_byte", name="b", files=("*.py",), block_bytes=64, **options)
    return BitsPerByteScorer(config, folder, model, training)


SOURCE = "def add(first, second):\n    return first + second\n\n\n" * 6


def test_the_blocks_of_a_file_hold_its_bits_and_its_bytes(tmp_path, tiny_model):
    (tmp_path / "a.py").write_text(SOURCE + "ß ✓")
    (tmp_path / "b.py").write_text("x = 1\n")
    scorer = bits_scorer(tmp_path, tiny_model)
    assert scorer.num_chunks == 2
    items = scorer.score_chunk(0)
    found = tiny_model.text_bits(SOURCE + "ß ✓")
    assert sum(item.weight for item in items) == found.num_bytes
    assert sum(item.weight * item.score for item in items) == pytest.approx(found.bits.sum())
    assert {item.cluster for item in items} == {"a.py"}
    assert all(32 <= item.weight < 96 for item in items)
    assert [item.item_id for item in scorer.score_chunk(1)] == ["b.py#0000"]


def test_excluded_files_are_left_out_and_no_file_at_all_is_an_error(tmp_path, tiny_model):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "generated.py").write_text("y = 2\n")
    assert bits_scorer(tmp_path, tiny_model, exclude=("gen*.py",)).num_chunks == 1
    with pytest.raises(DataError, match="match no file"):
        bits_scorer(tmp_path, tiny_model, exclude=("*.py",))


def test_the_version_follows_the_text(tmp_path, tiny_model):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = bits_scorer(tmp_path, tiny_model).identity
    (tmp_path / "a.py").write_text("x = 2\n")
    after = bits_scorer(tmp_path, tiny_model).identity
    assert before.benchmark_sha256 != after.benchmark_sha256
    assert before.prompt_sha256 == after.prompt_sha256


def words(rng, count):
    return " ".join(f"word{k}" for k in rng.integers(0, 5000, count))


def test_a_planted_leak_is_found_block_by_block(tmp_path, tiny_model):
    """One of two held-out files stands, re-indented and in capitals, in the middle of the training text."""
    rng = np.random.default_rng(1)
    held_out, training = tmp_path / "held-out", tmp_path / "training"
    held_out.mkdir(), training.mkdir()
    clean, leaked = words(rng, 300), words(rng, 300)
    (held_out / "clean.py").write_text(clean)
    (held_out / "leaked.py").write_text(leaked)
    (training / "copy.txt").write_text(
        words(rng, 500) + "\n  " + leaked.upper().replace(" ", "\n   ") + words(rng, 500)
    )
    config = BitsPerByte(type="bits_per_byte", name="b", files=("*.py",), block_bytes=512)
    scorer = BitsPerByteScorer(config, held_out, tiny_model, TextFiles([training]))
    items = [item for chunk in range(scorer.num_chunks) for item in scorer.score_chunk(chunk)]
    found = scorer.contamination(items)
    assert {name.partition("#")[0] for name in found.items_found} == {"leaked.py"}
    assert found.num_items_found == sum(item.cluster == "leaked.py" for item in items)
    assert 0.4 < found.overlap < 0.6
    alone = [item for item in items if item.cluster == "clean.py"]
    mean = np.average([item.score for item in alone], weights=[item.weight for item in alone])
    assert found.score_without == pytest.approx(mean)


def test_no_leak_is_found_where_there_is_none(tmp_path, tiny_model):
    rng = np.random.default_rng(2)
    (tmp_path / "a.py").write_text(words(rng, 200))
    (tmp_path / "training.txt").write_text(words(rng, 5000))
    scorer = bits_scorer(tmp_path, tiny_model, TextFiles([tmp_path / "training.txt"]))
    found = scorer.contamination(scorer.score_chunk(0))
    assert (found.num_found, found.num_items_found) == (0, 0)
    assert found.num_ngrams > 0


def test_without_training_text_nothing_is_claimed(tmp_path, tiny_model):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert bits_scorer(tmp_path, tiny_model).contamination([]) is None


def test_prompts_and_choices_are_searched(write_lines, tmp_path):
    rng = np.random.default_rng(3)
    leaked, right, other = words(rng, 30), words(rng, 20), words(rng, 30)
    path = write_lines(
        "q.jsonl",
        {"id": "prompt", "prompt": leaked, "choices": ["a", "b"], "answer": 0},
        {"id": "choice", "prompt": "Which?", "choices": [right, "c"], "answer": 0},
        {"id": "clean", "prompt": other, "choices": ["d", "e"], "answer": 0},
        {"id": "short", "prompt": "Why?", "choices": ["f", "g"], "answer": 0},
    )
    (tmp_path / "training.txt").write_text(f"{leaked}\nA. {right}")
    config = MultipleChoice(type="multiple_choice", name="m", items=path.name)
    scorer = MultipleChoiceScorer(config, path.parent, Lengths(), TextFiles([tmp_path / "training.txt"]))
    found = scorer.contamination(scorer.score_chunk(0))
    assert set(found.items_found) == {"prompt", "choice"}
    assert (found.num_items, found.num_items_searched) == (4, 3)
    assert scorer.training_fingerprint == found.dataset_fingerprint
