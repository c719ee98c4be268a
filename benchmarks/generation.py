"""Our engine beside `transformers.generate`: `python benchmarks/generation.py [--quick]`.

256 prompts (32, eight samples of each, as in a step of GRPO) are completed by one model at temperature 1;
batches of 64 there, 64 slots here. How long answers are is the model's own affair, as in life: an addition to
the end token's logit, by position, makes their lengths log-normal (median 24, longest 256), or all 8. Both draw
from the same distribution, and take turns, in the other order every other time.

Figures are drawn tokens a second. The last line printed is one JSON object: ratios, ours / theirs.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from assay.inference.local.generator import Generator
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt
from assay.models.causal import build_causal
from assay.models.causal_config import NewCausalConfig
from harness import Target, describe_machine, in_turn, options_of, print_result

BATCH = 64
NUM_PROMPTS, SAMPLES = 32, 8
PROMPT_TOKENS = 20
LONGEST, EVEN = 256, 8
MEDIAN, SIGMA = 24, 1.0
END = 1
VOCAB_SIZE = 1024
SIZES = {"d64": (64, 2), "d128": (128, 4)}
"""Width and layers."""


class Turn(NamedTuple):
    """One contender's, once."""

    num_tokens: int
    wall_s: float
    cpu_s: float


def hazards(*, is_mixed: bool) -> torch.Tensor:
    """[tokens before]: the chance that an answer so long ends here; log-normal lengths, or none ends."""
    if not is_mixed:
        return torch.zeros(LONGEST + 1)
    edges = (np.log(np.arange(1, LONGEST + 2)) - math.log(MEDIAN)) / SIGMA
    beyond = np.array([0.5 * math.erfc(edge / math.sqrt(2)) for edge in edges])
    return torch.from_numpy(1 - beyond[1:] / beyond[:-1]).float()


def end_as_planned(network: Any, chances: torch.Tensor) -> None:
    """Whoever draws with it, behind `PROMPT_TOKENS`: an answer ends with these chances, by its length."""
    added: dict[torch.device, torch.Tensor] = {}  # copied once: a captured step of a GPU copies nothing

    def hook(_: Any, __: Any, inputs: dict[str, Any], output: Any) -> None:
        if inputs.get("past_key_values") is None or torch.is_grad_enabled():
            return  # nobody draws from these
        logits = output.logits[:, -1]
        drawn = (inputs["position_ids"][:, -1] - PROMPT_TOKENS + 1).clamp(min=0, max=len(chances) - 1)
        if drawn.device not in added:
            added[drawn.device] = torch.logit(chances).to(drawn.device)
        logits[:, END] = -torch.inf
        logits[:, END] = torch.logsumexp(logits, dim=-1) + added[drawn.device][drawn]

    network.register_forward_hook(hook, with_kwargs=True)


def new_network(hidden_size: int, num_layers: int, *, is_mixed: bool) -> Any:
    """A model whose answers have such lengths."""
    torch.manual_seed(0)
    config = NewCausalConfig(
        vocab_size=VOCAB_SIZE, hidden_size=hidden_size, num_layers=num_layers, num_heads=4, num_kv_heads=2,
        intermediate_size=3 * hidden_size, max_tokens=512,
    )  # fmt: skip
    network = build_causal(config).eval()
    end_as_planned(network, hazards(is_mixed=is_mixed))
    return network


def timed(complete: Callable[[int], int], round_number: int) -> Turn:
    """Both contenders have their tokens on the CPU in the end, so whatever a GPU did is done."""
    began, cpu = time.perf_counter(), time.process_time()
    num_tokens = complete(round_number)
    return Turn(num_tokens, time.perf_counter() - began, time.process_time() - cpu)


def ours(network: Any, rows: torch.Tensor, longest: int, *, batch: int = BATCH) -> Callable[[int], int]:
    generator, sampling = (
        Generator(network, ends={END}, slots=batch),
        SamplingParams(temperature=1.0, max_tokens=longest),
    )

    def complete(round_: int) -> int:
        request = [Prompt(row.numpy(), round_ * len(rows) + index) for index, row in enumerate(rows)]
        return sum(len(rollout.tokens) for rollout in generator.generate(request, sampling))

    return complete


def transformers_generate(
    network: Any, rows: torch.Tensor, longest: int, *, batch: int = BATCH, **options: Any
) -> Callable[[int], int]:
    settings = {
        "use_cache": True,  # which a model that is made for training does not ask for
        "do_sample": True,
        "top_k": 0,
        "eos_token_id": END,
        "pad_token_id": 0,
        "max_new_tokens": longest,
        **options,
    }

    def complete(round_: int) -> int:
        torch.manual_seed(round_)
        num_tokens = 0
        for prompts in torch.split(rows.to(network.device), batch):
            mask = torch.ones_like(prompts)
            found = network.generate(prompts, attention_mask=mask, **settings)[:, rows.shape[1] :]
            is_end = found == END
            after = is_end.cumsum(1) - is_end.long() > 0
            num_tokens += int((~after).sum())
        return num_tokens

    return complete


def compared(size: str, *, is_mixed: bool, rounds: int) -> dict[str, float]:
    network = new_network(*SIZES[size], is_mixed=is_mixed)
    longest = LONGEST if is_mixed else EVEN
    rows = torch.randint(2, VOCAB_SIZE, (NUM_PROMPTS, PROMPT_TOKENS)).repeat_interleave(SAMPLES, 0)
    contenders = {
        "ours": ours(network, rows, longest),
        "transformers.generate": transformers_generate(network, rows, longest),
    }
    turns = in_turn({name: partial(timed, contender) for name, contender in contenders.items()}, rounds, warm_ups=1)
    lengths = "log-normal lengths" if is_mixed else f"answers of {EVEN} tokens"
    print(f"\n{size}, {sum(parameter.numel() for parameter in network.parameters()):,} parameters, {lengths}:")
    rates = {}
    for name, counted in turns.items():
        by_wall = [turn.num_tokens / turn.wall_s for turn in counted]
        by_cpu = statistics.median(turn.num_tokens / turn.cpu_s for turn in counted)
        rates[name] = (statistics.median(by_wall), by_cpu)
        mean = statistics.mean(turn.num_tokens for turn in counted) / len(rows)
        print(
            f"  {name:<24}{rates[name][0]:8.0f} tokens/s ({min(by_wall):.0f} to {max(by_wall):.0f})"
            f"{by_cpu:8.0f} /CPU s; {mean:.1f} tokens an answer"
        )
    (wall, cpu), (their_wall, their_cpu) = rates["ours"], rates["transformers.generate"]
    key = f"generate{'' if is_mixed else '_short'}_vs_hf_{size}"
    return {key: wall / their_wall, f"{key}_cpu": cpu / their_cpu}


def generate_vs_hf(*, rounds: int, sizes: Sequence[str]) -> dict[str, float]:
    """Everything, of models of `SIZES`."""
    figures: dict[str, float] = {}
    for size in sizes:
        for is_mixed in (True, False):
            figures |= compared(size, is_mixed=is_mixed, rounds=rounds)
    figures["generate_vs_hf"] = min(figures[f"generate_vs_hf_{size}"] for size in sizes)
    return figures


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of the smaller model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    describe_machine()
    figures = generate_vs_hf(rounds=1 if arguments.quick else 5, sizes=("d64",) if arguments.quick else ("d64", "d128"))
    print_result(figures, [Target("generate_vs_hf", 3.0, at_most=False)])


if __name__ == "__main__":
    main()
