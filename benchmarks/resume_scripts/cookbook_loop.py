"""The supervised and the RL loop of tinker-cookbook, as its recipes call them, on a server of the Tinker API.

`FOLDER` has the tokenizer `chat`. What the loop submits to the server, and which state it loads, is one line each of
`requests.jsonl`. `--stop KIND NUMBER` ends the process by a signal when the request of that number has been submitted.
"""

import argparse
import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chz
import tinker
from tinker_cookbook import renderers
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as supervised
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tokenizer_utils import get_tokenizer

NUM_ROWS, BATCH_ROWS, SAVE_EVERY = 64, 4, 5
NAMES = {"model_name": "chat", "renderer_name": "role_colon"}


class Sums(RLDataset):
    """Questions in a fixed order."""

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        renderer = renderers.get_renderer(NAMES["renderer_name"], get_tokenizer(NAMES["model_name"]))
        numbers = range(index * BATCH_ROWS, (index + 1) * BATCH_ROWS)
        return [ProblemGroupBuilder(lambda n=n: ArithmeticEnv(n, 1, renderer), 2) for n in numbers]

    def __len__(self) -> int:
        return NUM_ROWS // BATCH_ROWS


@chz.chz
class SumsBuilder(RLDatasetBuilder):
    """Builds the questions."""

    async def __call__(self) -> tuple[RLDataset, None]:
        return Sums(), None


def train_supervised(folder: Path, common: dict[str, Any], submit_ahead: int) -> None:
    """Train on conversations of a file, in two epochs."""
    file = folder / "conversations.jsonl"
    turns = [(f"What is {number} + 1?", f"{number + 1}") for number in range(NUM_ROWS)]
    messages = [[{"role": "user", "content": one}, {"role": "assistant", "content": two}] for one, two in turns]
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in messages))
    rows = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=NAMES["model_name"],
        renderer_name=NAMES["renderer_name"],
        max_length=256,
        batch_size=BATCH_ROWS,
    )
    builder = FromConversationFileBuilder(common_config=rows, file_path=str(file))
    config = supervised.Config(dataset_builder=builder, num_epochs=2, submit_ahead=submit_ahead, **common)
    asyncio.run(supervised.main(config))


def train_rl(common: dict[str, Any]) -> None:
    """Train on sampled answers to the questions, in two epochs."""
    asyncio.run(rl.main(rl.Config(dataset_builder=SumsBuilder(), num_epochs=2, max_tokens=4, **common)))


class Requests:
    """What the loop submits, in that order."""

    def __init__(self, file: Path, stop: tuple[str, int] | None, number: int) -> None:
        self._file, self._stop, self._signal = file, stop, number
        self._counts: dict[str, int] = {}

    def follow(self, client: type, method: str, facts: Callable[[Any, Any], dict[str, Any]]) -> None:
        """Write a line for each call of a client's method."""
        call = getattr(client, method)
        kind = method.removesuffix("_async")

        def submitted(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(this, *args, **kwargs)
            self._counts[kind] = self._counts.get(kind, 0) + 1
            with self._file.open("a") as lines:
                lines.write(json.dumps({"kind": kind, **facts(this, args[0])}) + "\n")
            if self._stop == (kind, self._counts[kind]):
                os.kill(os.getpid(), self._signal)
            return result

        setattr(client, method, submitted)


def questions(client: Any, data: Sequence[tinker.Datum]) -> dict[str, Any]:
    """Return the number in each row's question."""
    texts = [client.get_tokenizer().decode(datum.model_input.to_ints()) for datum in data]
    return {"rows": [found[1] if (found := re.search(r"What is (\d+) \+", text)) else text for text in texts]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--loop", choices=["sft", "rl"], required=True)
    parser.add_argument("--submit-ahead", type=int, default=1)
    parser.add_argument("--stop", nargs=2, metavar=("KIND", "NUMBER"))
    parser.add_argument("--signal", type=int, default=signal.SIGKILL)
    options = parser.parse_args()
    os.chdir(options.folder)
    stop = (options.stop[0], int(options.stop[1])) if options.stop else None
    requests = Requests(options.folder / "requests.jsonl", stop, options.signal)
    requests.follow(tinker.TrainingClient, "forward_backward", questions)
    requests.follow(tinker.TrainingClient, "optim_step", lambda _, adam: {"rate": adam.learning_rate})
    requests.follow(tinker.TrainingClient, "save_state", lambda _, name: {"name": name})
    resumed = "create_training_client_from_state_with_optimizer"
    requests.follow(tinker.ServiceClient, resumed, lambda _, path: {"path": path})
    common = {
        **NAMES,
        "recipe_name": options.loop,
        "log_path": str(options.folder / "log"),
        "base_url": options.url,
        "learning_rate": 1e-3,
        "lora_rank": 8,
        "eval_every": 0,
        "save_every": SAVE_EVERY,
    }
    if options.loop == "rl":
        train_rl(common)
    else:
        train_supervised(options.folder, common, options.submit_ahead)
