import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reporting.document import Document, Fact, FactList, Section
from assay.reporting.documents.campaign_list import campaigns_table
from assay.reporting.terminal.document import print_document
from assay.reporting.terminal.drawing import PHASE_STYLES, phase_bar, sparkline
from assay.reporting.terminal.table import table_lines
from assay.reporting.values import device_hours_text, world_sizes_text
from assay.reporting.views.evidence import CampaignLine


@settings(max_examples=100, deadline=None)
@given(seconds=st.dictionaries(st.sampled_from(sorted(PHASE_STYLES)), st.floats(1e-3, 1e6)))
def test_the_bar_is_full_and_shows_every_phase(seconds: dict[str, float]) -> None:
    bar = phase_bar(seconds, width=40)
    assert len(bar.plain) == (40 if seconds else 0)
    assert len({span.style for span in bar.spans}) == len(seconds)


def test_a_sparkline_rises_with_its_values_and_leaves_a_gap_for_nan() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, float("nan"), 7]) == "▁ █"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([7.0, 6.0], others=[[0.0, 7.0]]) == "█▇" and sparkline([7.0, 6.0]) == "█▁"
    assert sparkline([]) == "" and sparkline([float("nan")]) == ""
    assert len(sparkline(list(range(1000)), width=60)) == 60


def test_world_sizes_show_the_changes_only() -> None:
    assert world_sizes_text([2, 2, 4, 4, 1]) == "2→4→1"
    assert world_sizes_text([]) == ""


def test_device_time_is_hours_from_one_hour_on() -> None:
    assert device_hours_text(7_200) == "2.0 device-h"
    assert device_hours_text(75) == "1 min 15 s"


def test_in_a_pipe_no_line_ends_in_blanks_and_a_text_of_a_cell_keeps_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = FactList([Fact("a", "is  so"), Fact("longer", "\n  is not")])
    print_document(Document(title="", kind="", sections=[Section("", [facts])]))
    assert capsys.readouterr().out == "a       is  so\nlonger\n          is not\n"


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_list_shows_whole_cells_however_narrow_the_terminal(width: int, is_terminal: bool) -> None:
    line = CampaignLine(
        campaign="preferences", created=1_800_000_000.0, candidate="faster", recommendation="narrow",
        is_final=False, seeds=12, effect=0.1065, low=-0.6582, high=0.8712, confidence=0.95, unit="share",
        device_hours=0.25,
    )  # fmt: skip
    lines, left_out = table_lines(campaigns_table([line]), width=width if is_terminal else None)
    table = click.unstyle("\n".join(lines))
    assert len(lines) == 2 and "…" not in table
    assert "preferences  faster     narrow, open" in table
    cells = {"effect": "-65.82", "seeds": " 12 ", "device time": "15 min 00 s", "declared (UTC)": "08:00"}
    for column, cell in cells.items():
        assert (column in table) == (cell in table) != (column in left_out)
    assert is_terminal or not left_out
