"""A manifest and the shards that it lies beside, moved: together, or one of them."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import DamagedDataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset

ROWS = {"input_ids": [[1, 2], [3]], "label": [0, 1]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "rows").mkdir(parents=True)
    pq.write_table(pa.table(ROWS), project / "rows" / "a.parquet")
    index_dataset(str(project / "rows"), project / "index")
    return project


def rows_of(folder: Path) -> dict[str, object]:
    return Dataset.open(folder).read_row_group(0, ["input_ids", "label"]).to_pydict()


def test_a_manifest_that_moved_together_with_its_shards_reads_them_there(project: Path, tmp_path: Path) -> None:
    fingerprint = Dataset.open(project / "index").fingerprint
    project.rename(tmp_path / "moved")
    assert rows_of(tmp_path / "moved" / "index") == ROWS
    (tmp_path / "link").symlink_to(tmp_path / "moved" / "index")
    assert rows_of(tmp_path / "link") == ROWS
    assert Dataset.open(tmp_path / "link").fingerprint == fingerprint


def test_a_manifest_that_moved_alone_reads_its_shards_where_they_are(project: Path, tmp_path: Path) -> None:
    (project / "index").rename(tmp_path / "index")
    assert rows_of(tmp_path / "index") == ROWS


def test_other_shards_where_the_moved_ones_would_lie_are_not_taken_for_them(project: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(project, tmp_path / "other" / "project")
    pq.write_table(pa.table({"input_ids": [[9, 9], [9]], "label": [1, 1]}), moved / "rows" / "a.parquet")
    with pytest.raises(DamagedDataError, match=r"a\.parquet"):
        rows_of(moved / "index")
