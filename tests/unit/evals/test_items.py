"""Items and held-out texts are read as their bytes are, and have what their graders read."""

import json

import pytest

from assay.base.errors import ConfigError, DataError
from assay.evals.config import BitsPerByte, Generation
from assay.evals.items import checked_items, read_documents, read_items


def test_a_line_of_items_ends_at_its_line_feed(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_bytes('\ufeff{"prompt": "a\u2028b\u0085c"}\r\n\n{"prompt": "d"}'.encode())
    assert {item.item_id: item.fields["prompt"] for item in read_items(path)} == {
        "000001": "a\u2028b\u0085c",
        "000003": "d",
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', "line 2 is not JSON: 'utf-8' codec"),
        (b'{"prompt": "a", "answer": 1, "answer": 2}', 'the key "answer" occurs twice'),
        (b'{"a":' * 100_000, "line 1 is not JSON"),
    ],
)
def test_a_line_that_says_two_things_or_none_is_named(tmp_path, data, message):
    (tmp_path / "items.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_items(tmp_path / "items.jsonl")


def test_line_ends_of_a_held_out_text_are_scored_as_they_are(tmp_path):
    data = b"first\r\nsecond\rthird\n"
    (tmp_path / "a.txt").write_bytes(data)
    config = BitsPerByte(type="bits_per_byte", name="b", files=("*.txt",))
    (document,) = read_documents(config, tmp_path)
    assert document.text.encode() == data


@pytest.mark.parametrize(
    ("reads", "items", "message"),
    [
        ("item.anwser", [{"answer": "a"}, {"answer": "b"}],
         r"reads item.anwser, but 2 of 2 items of .*items.jsonl lack it; perhaps you meant 'answer'. Fields "
         r"that are there: answer, prompt"),
        ("item.answer", [{"answer": "a"}, {}, {"answer": None}],
         r"reads item.answer, but 2 of 3 items of .*items.jsonl lack it \(the first: 000002\)"),
        ("sample.output_txt", [{"answer": "a"}], "reads sample.output_txt, which no sample has"),
    ],
)  # fmt: skip
def test_a_grader_that_reads_what_items_lack_is_refused_before_anything_is_answered(tmp_path, reads, items, message):
    (tmp_path / "items.jsonl").write_text(
        "\n".join(json.dumps({"prompt": "p", **item}) for item in items), encoding="utf-8"
    )
    config = Generation.model_validate(
        {
            "type": "generation",
            "name": "b",
            "items": "items.jsonl",
            "grader": {
                "type": "string_check",
                "name": "g",
                "operation": "eq",
                "input": "a",
                "reference": "{{ " + reads + " }}",
            },
        }
    )
    with pytest.raises(ConfigError, match=message):
        checked_items(config, tmp_path)
