"""The settings of the study of outer steps, and how they are compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from assay.base.errors import TrainingError
from outer import STUDIES, TWO, Setting, compared, measured, print_study, trained, trained_weights


def test_differences_are_paired_over_the_seeds() -> None:
    reference, own = [2.0, 3.0, 2.5], [2.1, 3.12, 2.66]
    difference = compared(own, reference)
    interval = stats.ttest_1samp(np.divide(own, reference) - 1, 0).confidence_interval()
    limits = difference.mean - difference.half_width, difference.mean + difference.half_width
    assert limits == pytest.approx(tuple(interval))


def test_a_setting_is_compared_with_one_of_its_clusters_alone(capsys: pytest.CaptureFixture[str]) -> None:
    losses = {Setting(): [2.0, 2.0], Setting(clusters=3): [2.2, 2.2], Setting(share=3): [2.5, 2.5]}
    print_study("study", list(losses), losses)
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "±" in line)
    assert rows["3 clusters, every 25"].split()[1:] == ["+10.0%", "±", "0.0%", "-12.0%", "±", "0.0%"]
    assert rows["one cluster alone, 1/3 of the rows"].split()[1:] == ["+25.0%", "±", "0.0%"]


def test_a_study_continues_with_the_run_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Setting, int]] = []

    def loss(setting: Setting, seed: int, folder: Path) -> float:
        started.append((setting, seed))
        if len(started) == 3:
            raise TrainingError("cluster-1 failed")
        return seed + 0.5

    monkeypatch.setattr(Setting, "loss", loss)
    with pytest.raises(TrainingError):
        measured([Setting(), TWO], 2, tmp_path, jobs=1)
    assert len(started) == 4
    assert measured([Setting(), TWO], 2, tmp_path, jobs=1) == {Setting(): [0.5, 1.5], TWO: [0.5, 1.5]}
    assert started[4:] == [started[2]]


def test_each_setting_is_compared_with_synchronous_training_of_the_same_rows_and_weights(tmp_path: Path) -> None:
    for setting in {setting for study in STUDIES.values() for setting in study}:
        own, reference = (set(item.overrides(3, tmp_path)) for item in (setting, setting.reference))
        assert reference <= own and {key.partition("=")[0] for key in own - reference} <= {
            "outer", "outer.every", "outer.optimizer", "outer.bits", "loader.lanes", "loader.global_batch_size",
        }  # fmt: skip
    (weights,) = {*trained(TWO)[0].overrides(3, tmp_path)} - {*TWO.overrides(3, tmp_path)}
    assert str(trained_weights(3, tmp_path)) in weights


def test_one_cluster_alone_has_its_share_of_the_rows() -> None:
    assert "loader.global_batch_size=16" in replace(Setting(), share=3).overrides(0, Path())
