"""Points come from files that people write: what is wrong with one is said by line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import DataError
from assay.statistics.scaling.points import read_points, scaling_points

POSITIVE = st.floats(1e3, 1e15)


def written(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


@given(parameters=POSITIVE, tokens=POSITIVE)
def test_any_two_of_parameters_tokens_and_compute_give_the_third(parameters, tokens):
    points = scaling_points([2.0], parameters=[parameters], tokens=[tokens]).variables
    assert points["compute"][0] == pytest.approx(6 * parameters * tokens)
    again = scaling_points([2.0], compute=points["compute"], tokens=[tokens]).variables
    assert again["parameters"][0] == pytest.approx(parameters)


def test_the_headings_of_the_published_file_are_known_and_other_columns_left_alone(tmp_path):
    points = read_points(written(tmp_path, "color,Model Size,Training FLOP,loss\n#fff,1e9,6e19,3.0\n"))
    assert points.variables["tokens"].tolist() == [1e10]


def test_points_of_one_run_are_one_group(tmp_path):
    points = read_points(written(tmp_path, "run,tokens,loss\na,1e6,3\nb,1e6,3\na,2e6,2\n"))
    assert points.groups.tolist() == [0, 1, 0]


def test_the_points_of_highest_loss_are_left_out_and_the_rest_keep_their_order():
    points = scaling_points([3.0, 5.0, 2.0, 4.0], tokens=[1.0, 2.0, 3.0, 4.0])
    assert points.without_highest_losses(2).variables["tokens"].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("tokens,loss\n", "no points"),
        ("tokens,accuracy\n1,2\n", "expected a column 'loss'"),
        ("tokens,loss\n1e6,2\n1e7,abc\n", "line 3: loss is 'abc'"),
        ("tokens,loss\n1e6\n", "line 2: loss is ''"),
        ("tokens,loss\n1e6,nan\n", "line 2: loss is nan"),
        ("tokens,loss\n0,2\n", "tokens of point 1 is 0"),
        ("tokens,D,loss\n1,1,2\n", "both mean tokens"),
        ("tokens,loss\n1,000,2\n", "line 2 has 3 cells, the heading 2"),
        ("n,d,c,loss\n1e9,1e10,6e19,2\n1e9,1e10,6e4,2\n", r"point 2 has compute 6e\+04, but 6 x parameters"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_points(written(tmp_path, text))


@pytest.mark.parametrize("line", ["1e9,1e10,6e19,2", "1e9,1e10,9e19,2", "1e9,1e10,6e19,2,", "1e9,1e10,6e19,2, ,"])
def test_three_columns_that_agree_and_empty_cells_are_read(tmp_path, line):
    points = read_points(written(tmp_path, f"\ufeffn,d,c,loss\n{line}\n"))
    assert points.variables["compute"][0] == float(line.split(",")[2])


def test_a_score_in_percent_is_refused(tmp_path):
    path = written(tmp_path, "tokens,loss,mmlu\n1e6,3,25\n")
    with pytest.raises(DataError, match="Divide percentages by 100"):
        read_points(path, score_column="mmlu")
    with pytest.raises(DataError, match="no column 'arc'"):
        read_points(path, score_column="arc")


def test_numbers_whose_product_no_number_holds_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "huge.csv").write_text("parameters,tokens,loss\n1e99,1e99,2.0")
    with pytest.raises(DataError, match=r"compute of point 1 is 6e\+198, expected between"):
        read_points(tmp_path / "huge.csv")


@pytest.mark.parametrize("line", ["1e7,1e9,1e300", "1e7,1e9,1e-300", "1e7,1e101,3", "1e-101,1e9,3"])
def test_a_number_that_no_run_has_is_refused(tmp_path, line):
    with pytest.raises(DataError, match=r"of point 2 is 1e.*, expected between 1e-100 and 1e\+100. The run diverged"):
        read_points(written(tmp_path, f"parameters,tokens,loss\n1e7,1e9,4\n{line}\n"))


def test_equal_points_have_equal_digests():
    points = scaling_points([3.0, 2.0], tokens=[1.0, 2.0])
    assert points.sha256() == scaling_points([3.0, 2.0], tokens=[1.0, 2.0]).sha256()
    assert points.sha256() != points.where(np.array([1, 0])).sha256()


def test_losses_that_are_all_equal_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"every loss is 2\.5, so there is nothing to fit"):
        read_points(written(tmp_path, "parameters,tokens,loss\n1e7,1e9,2.5\n1e8,1e9,2.5\n"))
