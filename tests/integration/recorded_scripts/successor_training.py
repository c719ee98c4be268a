"""A plain PyTorch loop that learns which number follows: `successor_training.py --lr 0.03 --seed 0 --out FOLDER`.

It records itself, and goes on from the checkpoint in its folder. With `--rows DATASET` it learns the rows of a dataset,
in assay's order.
"""

import argparse
import itertools
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel

import assay
from assay.torch import RowLoader

STEPS, NUMBERS = 40, 32


def main(lr, seed, out, rows):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=NUMBERS + 1, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    words = {"[UNK]": 0, **{f"n{number}": number + 1 for number in range(NUMBERS)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    pairs = torch.tensor([[number, number + 1] for number in range(1, NUMBERS)])
    with (out / "starts").open("a") as file:
        file.write("started\n")
    start = 0
    if (out / "state.pt").is_file():
        start, weights, moments = torch.load(out / "state.pt", weights_only=True)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    batches = itertools.repeat({"input_ids": pairs})
    if rows is not None:
        loader = RowLoader(rows, global_batch_size=8, rank=0, world_size=1)
        loader.load_state_dict(loader.state_dict(step=start))
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
    with assay.record("successors/any", config={"lr": lr, "seed": seed}, start_step=start) as run:
        if rows is not None:
            run.watch(model, optimizer, loader)
        for step in range(start + 1, STEPS + 1):
            batch = next(batches)["input_ids"]
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(step, {"loss": loss.item()}, rows=len(batch))
            time.sleep(0.02)
            if step % 10 == 0:
                folder = out / f"step-{step}"
                model.save_pretrained(folder)
                tokenizer.save(str(folder / "tokenizer.json"))
                run.checkpoint(folder, step)
                torch.save((step, model.state_dict(), optimizer.state_dict()), out / "new.pt")
                (out / "new.pt").rename(out / "state.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=Path)
    main(**vars(parser.parse_args()))
