"""Published instances with known answers."""

import csv
from pathlib import Path

import pytest

from assay.base.errors import DataError
from assay.planning.schedule import Effort, solve
from psplib import read_psplib


@pytest.mark.parametrize("name", ["j301_1", "j3010_1", "j3018_1", "j3032_1", "j3047_1", "j305_1"])
def test_small_instances_are_solved_to_the_published_optimum(published_data: Path, name: str) -> None:
    folder = published_data / "psplib"
    with (folder / "best_known.csv").open() as file:
        best = {row["instance"]: int(row["upper_bound"]) for row in csv.DictReader(file)}
    problem = read_psplib(folder / "j30" / f"{name}.sm")
    found, (result,) = solve(problem, objectives=("decision_h",), effort=Effort(seconds=15, workers=1))
    assert result.proved
    assert found[problem.decision].end_h == best[f"{name}.sm"]


def test_a_file_that_is_no_instance_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sm"
    path.write_text("nothing of the sort")
    with pytest.raises(DataError, match="not a single-mode PSPLIB instance"):
        read_psplib(path)
