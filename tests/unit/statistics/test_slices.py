import pyarrow as pa

from assay.statistics.slices import metadata_slices


def test_what_names_or_weighs_a_row_is_no_metadata() -> None:
    columns = {"row_id": [1, 2], "split_cluster": ["a", "b"], "trained_tokens": [3, 9], "loss": [0.1, 0.2]}
    table = pa.table({**columns, "language": ["x", "y"]})
    assert {slice_part.column for slice_part in metadata_slices(table, scores=("loss",))} == {"language"}
