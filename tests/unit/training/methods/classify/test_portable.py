"""Values become the same embeddings in the module that leaves as in training."""

import math
from typing import Any

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.methods.classify.batch import metadata_buckets
from assay.training.methods.classify.config import NUMERIC_BUCKETS, ClassifyConfig
from assay.training.methods.classify.exporting import load_portable, save_portable
from assay.training.methods.classify.network import ClassifierNetwork
from assay.training.methods.classify.portable import bucket_of
from assay.training.model.config import NewEncoderConfig

CONFIG = ClassifyConfig(
    encoder=NewEncoderConfig(vocab_size=50, hidden_size=16, num_heads=2, intermediate_size=16, max_tokens=32),
    categorical_columns=("language",),
    numeric_columns=("turns",),
    category_buckets=5,
)
COLUMNS = (
    {"name": "language", "kind": "category", "buckets": 6},
    {"name": "turns", "kind": "number", "buckets": NUMERIC_BUCKETS},
)
numbers = st.one_of(st.none(), st.integers(-(2**40), 2**40), st.sampled_from([0.5, -0.25, math.nan, 1e300]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | st.text(), numbers), min_size=1, max_size=5))
def test_a_value_has_the_bucket_that_it_had_in_training(as_micro_batch, rows: list[tuple[Any, Any]]) -> None:
    languages, turns = zip(*rows, strict=True)
    batch = as_micro_batch(
        input_ids=[[1]] * len(rows),
        label=[0] * len(rows),
        language=pa.array(languages, pa.string()),
        turns=pa.array(turns, pa.float64(), from_pandas=False),
    )
    trained = metadata_buckets(batch, CONFIG).tolist()
    for place, row in enumerate(batch.row_ids.tolist()):
        assert trained[place] == [bucket_of(rows[row][index], column) for index, column in enumerate(COLUMNS)]


def test_what_was_saved_is_loaded_as_the_network_that_it_was(tmp_path) -> None:
    torch.manual_seed(0)
    network = ClassifierNetwork(CONFIG).eval()
    save_portable(network, CONFIG, tmp_path)
    again = load_portable(tmp_path).eval()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    ids, lengths, buckets = torch.tensor([[3, 4, 5]]), torch.tensor([3]), torch.tensor([[2, 70]])
    assert torch.equal(network(ids, lengths, buckets), again(ids, lengths, buckets))
