import io
import json
from pathlib import Path

import pytest

from assay.data.dataset.fields import BuildConfig, row_reader
from assay.workers.fine_tuning.training_file import MAX_FAULTS, Fault, file_problem, read_training_file

Found = tuple[int, list[Fault]]
"""Number of rows, and faults."""


def read(data: bytes, **kwargs) -> tuple[Found, list]:
    config = BuildConfig(tokenizer="new:300", **kwargs)
    out = io.BytesIO()
    found = read_training_file(io.BytesIO(data), row_reader(config), out)
    return found, [json.loads(line) for line in out.getvalue().splitlines()]


def test_rows_are_read_whatever_ends_their_lines() -> None:
    row = b'{"text": "a\xc3\xa9", "label": 1}'
    for data in (
        row + b"\n" + row,
        row + b"\r\n" + row + b"\r\n",
        b"\xef\xbb\xbf" + row + b"\n\n" + row + b"\n\n",
        (b"\xef\xbb\xbf" + row + b"\n") * 2,
        b"\xef\xbb\xbf\n" + row + b"\n" + row,
    ):
        found, rows = read(data)
        assert (*found, rows) == (2, [], [{"text": "aé", "label": 1}] * 2)


def test_messages_of_a_classified_row_are_one_text() -> None:
    _, rows = read(
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": "x"}'
    )
    assert rows == [{"text": "a\n\nb", "label": "x"}]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "not JSON"),
        (b"[1]", "expected a JSON object"),
        (b'"text"', "expected a JSON object"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "100 deep"),
        (b'{"text": "\\ud800", "label": 1}', "surrogate"),
        (b'{"text": "a"}', "'label' must be"),
        (b'{"text": "a", "label": null}', "'label' must be"),
        (b'{"text": "a", "label": ["x"]}', "'label' must be"),
        (b'{"label": 1}', "either 'text' or 'messages'"),
        (b'{"text": "a", "messages": [], "label": 1}', "either 'text' or 'messages'"),
        (b'{"text": " ", "label": 1}', "non-empty string"),
        (b'{"text": 5, "label": 1}', "non-empty string"),
        (b'{"messages": [], "label": 1}', "must be a list of messages"),
        (b'{"messages": [{"role": "user"}], "label": 1}', "message 1: 'content'"),
        (b'{"text": "a", "label": 1, "other": 2}', "unknown key 'other'"),
    ],
)
def test_a_line_that_cannot_be_trained_on_is_named(line: bytes, what: str) -> None:
    good = b'{"text": "a", "label": 1}\n'
    found, rows = read(good + line + b"\n" + good)
    ((number, output),) = found[1]
    assert (number, len(rows)) == (2, 2)
    assert what in output
    assert f"Invalid file f: 1 line cannot be used: line 2: {output}" == file_problem("f", *found)


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([{"role": "wizard", "content": "x"}], "role"),
        ([{"role": "user", "content": "x"}], "no message is the assistant's"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}], "says nothing"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}], "weight 0"),
    ],
)
def test_chats_are_judged_by_the_reader_that_builds_them(messages: list, what: str, tmp_path: Path) -> None:
    good = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    data = "\n".join(json.dumps(row) for row in (good, {"messages": messages})).encode()
    found, rows = read(data, format="chat", chat_template="chatml")
    assert rows == [good]
    assert [fault.line for fault in found[1]] == [2] and what in found[1][0].what


def test_at_most_a_hundred_faults_are_named_and_the_rest_is_not_read() -> None:
    lines = iter([b"no\n"] * 1_000_000)
    found = read_training_file(lines, row_reader(BuildConfig(tokenizer="new:300")), io.BytesIO())
    assert [fault.line for fault in found[1]] == [*range(1, MAX_FAULTS + 1)]
    assert "100 lines cannot be used (the first 100 are listed)" in file_problem("f", *found)
    assert sum(1 for _ in lines) == 1_000_000 - MAX_FAULTS


def test_a_broken_line_far_behind_is_found() -> None:
    good = b'{"text": "a", "label": 1}\n'
    found = read_training_file(
        (good if n < 20_000 else b"{\n" for n in range(20_001)),
        row_reader(BuildConfig(tokenizer="new:300")),
        io.BytesIO(),
    )
    assert [fault.line for fault in found[1]] == [20_001]


def test_a_file_without_rows_trains_nothing() -> None:
    assert file_problem("f", *read(b"\n\n")[0]) == "Invalid file f: it has no rows."


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"text": "a", "label": 1, "text": "b"}', 'the key "text" occurs twice in one object'),
        (
            b'{"messages": [{"role": "user", "role": "system", "content": "a"}], "label": 1}',
            '"role" occurs twice',
        ),
        (b'{"text": "a\\u0000b", "label": 1}', "U+0000"),
    ],
)
def test_what_the_api_refuses_in_a_request_it_refuses_in_a_file(line: bytes, what: str) -> None:
    found, _ = read(line)
    assert len(found[1]) == 1 and what in found[1][0].what


def test_the_text_of_an_escape_is_a_text() -> None:
    _, rows = read(rb'{"text": "write \\u0000", "label": 1}')
    assert rows == [{"text": "write \\u0000", "label": 1}]
