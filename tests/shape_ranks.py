"""Five shapes of one model: seconds of a pass as predicted, corrected by the first one's, and as measured in turn.

On a GPU the predictions are those of its data sheet. `python tests/shape_ranks.py` prints both on this machine.
"""

from typing import NamedTuple

import numpy as np
import torch

from assay.data.loader.batch import MicroBatch, Ragged
from assay.distributed.rank_device import device_of
from assay.records.devices import DEVICES, DeviceSheet, find_device
from assay.throughput.device_time import PassTime, pass_time
from assay.training.methods.registry import method_of
from assay.training.methods.sft.config import SftConfig
from assay.training.pass_trace import LossPass, trace_pass
from assay.training.timed_passes import time_passes, time_products

NOMINAL = DeviceSheet(0, 1e11, 1e11, 1e10, 0.0, 0.0, None, "a CPU, which only measurements describe")
ON_CPU = {
    "base": {},
    "half the width": {"hidden_size": 96, "num_heads": 2, "intermediate_size": 256},
    "three layers": {"num_layers": 3},
    "a large vocabulary": {"vocab_size": 16_000},
    "half the rows": {"rows": 2},
}
ON_GPU = {
    "base": {},
    "a vocabulary of 50257": {"vocab_size": 50_257},
    "a row above the head's last chunk": {"rows": 33},
    "a width of 1000": {"hidden_size": 1000, "num_heads": 4},
    "half the rows": {"rows": 16},
}


class Ranked(NamedTuple):
    """Seconds of a pass by shape."""

    predicted: dict[str, float]
    measured: dict[str, float]

    @property
    def orders(self) -> tuple[list[str], list[str]]:
        """The shapes by both, the fastest first."""
        return sorted(self.predicted, key=self.predicted.__getitem__), sorted(
            self.measured, key=self.measured.__getitem__
        )


def rank_shapes(seconds: float) -> Ranked:
    """Predict and measure the five shapes; the measurements last about so long."""
    device, on_gpu = device_of(), torch.cuda.is_available()
    cases = {name: _case(on_gpu, **shape) for name, shape in (ON_GPU if on_gpu else ON_CPU).items()}
    sheet = DEVICES[find_device(torch.cuda.get_device_name(device)) or ""] if on_gpu else NOMINAL
    traces = {name: trace_pass(case, on_gpu=on_gpu) for name, case in cases.items()}
    measured = dict(zip(cases, time_passes(list(cases.values()), device, seconds=seconds), strict=True))
    estimated = {name: pass_time(trace, sheet) for name, trace in traces.items()}
    products_s = time_products(traces["base"].products, device, seconds=seconds / 5)
    rest = (measured["base"] - products_s) / (estimated["base"].attention + estimated["base"].other)
    factors = (1.0, 1.0) if on_gpu else (products_s / estimated["base"].products, rest)
    predicted = {name: _corrected(time, *factors) for name, time in estimated.items()}
    return Ranked(predicted, measured)


def _corrected(time: PassTime, of_products: float, of_rest: float) -> float:
    return of_products * time.products + of_rest * (time.seconds - time.products)


def _case(on_gpu: bool, *, rows: int | None = None, **model: int) -> LossPass:
    sizes = {"vocab_size": 50_304, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096} if on_gpu else {
        "vocab_size": 2000, "hidden_size": 192, "num_heads": 4, "intermediate_size": 512,
    }  # fmt: skip
    count, tokens = (rows or 32, 512) if on_gpu else (rows or 4, 256)
    config = SftConfig.model_validate({"train_on": "all", "model": {"type": "new", "num_layers": 2, **sizes, **model}})
    ids = Ragged(np.ones((count, tokens), np.int64), np.full(count, tokens, np.int32))
    batch = MicroBatch(np.arange(count, dtype=np.uint64), {"input_ids": ids}, {})
    return LossPass(method_of(config), batch, "bfloat16" if on_gpu else "float32", compute_copy=on_gpu)


if __name__ == "__main__":
    found = rank_shapes(20.0)
    for name in found.orders[1]:
        print(
            f"{name:35} predicted {1e3 * found.predicted[name]:8.1f} ms  measured {1e3 * found.measured[name]:8.1f} ms"
        )
    print("same order:", found.orders[0] == found.orders[1])
