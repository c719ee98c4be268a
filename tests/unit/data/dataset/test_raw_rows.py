import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.data.dataset.raw import lines as raw_rows
from assay.data.dataset.raw.find import find_spans

TEXTS = st.lists(st.text(max_size=12), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, rows_per_span=st.integers(1, 8), block=st.integers(1, 64), has_last_feed=st.booleans())
def test_the_spans_of_a_file_hold_each_line_once_and_in_order(
    tmp_path: Path, monkeypatch, texts: list[str], rows_per_span: int, block: int, has_last_feed: bool
) -> None:
    monkeypatch.setattr(raw_rows, "BLOCK_BYTES", block)
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path.write_bytes(("\n".join(lines) + "\n" * has_last_feed).encode())
    spans = [list(span.rows()) for span in find_spans([path], rows_per_span)]
    assert all(len(rows) == rows_per_span for rows in spans[:-1])
    found = [row for rows in spans for row in rows]
    assert [row["text"] for _, row in found] == texts
    assert [where for where, _ in found] == [f"{path}: line {number}" for number in range(1, len(texts) + 1)]


def test_spans_of_several_sources_do_not_mix(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"n": 1}\n{"n": 2}\n{"n": 3}')
    spans = find_spans([tmp_path / "b.jsonl", tmp_path / "a.jsonl"], 2)
    assert [(span.source.name, len(list(span.rows()))) for span in spans] == [
        ("b.jsonl", 2),
        ("b.jsonl", 1),
        ("a.jsonl", 2),
        ("a.jsonl", 1),
    ]
    first, second, *of_the_copy = [span.digest(()) for span in spans]
    assert first != second
    assert of_the_copy == [first, second]


def test_blank_lines_are_no_rows_and_count_as_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\n{"n": 1}\n \n\r\n\n{"n": 2}\n\n')
    spans = [list(span.rows()) for span in find_spans([tmp_path / "a.jsonl"], 2)]
    source = tmp_path / "a.jsonl"
    assert spans == [[(f"{source}: line 2", {"n": 1})], [], [(f"{source}: line 6", {"n": 2})], []]
