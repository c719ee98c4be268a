import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.distributed.sharded_lane_sum import TreeReduceScatter, unpacked

shapes = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(torch.Size), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(shapes=shapes, world_size=st.sampled_from([2, 4, 8]))
def test_gradients_packed_as_fsdp2_packs_them_come_out_whole(shapes, world_size) -> None:
    gradients = [torch.randn(shape) for shape in shapes]
    packed = torch._chunk_cat(gradients, dim=0, num_chunks=world_size).reshape(-1)
    assert packed.numel() == sum(-(-shape[0] // world_size) * world_size * shape[1:].numel() for shape in shapes)
    for gradient, came_out in zip(gradients, unpacked(packed, shapes, world_size), strict=True):
        assert torch.equal(gradient, came_out)
        assert came_out.is_contiguous()


def test_the_exchange_has_room_of_the_kind_that_is_asked_for() -> None:
    receive_buffers = TreeReduceScatter(lambda packed: None).allocate(
        (3, 2), dtype=torch.bfloat16, device=torch.device("meta")
    )
    assert (receive_buffers.shape, receive_buffers.dtype, receive_buffers.device.type) == (
        (3, 2),
        torch.bfloat16,
        "meta",
    )
