"""A plain loop in PyTorch with a loader whose state is saved with the model's and the optimizer's, written by rename.

--loader assay | torchdata | datasets | streaming | litdata | grain: each by its own way to save and restore its place.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import task
import torch


class Absent(ModuleType):
    """A module that has any name, and no use."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def without_pictures() -> None:
    """Stand in for torchvision, which Streaming imports for its pictures, and which has no build for this torch."""
    # Streaming imports it too, and transformers looks for torchvision.
    import transformers.tokenization_utils_base  # noqa: F401

    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module = sys.modules[f"torchvision{name}"] = Absent(f"torchvision{name}")
        module.__path__ = []


def wait_for_ranks() -> None:
    """Wait until rank 0 has written the rows."""
    if task.WORLD_SIZE > 1:
        torch.distributed.barrier()


class Stateful:
    """A loader with `state_dict` and `load_state_dict`."""

    loader: Any

    def epoch(self, _: int) -> Iterator[dict]:
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()

    def restore(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Torchdata(Stateful):
    """StatefulDataLoader over a map-style dataset."""

    def __init__(self, _: Path) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        generator = torch.Generator().manual_seed(task.SEED)
        self.loader = StatefulDataLoader(
            task.rows(), batch_size=task.BATCH_ROWS, shuffle=True, generator=generator, collate_fn=task.batch_of
        )


class Datasets(Stateful):
    """A streamed dataset of `datasets` with a shuffle buffer, behind StatefulDataLoader."""

    def __init__(self, _: Path) -> None:
        from datasets import Dataset
        from torchdata.stateful_dataloader import StatefulDataLoader

        stream = Dataset.from_list(task.rows()).to_iterable_dataset(num_shards=4)
        self.stream = stream.shuffle(seed=task.SEED, buffer_size=32)
        self.loader = StatefulDataLoader(self.stream, batch_size=task.BATCH_ROWS, collate_fn=task.batch_of)

    def epoch(self, number: int) -> Iterator[dict]:
        self.stream.set_epoch(number)
        return iter(self.loader)


class Streaming(Stateful):
    """MosaicML Streaming's StreamingDataset and StreamingDataLoader."""

    def __init__(self, out: Path) -> None:
        without_pictures()
        from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

        folder = out.parent / "streaming-rows"
        if task.RANK == 0 and not (folder / "index.json").exists():
            with MDSWriter(
                out=str(folder), columns={"input_ids": "ndarray:int64", "labels": "ndarray:int64"}
            ) as writer:
                for one in task.rows():
                    writer.write({key: torch.tensor(value).numpy() for key, value in one.items()})
        wait_for_ranks()
        size = {"batch_size": task.RANK_ROWS}
        dataset = StreamingDataset(
            local=str(folder), shuffle=True, shuffle_seed=task.SEED, num_canonical_nodes=1, **size
        )
        self.loader = StreamingDataLoader(dataset, collate_fn=task.batch_of, **size)


class Litdata(Stateful):
    """LitData's StreamingDataset and StreamingDataLoader."""

    def __init__(self, out: Path) -> None:
        from litdata import StreamingDataLoader, StreamingDataset, optimize

        folder = out.parent / "litdata-rows"
        if task.RANK == 0 and not (folder / "index.json").exists():
            optimize(fn=task.row, inputs=[*range(task.NUM_ROWS)], output_dir=str(folder), chunk_size=16, num_workers=1)
        wait_for_ranks()
        dataset = StreamingDataset(str(folder), shuffle=True, drop_last=True, seed=task.SEED)
        collate = lambda some: task.batch_of([{"input_ids": one, "labels": one} for one in some])  # noqa: E731
        self.loader = StreamingDataLoader(dataset, batch_size=task.RANK_ROWS, drop_last=True, collate_fn=collate)


class Grain:
    """Grain's MapDataset, shuffled anew in each epoch, with the state of its ElasticIterator."""

    def __init__(self, _: Path) -> None:
        import grain

        # Grain batches arrays; of lists it would batch the first tokens of all rows, the second ones, and so on.
        rows = [{key: torch.tensor(value).numpy() for key, value in row.items()} for row in task.rows()]
        dataset = grain.MapDataset.source(rows).seed(task.SEED).shuffle().repeat(task.EPOCHS)
        shard = grain.sharding.ShardOptions(shard_index=task.RANK, shard_count=task.WORLD_SIZE)
        self.iterator = iter(grain.experimental.ElasticIterator(dataset, task.BATCH_ROWS, shard))

    def epoch(self, number: int) -> Iterator[dict]:
        end = (number + 1) * task.NUM_ROWS
        while self.iterator.get_state()["global_next_index"] < end:
            yield {key: torch.as_tensor(value) for key, value in next(self.iterator).items()}

    def state(self) -> Any:
        return self.iterator.get_state()

    def restore(self, state: Any) -> None:
        self.iterator.set_state(state)


class Assay(Stateful):
    """The rows of an indexed dataset, in assay's order."""

    def __init__(self, out: Path) -> None:
        import assay
        from assay.torch import RowLoader

        folder = out.parent / "assay-rows"
        if task.RANK == 0 and not (folder / "manifest.json").exists():
            task.word_tokenizer().save(str(out.parent / "tokenizer.json"))
            texts = out.parent / "texts.jsonl"
            texts.write_text("".join(json.dumps({"text": task.text(number)}) + "\n" for number in range(task.NUM_ROWS)))
            tokenizer = str(out.parent / "tokenizer.json")
            assay.Dataset.build(texts, out=folder, format="text", tokenizer=tokenizer, max_tokens=16, no_label=True)
        wait_for_ranks()
        order = {"lanes": task.BATCH_ROWS, "window_rows": 16, "seed": task.SEED}
        self.loader = RowLoader(folder, global_batch_size=task.BATCH_ROWS, **order)

    def epoch(self, number: int) -> Iterator[dict]:
        self.loader.set_epoch(number)
        return iter(self.loader)


LOADERS = {
    "assay": Assay,
    "torchdata": Torchdata,
    "datasets": Datasets,
    "streaming": Streaming,
    "litdata": Litdata,
    "grain": Grain,
}


if __name__ == "__main__":
    options = task.arguments()
    model = task.PlainModel(options.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    network: torch.nn.Module = model
    if task.WORLD_SIZE > 1:
        torch.distributed.init_process_group("gloo")
        network = torch.nn.parallel.DistributedDataParallel(model)
    loader = LOADERS[options.loader](options.out)
    torch.manual_seed(task.SEED)  # some loaders draw from it, at the start that writes the rows
    file = options.out / "checkpoint.pt"
    epoch, step, generator = 0, 0, None
    if file.exists():
        saved = torch.load(file, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore(saved["loader"])
        epoch, step, generator = saved["epoch"], saved["step"], saved["generator"]
    while epoch < task.EPOCHS:
        for batch in loader.epoch(epoch):
            if generator is not None:  # loaders draw from it when an epoch begins
                torch.set_rng_state(generator)
                generator = None
            network(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % task.SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state()}
                if task.RANK == 0:
                    state |= {"epoch": epoch, "step": step, "generator": torch.get_rng_state()}
                    torch.save(state, f"{file}.partial")
                    Path(f"{file}.partial").replace(file)
        epoch += 1
