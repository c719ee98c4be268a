"""The loader in other loops: the same steps at any number of ranks, each row once, from any state."""

import itertools
import pickle
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import assay
from assay.data.dataset.index import index_dataset
from assay.torch import RowLoader, packed, padded, pairs
from variants import slow

ORDER = {"window_rows": 16, "shuffle_radius_windows": 1}
Steps = list[list[int]]


def write_dataset(folder: Path, num_rows: int, **columns: list) -> Path:
    """Rows of unequal lengths in small row groups, each with its number as its first token."""
    (folder / "shards").mkdir(parents=True)
    rows = [[number, *[7] * (1 + number % 5)] for number in range(num_rows)]
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32())), **columns})
    pq.write_table(table, folder / "shards" / "a.parquet", row_group_size=5)
    index_dataset(str(folder / "shards"), folder, needs_label=False)
    return folder


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("datasets")
    return {size: write_dataset(root / str(size), size) for size in (13, 48, 53, 59, 60, 61, 71)}


def loader_of(folder: Path, rank: int = 0, world_size: int = 1, **options) -> RowLoader:
    options = {"global_batch_size": 12, "micro_batch_size": 2, **ORDER, **options}
    return RowLoader(folder, rank=rank, world_size=world_size, **options)


def rows_of(batch: dict) -> list[int]:
    return batch["input_ids"][:, 0].tolist()


def steps_of(loaders: list[RowLoader]) -> Steps:
    """The rows of each step of what is left of the epoch, over all ranks in turn."""
    per_step, of_ranks = loaders[0].micro_batches_per_step, [[*map(rows_of, loader)] for loader in loaders]
    assert len({len(batches) for batches in of_ranks}) == 1, "every rank has as many micro-batches"
    assert all(batch for batches in of_ranks for batch in batches), "none is empty"
    of_steps = [chunks(batches, per_step) for batches in of_ranks]
    return [
        [row for of_rank in of_steps for batch in of_rank[step] for row in batch] for step in range(len(of_steps[0]))
    ]


def chunks(batches: list[list[int]], size: int) -> list[list[list[int]]]:
    return [batches[first : first + size] for first in range(0, len(batches), size)]


