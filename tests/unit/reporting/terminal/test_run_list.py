import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reporting.documents.runs.run_list import runs_table
from assay.reporting.terminal.table import table_lines
from assay.reporting.views.runs.run_list import RunLine


def line(run_id: str = "demo-1", **fields: object) -> RunLine:
    return RunLine.model_validate(
        {
            "run_id": run_id, "name": "demo", "status": "succeeded", "created": 0.0, "step": 1200,
            "total_steps": 1200, "world_sizes": (2, 1), "last_seen": 3540.0, "tags": (), "attempts": 2,
            "metric": "AUC", "value": 0.9, "higher_is_better": True, "auc": 0.9, "device_hours": 0.5,
            "started": "process 1 on a", "forked_from": None, "note": None, "imported": None, **fields,
        }
    )  # fmt: skip


def rows(lines: list[RunLine], width: int | None = None) -> list[str]:
    return [click.unstyle(row) for row in table_lines(runs_table(lines, now_s=3600.0), width=width)[0]]


def test_a_row_says_how_a_run_stands_in_columns_as_wide_as_they_must_be() -> None:
    assert rows([line(), line("a-longer-name", status="gone", step=7, value=None, last_seen=None)]) == [
        "run            status                  step  ranks  attempts    measured  device time"
        "     started (UTC)  age  last sign",
        "demo-1         succeeded        1,200/1,200  2→1           2  AUC 0.9000  30 min 00 s"
        "  1970-01-01 00:00  1 h      1 min",
        "a-longer-name  supervisor gone      7/1,200  2→1           2              30 min 00 s  1970-01-01 00:00  1 h",
    ]


def test_a_stopped_run_is_called_so_because_the_record_does_not_say_who_asked() -> None:
    (_, row) = rows([line(status="preempted")])
    assert " stopped " in row and "preempted" not in row


def test_remarks_have_columns_where_there_are_any_and_never_a_line_of_their_own() -> None:
    heading, noted, _ = rows([line(tags=("good", "week 3"), note="labels\nwere  wrong"), line()])
    assert heading.endswith("  tags         note")
    assert noted.endswith("  good week 3  labels were wrong")


def test_a_pipe_gets_every_line_whole() -> None:
    assert rows([line(note="long " * 100)])[1].endswith("long long")


@settings(max_examples=50, deadline=None)
@given(width=st.integers(40, 200), note=st.text(st.characters(codec="utf-8"), max_size=80))
def test_what_a_terminal_has_no_room_for_is_left_out_and_never_the_names(width: int, note: str) -> None:
    heading, row = rows([line(note=note)], width)
    assert row.startswith("demo-1  succeeded  1,200/1,200")
    assert len(heading) <= max(width, 75)
    assert all(word in heading for word in ("run", "status", "step", "measured", "age"))


@pytest.mark.parametrize(("width", "gone"), [(104, ["started"]), (74, ["started", "last sign", "attempts"])])
def test_the_least_needed_column_goes_first(width: int, gone: list[str]) -> None:
    heading = rows([line()], width)[0]
    assert len(heading) <= width
    dispensable = ("started", "last sign", "attempts", "ranks", "device time")
    assert [text for text in dispensable if text not in heading] == gone
