"""A loop on torchrun's ranks of which one dies in its first start: `elastic_training.py FOLDER RANK kill|raise`."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed

import assay

out, unlucky, trouble = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group("gloo")
saved = out / "step"
start = int(saved.read_text()) if saved.exists() else 0
distributed.barrier()
with assay.record("digits/elastic", start_step=start) as run:
    for step in range(start + 1, 11):
        distributed.all_reduce(torch.ones(1))
        run.log(step, {"loss": 1.0 / step}, rows=4)
        if step % 3 == 0 and distributed.get_rank() == 0:
            saved.write_text(str(step))
        if (step, os.environ["TORCHELASTIC_RESTART_COUNT"], distributed.get_rank()) == (5, "0", unlucky):
            if trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("bad row")
distributed.destroy_process_group()
