"""The figures of triage: the peers by hand, and the whole of it once, briefly."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency, fisher_exact

import triage
from assay.triage.attempts.sources import read_sources
from assay.triage.attempts.table import ColumnNames, table_of
from triage_peers import first_significant, g_test, last_error, t_test_changes


def test_the_g_test_is_that_of_the_table_of_two_by_two(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    host, image = rng.integers(4, size=300), rng.integers(3, size=300)
    failed = rng.random(300) < np.where((host == 1) & (image == 2), 0.5, 0.05)
    rows = [f"{int(f)},n{h},i{k}" for f, h, k in zip(failed, host, image, strict=True)]
    (file := tmp_path / "attempts.csv").write_text("\n".join(["failed,host,image", *rows]) + "\n")
    found = g_test(table_of(read_sources([file]), ColumnNames(failed="failed", factors=("host", "image"))))
    inside = (host == 1) & (image == 2)
    counts = [[(side & passed).sum() for passed in (failed, ~failed)] for side in (inside, ~inside)]
    expected = chi2_contingency(counts, correction=False, lambda_="log-likelihood").pvalue
    assert found.regions[0] == {"host": "n1", "image": "i2"}
    assert found.p_value == pytest.approx(expected * (4 + 3 + 4 * 3))


def test_fishers_test_is_looked_at_after_every_attempt() -> None:
    before, after = np.repeat([1.0, 0.0], [50, 450]), np.zeros(60)
    first = first_significant(before, after)
    assert first is not None

    def p_value(looks: int) -> float:
        return float(fisher_exact([[0, looks], [50, 450]], alternative="less").pvalue)

    assert p_value(first) < 0.05 <= p_value(first - 1)
    assert first_significant(before, np.ones(60)) is None


def test_a_great_step_is_seen_by_the_t_test_once_where_it_is() -> None:
    values = np.repeat([0.0, 9.0], 40) + np.random.default_rng(0).normal(size=80)
    assert t_test_changes(values) == [40]
    assert t_test_changes(np.random.default_rng(1).normal(size=80)) == []


def test_the_last_lines_with_error_are_named_by_number() -> None:
    log = ["ok", "Error: one", "fine", "an error again", "bye"]
    assert last_error(log) == [4, 2]


@pytest.mark.soak
def test_all_of_it_briefly(published_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    triage.main(["--quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found)[:3] == ["named", "false_culprits", "g_test_false_culprits"]
    assert {"scan_cpu_s", "changes_found", "false_changes", "log_line_top_1", "false_fixed"} < found.keys()
    assert found["named"] >= 0.8 and found["log_line_top_1"] >= 14 / 19 and found["changes_found"] >= 0.7
    assert found["false_culprits"] <= 0.2 < found["g_test_false_culprits"]
