"""Ray Train with its own `prepare_data_loader`."""

import argparse
import tempfile
from pathlib import Path

import ray.train.torch
import torch
from torch.utils.data import DataLoader


def train(args: argparse.Namespace) -> None:
    """Train on one worker."""
    import task  # here: it reads the number of workers, which Ray has set by now

    model = task.model()
    network = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    rows = DataLoader(task.rows(), task.MICRO_BATCH, shuffle=True, collate_fn=task.collate)
    loader = ray.train.torch.prepare_data_loader(rows)
    step = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    def save() -> None:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        with tempfile.TemporaryDirectory() as folder:
            is_first = ray.train.get_context().get_world_rank() == 0
            if is_first:
                torch.save(state, Path(folder) / "state.pt")
            ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint(folder) if is_first else None)

    steps_per_epoch = -(-len(loader) // task.ACCUMULATION)
    for epoch in range(step // steps_per_epoch, task.EPOCHS):
        if task.WORLD_SIZE > 1:
            loader.sampler.set_epoch(epoch)
        for number, batch in enumerate(loader, 1):
            if number <= (step - epoch * steps_per_epoch) * task.ACCUMULATION:
                continue
            (network(**batch).loss / task.ACCUMULATION).backward()
            if number % task.ACCUMULATION == 0 or number == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step % task.SAVE_EVERY == 0:
                    save()


def main() -> None:
    """Train on several workers. Ray Train goes on from the newest checkpoint of the same name by itself."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="Folder for checkpoints.")
    parser.add_argument("--data", type=Path, default=Path("datasets/numbers"), help="The dataset; written if missing.")
    parser.add_argument("--workers", type=int, default=2, help="Number of workers.")
    args = parser.parse_args()
    args.data = args.data.resolve()
    ray.train.torch.TorchTrainer(
        train,
        train_loop_config=args,
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers),
        run_config=ray.train.RunConfig(name="numbers", storage_path=str(args.out.resolve())),
    ).fit()


main()
