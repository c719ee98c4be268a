"""A model that takes its time: from its so many-th token on, each takes a rank a good while. Notes a dot for
each of these, and a line's end where such a generation comes to its end.

Python imports this file at its start where the folder is on PYTHONPATH.
"""

import os
import time
from pathlib import Path

from assay.inference.local.generator import Generator

FOLDER, QUICK_TOKENS = Path(os.environ["SLOW_DECODE"]), 170

right_step, right_generate, num_tokens = Generator._step, Generator.generate, 0


def note(text):
    with (FOLDER / f"slow-{os.getpid()}").open("a") as noted:
        noted.write(text)


def slow_step(self, *arguments):
    global num_tokens
    num_tokens += 1
    if num_tokens > QUICK_TOKENS:
        note(".")
        time.sleep(0.5)
    return right_step(self, *arguments)


def slow_generate(self, *arguments):
    responses = right_generate(self, *arguments)
    if num_tokens > QUICK_TOKENS:
        note("\n")
    return responses


Generator._step, Generator.generate = slow_step, slow_generate
