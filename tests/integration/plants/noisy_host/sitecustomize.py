"""A host with a name and a pace of its own: each layer of an encoder takes $NOISY_LAYER_S seconds more there.

Python imports this file at its start where the folder is on PYTHONPATH, in ranks and in what starts them. What
it sets is asked for when it matters, so that one process may start a run on one host and the next on another.
"""

import os
import socket
import time

from torch.nn.modules.module import register_module_forward_pre_hook


def take_time(module: object, _: object) -> None:
    if type(module).__name__ == "BertLayer":
        time.sleep(float(os.environ["NOISY_LAYER_S"]))


socket.gethostname = lambda: os.environ["NOISY_HOST"]
register_module_forward_pre_hook(take_time)
