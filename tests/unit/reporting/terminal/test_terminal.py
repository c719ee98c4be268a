import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from assay.reporting.terminal import terminal
from assay.reporting.terminal.campaign_list import print_campaigns
from assay.reporting.terminal.drawing import PHASE_STYLES, phase_bar, sparkline
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
    facts = [("a", "is  so"), ("longer", "\n  is not")]
    terminal.stdout().print(terminal.table_of(facts, ("name", lambda fact: fact[0]), ("why", lambda fact: fact[1])))
    assert capsys.readouterr().out == "name    why\na       is  so\nlonger\n          is not\n"


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_list_shows_whole_cells_however_narrow_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, is_terminal: bool
) -> None:
    line = CampaignLine(
        campaign="preferences", created=1_800_000_000.0, candidate="faster", recommendation="narrow",
        is_final=False, seeds=12, effect=0.1065, low=-0.6582, high=0.8712, confidence=0.95, unit="share",
        device_hours=0.25,
    )  # fmt: skip
    screen = Console(record=True, width=width, force_terminal=is_terminal, highlight=False, markup=False)
    monkeypatch.setattr(terminal, "stdout", lambda: screen)
    print_campaigns([line])
    table, _, left_out = screen.export_text().partition("no room for: ")
    assert len(table.rstrip("\n").splitlines()) == 2 and "…" not in table
    assert "preferences  faster     narrow, open" in table
    cells = {"effect": "-65.82", "seeds": " 12 ", "device time": "15 min 00 s", "declared (UTC)": "08:00"}
    for column, cell in cells.items():
        assert (column in table) == (cell in table) != (column in " ".join(left_out.split()))
    assert is_terminal or not left_out
