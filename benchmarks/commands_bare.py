"""One step of the demo's network in plain PyTorch: what a first step takes at least. Started by `commands.py`.

    python benchmarks/commands_bare.py RANK WORLD_SIZE RENDEZVOUS

Prints when the step had ended, in seconds since the epoch.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertModel

VOCABULARY, MAX_TOKENS, WIDTH = 4096, 128, 64
ROWS, TOKENS = 128, 64
"""Rows of a global batch, and tokens of a row; those of the demo are about as long."""


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * WIDTH,
            max_position_embeddings=MAX_TOKENS,
        )
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=input_ids).last_hidden_state
        scores: Tensor = self.head(states.mean(dim=1))
        return scores.squeeze(-1)


def main() -> None:
    rank, world_size, location = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{location}", rank=rank, world_size=world_size)
    model = DistributedDataParallel(_Classifier())
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randint(VOCABULARY, (ROWS // world_size, TOKENS))
    loss = binary_cross_entropy_with_logits(model(rows), torch.ones(len(rows)))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    print(time.time(), flush=True)
    os._exit(0)  # as ranks leave: no farewell is waited for


if __name__ == "__main__":
    main()