def ranks_of(folder: Path, world_size: int, **options) -> list[RowLoader]:
    return [loader_of(folder, rank, world_size, **options) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize("num_rows", [13, 48, 61, *slow(53, 59, 60, 71)])
@pytest.mark.parametrize("layout", ["padded", "bucketed"])
def test_each_row_comes_once_an_epoch_in_the_same_steps_at_any_world_size(
    datasets: dict[int, Path], num_rows: int, world_size: int, layout: str
) -> None:
    one = [loader_of(datasets[num_rows], layout={"type": layout})]
    several = ranks_of(datasets[num_rows], world_size, layout={"type": layout})
    epochs = []
    for _ in range(2):
        steps, alone = steps_of(several), steps_of(one)
        assert steps == alone and len(steps) == one[0].steps_per_epoch == -(-num_rows // 12)
        assert sorted(itertools.chain(*steps)) == list(range(num_rows))
        assert max(map(len, steps)) <= 12
        epochs.append(steps)
    assert epochs[0] != epochs[1], "another order in the next epoch"


@pytest.mark.parametrize(("world_size", "size"), [(1, 6), (2, 3), (4, 1), (12, 1)])
def test_micro_batches_of_one_row_end_an_epoch_with_a_longer_step(
    datasets: dict[int, Path], world_size: int, size: int
) -> None:
    steps = steps_of(ranks_of(datasets[53], world_size, micro_batch_size=size))
    assert sorted(itertools.chain(*steps)) == list(range(53))
    assert [*map(len, steps)] == ([12, 12, 12, 17] if size == 1 else [12, 12, 12, 9, 8])


@settings(max_examples=10)
@given(done=st.integers(0, 11), before=st.sampled_from([1, 2, 3, 6]), after=st.sampled_from([1, 2, 3, 6]))
def test_a_state_goes_on_at_any_world_size(datasets: dict[int, Path], done: int, before: int, after: int) -> None:
    one = loader_of(datasets[53])
    undisturbed = [step for _ in range(4) for step in steps_of([one])]
    first = ranks_of(datasets[53], before)
    for loader in first:
        for _ in range(done // 5):
            list(loader)
        for _ in zip(range(done % 5 * loader.micro_batches_per_step), loader, strict=False):
            pass
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states) and states[0]["step"] == done
    second = ranks_of(datasets[53], after)
    for loader in second:
        loader.load_state_dict(states[0])
    assert [*steps_of(second), *steps_of(second)] == undisturbed[done : (done // 5 + 2) * 5]


def test_a_step_that_was_not_handed_out_whole_begins_again(datasets: dict[int, Path]) -> None:
    loader = loader_of(datasets[53])
    batches = [rows_of(batch) for _, batch in zip(range(6 + 4), loader, strict=False)]
    assert loader.state_dict()["step"] == 1
    assert steps_of([loader])[0][:8] == list(itertools.chain(*batches[6:]))


def test_set_epoch_keeps_the_place_inside_of_its_epoch(datasets: dict[int, Path]) -> None:
    loader = loader_of(datasets[60])
    loader.load_state_dict(loader.state_dict(step=7))
    loader.set_epoch(1)
    assert loader.state_dict()["step"] == 7
    loader.set_epoch(3)
    assert loader.state_dict()["step"] == 15


def test_what_accelerate_skips_are_the_steps_of_the_state(datasets: dict[int, Path]) -> None:
    from accelerate import skip_first_batches

    loader, undisturbed = loader_of(datasets[53]), [*map(rows_of, loader_of(datasets[53]))]
    loader.load_state_dict(loader.state_dict(step=3))
    assert [*map(rows_of, skip_first_batches(loader, 18))] == undisturbed[18:]


def test_the_order_is_that_of_training_runs(datasets: dict[int, Path]) -> None:
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.split import whole_view
    from assay.data.loader.config import LoaderConfig
    from assay.data.loader.loader import Loader
    from assay.records.cursor import Cursor

    config = LoaderConfig(global_batch_size=12, lanes=4, **ORDER)
    shares = Loader(whole_view(Dataset.open(datasets[60])), config, ()).shares(Cursor(), range(4), 5)
    rows = [[int(row) for lane in share.lanes for row in lane.micro_batches[0].row_ids] for share in shares]
    assert steps_of(ranks_of(datasets[60], 3)) == rows


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_own_loader_reads_it_and_no_worker_leaks_into_the_state(datasets: dict[int, Path], workers: int) -> None:
    loader = loader_of(datasets[53])
    read = DataLoader(loader, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None)
    assert sorted(itertools.chain(*map(rows_of, read))) == list(range(53))
    if workers:
        with pytest.raises(assay.AssayError, match=r"worker process, which reads ahead: call state_dict\(step="):
            loader.state_dict()
    assert loader.state_dict(step=5)["step"] == 5


def test_several_workers_would_repeat_rows_and_are_refused(datasets: dict[int, Path]) -> None:
    read = DataLoader(loader_of(datasets[53]), batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(Exception, match="use num_workers=0, or 1") as refused:
        list(read)
    traceback.clear_frames(refused.tb)  # which hold torch's iterator: a garbage collection would wait for its workers


def test_a_loader_can_be_sent_to_another_process(datasets: dict[int, Path]) -> None:
    loader = loader_of(datasets[53], row_ids=True)
    again = pickle.loads(pickle.dumps(loader))
    for batch, copy in zip(loader, again, strict=True):
        assert torch.equal(batch["row_ids"], copy["row_ids"])
        assert batch["row_ids"].tolist() == rows_of(batch)


def test_padded_rows_are_those_of_trl_and_hide_padding(datasets: dict[int, Path]) -> None:
    for batch in loader_of(datasets[53], collate=padded):
        lengths = [2 + row % 5 for row in rows_of(batch)]
        assert batch["attention_mask"].sum(dim=1).tolist() == lengths and batch["input_ids"].shape[1] == max(lengths)
        for ids, labels, length in zip(batch["input_ids"], batch["labels"], lengths, strict=True):
            assert labels[1:length].tolist() == ids[1:length].tolist() and (labels[length:] == -100).all()


def test_packed_rows_are_one_line_whose_positions_begin_again(datasets: dict[int, Path]) -> None:
    lines, tables = loader_of(datasets[53], collate=packed), loader_of(datasets[53], collate=padded)
    for line, table in zip(lines, tables, strict=True):
        mask = table["attention_mask"].bool()
        assert torch.equal(line["input_ids"][0], table["input_ids"][mask])
        assert torch.equal(line["labels"][0], table["labels"][mask])
        assert (line["labels"][line["position_ids"] == 0] == -100).all()
        assert (line["position_ids"] == 0).sum() == len(mask)


def test_chats_train_their_spans(tmp_path: Path) -> None:
    spans = pa.array([[1, 2 + number % 3] if number % 5 > 2 else [0, 1] for number in range(20)], pa.list_(pa.int32()))
    folder = write_dataset(tmp_path / "chat", 20, trained_spans=spans)
    batches = list(loader_of(folder, global_batch_size=4))
    for row, labels in [one for batch in batches for one in zip(rows_of(batch), batch["labels"], strict=True)]:
        trained = (labels != -100).nonzero().flatten().tolist()
        assert trained == ([*range(1, 2 + row % 3)] if row % 5 > 2 else [])


def test_pairs_are_the_chosen_and_then_the_rejected(tmp_path: Path) -> None:
    rejected = pa.array([[number, 9, 9] for number in range(20)], pa.list_(pa.int32()))
    scores = pa.array(np.arange(20) / 4)
    columns = {"rejected_ids": rejected, "prompt_tokens": pa.array([1] * 20), "ref_chosen_logps": scores}
    folder = write_dataset(tmp_path / "pairs", 20, **columns)
    batch = next(iter(loader_of(folder, collate=pairs, global_batch_size=8, micro_batch_size=4)))
    ids, (chosen, rejected_ids) = batch["input_ids"], batch["input_ids"].split(4)
    assert chosen[:, 0].tolist() == rejected_ids[:, 0].tolist() and (rejected_ids[:, 1:3] == 9).all()
    assert batch["ref_chosen_logps"].tolist() == [row / 4 for row in chosen[:, 0].tolist()]
    assert torch.equal(batch["completion_mask"], batch["attention_mask"] * (torch.arange(ids.shape[1]) > 0).long())


def test_the_collator_of_the_page_reads_labels(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "loader.md").read_text()
    example = "def labelled" + page.split("def labelled")[1].split("loader = ")[0]
    scope = {"torch": torch}
    exec(example, scope)
    folder = write_dataset(tmp_path / "labelled", 20, label=pa.array(["good", "bad"] * 10))
    loader = loader_of(folder, collate=scope["labelled"], columns=["label"], global_batch_size=4, row_ids=True)
    for batch in loader:
        assert batch["labels"].tolist() == [1 - row % 2 for row in batch["row_ids"].tolist()]
        assert batch["input_ids"].shape == batch["attention_mask"].shape


def test_wrong_input_is_named_with_what_to_do(datasets: dict[int, Path], tmp_path: Path) -> None:
    def refused(words: str, **options) -> None:
        with pytest.raises(assay.AssayError, match=words):
            len(loader_of(**{"folder": datasets[53], **options}))

    refused(r"no dataset there \(no manifest.json\). Create one", folder=tmp_path / "none")
    refused(
        r"does not divide into micro-batches of 2 rows on 4 ranks. Number of ranks that fit: 1, 2, 3, 6", world_size=4
    )
    refused("rank=2 is not one of world_size=2", rank=2, world_size=2)
    refused("give both, or neither", rank=None, world_size=2)
    refused(r"no option 'sed'. Perhaps you meant seed\. Of a recipe's loader it takes seed", sed=1)
    refused(r"no option 'collator'. Perhaps you meant collate\.", collator=packed)
    refused("datasets.*: collate=pairs needs rows of the format 'pairs', not", collate=pairs)
    for size in (0, 5):
        with pytest.raises(assay.AssayError, match=f"=12 is not a multiple of micro_batch_size={size}. Change micro"):
            RowLoader(datasets[53], global_batch_size=12, micro_batch_size=size)
    refused("Use collate=packed", layout={"type": "packed", "sequence_tokens": 8})
    refused("no column 'weight'. It has: input_ids", columns=["weight"])
    refused("fewer than the 120 micro-batches", global_batch_size=240)
    labelled = write_dataset(tmp_path / "labelled", 20, label=pa.array([0, 1] * 10))
    refused("'labelled' have no collator here. Give collate=", folder=labelled)


def test_a_state_that_does_not_fit_is_named(datasets: dict[int, Path]) -> None:
    loader = loader_of(datasets[53])
    for state, words in [
        (loader_of(datasets[59]).state_dict(), "other rows, or other bytes"),
        (loader_of(datasets[53], seed=3).state_dict(), "seed was 3 and is 0. Use the values of the state"),
        (loader_of(datasets[53], global_batch_size=24).state_dict(), "global_batch_size was 24 and is 12"),
        (loader_of(datasets[53], micro_batch_size=1).state_dict(), "epoch_end was 'joined' and is 'shared'"),
        ({"_snapshot": 1}, "no state of assay.torch.RowLoader: it has _snapshot"),
        ({**loader.state_dict(), "step": -1}, "no state of assay.torch.RowLoader"),
    ]:
        with pytest.raises(assay.AssayError, match=words):
            loader.load_state_dict(state)
        assert loader.state_dict()["step"] == 0
