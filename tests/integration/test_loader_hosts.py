"""The loader in a plain loop, the Trainer and Accelerate: kills and other numbers of ranks lose no row."""

from pathlib import Path

import pytest

from host_scripts import EXAMPLES, OWN, ROOT, audit_of_recorded, changes, killed_and_resized, undisturbed_steps

HERE = ("ddp", "trainer", "accelerate_loop")
ELSEWHERE = ("sft_trainer", "lightning_fit", "ray_train")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HERE)
def test_each_row_is_learned_once_an_epoch_in_the_undisturbed_order(name: str, tmp_path: Path) -> None:
    attempts = killed_and_resized(EXAMPLES / f"{name}.py", tmp_path)
    assert attempts.faults() == {}
    trained = {step: sorted(rows) for step, rows in attempts.trained.items()}
    assert trained == undisturbed_steps(tmp_path / "data")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HERE)
def test_the_record_of_a_host_shows_each_row_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    report = audit_of_recorded(name, tmp_path)
    assert (report.verdict, report.epochs, report.rows_expected, report.rows_trained) == ("pass", 2, 102, 102), report


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HERE)
def test_the_hosts_own_loader_fails_the_same_test(name: str, tmp_path: Path) -> None:
    """With two ranks and an odd number of rows, each of the three repeats rows at the end of an epoch."""
    assert killed_and_resized(OWN / f"{name}.py", tmp_path).faults() != {}


@pytest.mark.parametrize("name", HERE + ELSEWHERE)
def test_five_lines_change_and_the_page_shows_them(name: str) -> None:
    lines = changes(name)
    assert sum(line.startswith("+") for line in lines) <= 5
    assert "\n".join(lines) in (ROOT / "docs" / "loader.md").read_text()
