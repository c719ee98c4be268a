"""What tests of commits share."""

from collections.abc import Iterator

import pytest
import torch

from assay.distributed.ranks import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """This process alone, with the real groups."""
    index = tmp_path_factory.mktemp("ranks") / "rendezvous"
    ranks = Ranks.join(rank=0, world_size=1, rendezvous=f"file://{index}", num_threads=torch.get_num_threads())
    yield ranks
    ranks.leave()
