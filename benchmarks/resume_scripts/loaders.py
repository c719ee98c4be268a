"""A plain loop in PyTorch with a loader whose state is kept beside model and optimizer, written by rename.

--loader assay | torchdata | datasets | streaming | litdata | grain: each by its own way to save and restore its place.
"""

import json
import os
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
    for name in ("", ".datasets", ".transforms", ".transforms.functional"):
        module = sys.modules[f"torchvision{name}"] = Absent(f"torchvision{name}")
        module.__path__ = []


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
        if not (folder / "index.json").exists():
            with MDSWriter(
                out=str(folder), columns={"input_ids": "ndarray:int64", "labels": "ndarray:int64"}
            ) as writer:
                for one in task.rows():
                    writer.write({key: torch.tensor(value).numpy() for key, value in one.items()})
        dataset = StreamingDataset(
            local=str(folder), shuffle=True, shuffle_seed=task.SEED, batch_size=task.BATCH_ROWS, num_canonical_nodes=1
        )
        self.loader = StreamingDataLoader(dataset, batch_size=task.BATCH_ROWS, collate_fn=task.batch_of)


class Litdata(Stateful):
    """LitData's StreamingDataset and StreamingDataLoader."""

    def __init__(self, out: Path) -> None:
        from litdata import StreamingDataLoader, StreamingDataset, optimize

        folder = out.parent / "litdata-rows"
        if not (folder / "index.json").exists():
            optimize(fn=task.row, inputs=[*range(task.NUM_ROWS)], output_dir=str(folder), chunk_size=16, num_workers=1)
        dataset = StreamingDataset(str(folder), shuffle=True, seed=task.SEED)
        collate = lambda some: task.batch_of([{"input_ids": one, "labels": one} for one in some])  # noqa: E731
        self.loader = StreamingDataLoader(dataset, batch_size=task.BATCH_ROWS, collate_fn=collate)


class Grain:
    """Grain's MapDataset, shuffled anew in each epoch, with the state of its iterator."""

    def __init__(self, _: Path) -> None:
        import grain

        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        dataset = grain.MapDataset.source(task.rows()).seed(task.SEED).shuffle()[rank::size].repeat(task.EPOCHS)
        self.iterator = iter(dataset.batch(task.BATCH_ROWS, batch_fn=task.batch_of).to_iter_dataset())
        self.num_batches = task.NUM_ROWS // size // task.BATCH_ROWS
        self.read = 0

    def epoch(self, _: int) -> Iterator[dict]:
        while True:
            yield next(self.iterator)
            self.read += 1
            if self.read % self.num_batches == 0:
                return

    def state(self) -> Any:
        return {"iterator": self.iterator.get_state(), "read": self.read + 1}

    def restore(self, state: Any) -> None:
        self.iterator.set_state(state["iterator"])
        self.read = state["read"]


class Assay(Stateful):
    """The rows of an indexed dataset, in assay's order."""

    def __init__(self, out: Path) -> None:
        import assay
        from assay.torch import RowLoader

        folder = out.parent / "assay-rows"
        if not (folder / "manifest.json").exists():
            task.tokenizer().backend_tokenizer.save(str(out.parent / "tokenizer.json"))
            texts = out.parent / "texts.jsonl"
            texts.write_text("".join(json.dumps({"text": task.text(number)}) + "\n" for number in range(task.NUM_ROWS)))
            tokenizer = str(out.parent / "tokenizer.json")
            assay.Dataset.build(texts, out=folder, format="text", tokenizer=tokenizer, max_tokens=16, no_label=True)
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
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = LOADERS[options.loader](options.out)
    file = options.out / "checkpoint.pt"
    epoch, step = 0, 0
    if file.exists():
        saved = torch.load(file, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.restore(saved["loader"])
        epoch, step = saved["epoch"], saved["step"]
    while epoch < task.EPOCHS:
        for batch in loader.epoch(epoch):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % task.SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state()}
                torch.save({**state, "epoch": epoch, "step": step}, f"{file}.partial")
                Path(f"{file}.partial").replace(file)
        epoch += 1
