"""Ours on one GPU beside its peers, in at most eight minutes: `python benchmarks/gpu.py [--tiny] [--only PART...]`.

    facts       the card's ceilings, and which results have equal bits on it
    sft-141m    tokens/s of SFT: ours in lines and padded, a compiled PyTorch loop over lines, TRL packed, TRL + Liger
    sft-500m    the same with the sizes of Qwen2.5-0.5B
    decode      tokens/s of 64 and 256 rows: ours, `transformers.generate`, and its compiled static cache
    grpo        a step of GRPO beside TRL's
    kill        a GRPO run under one SIGKILL beside an undisturbed one: time, weights, a replayed step

Contenders run in processes that take turns of ten seconds. TRL and Liger take part where they are installed. `--tiny`
runs the same lines on a CPU with small sizes and short turns, to see that they run; its figures mean nothing.

The last line printed is one JSON object: rates, ratios (ours / theirs), MFU, shares of the floor, and exactness.
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from assay.distributed.rank_device import device_of
from assay.inference.local.generator import Generator
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.flops import causal_flops
from assay.records.devices import dense_bf16_flops
from assay.training.gpu_facts import facts_of, measure_gpu
from generation import ours, timed, transformers_generate
from harness import Target, assay, describe_machine, in_turn, last_json, options_of, print_result, workspace
from methods import FULL as ON_CPU
from methods import SHAPED_REWARD, Comparison, Contender, Measured, Plan, grpo_contenders
from methods_rows import SPLIT, prompt_rows, write_model, write_rows

LINE = 16_384
GENERATED = 256
"""Tokens of a completion."""
PROMPT = 128


@dataclass(frozen=True)
class Sizes:
    """What is measured, on a GPU or in short on a CPU."""

    sft: Mapping[str, Plan]
    grpo: Plan
    line: int
    decode_rows: tuple[int, ...]
    decode_rounds: int
    generated: int
    kill_steps: int


GPU_PLAN = replace(
    ON_CPU, rounds=2, grpo_steps=1, hidden_size=768, num_layers=12, num_heads=12, vocab_size=32_000, num_rows=4096,
    micro_batch_rows=192, micro_batch_tokens=LINE, turn_s=10.0, on_gpu=True,
)  # fmt: skip
FULL = Sizes(
    sft={
        "sft-141m": GPU_PLAN,
        "sft-500m": replace(GPU_PLAN, hidden_size=896, num_layers=24, num_heads=14, vocab_size=151_936),
    },
    grpo=replace(GPU_PLAN, micro_batch_rows=64),
    line=LINE,
    decode_rows=(64, 256),
    decode_rounds=2,
    generated=GENERATED,
    kill_steps=12,
)
SMALL = replace(
    GPU_PLAN, on_gpu=False, hidden_size=32, num_layers=1, num_heads=2, vocab_size=128, micro_batch_rows=8,
    num_rows=128, turn_s=0.5, rounds=1,
)  # fmt: skip
TINY = Sizes(
    sft={"sft-141m": SMALL, "sft-500m": SMALL},
    grpo=replace(SMALL, micro_batch_rows=8),
    line=1024,
    decode_rows=(16,),
    decode_rounds=1,
    generated=16,
    kill_steps=4,
)
TARGETS = (
    Target("sft-141m_vs_bare_lines", 0.9, at_most=False),
    Target("sft-500m_mfu", 0.4, at_most=False),
    Target("decode_256_vs_generate", 10.0, at_most=False),
    Target("decode_256_of_floor", 0.3, at_most=False),
    Target("grpo_vs_trl", 5.0, at_most=False),
)


def sft_contenders(line: int, *, on_gpu: bool) -> list[Contender]:
    lines: dict[str, dict[str, Any]] = {
        "loader": {"layout": {"type": "line", "tokens": line, "row_tokens": 512}, "max_micro_batch_tokens": None},
        "trainer": {"compile": on_gpu, "weights": {"compute": "bfloat16"}},
    }
    keys = {"train_on": "all"}
    found = [
        Contender("ours", "ours", keys, lines),
        Contender("ours_padded", "ours", keys),
        Contender("bare_lines", "bare_lines", {}),
    ]
    if importlib.util.find_spec("trl"):
        packed = {
            "packing": True, "max_length": 512, "gradient_checkpointing": False,
            "per_device_train_batch_size": max(1, line // 512),
        }  # fmt: skip
        found.append(Contender("trl_packed", "trl", packed))
        if importlib.util.find_spec("liger_kernel"):
            found.append(Contender("trl_liger", "trl", {**packed, "use_liger_kernel": True}))
    return found


def measure_sft(folder: Path, sizes: Sizes, part: str) -> dict[str, Any]:
    plan = replace(sizes.sft[part], line_tokens=sizes.line)
    comparison = Comparison(folder / part, plan, "sft", "")
    found = comparison.of(sft_contenders(sizes.line, on_gpu=plan.on_gpu))
    figures = _rates(part, found)
    if plan.on_gpu and (rate := dense_bf16_flops(torch.cuda.get_device_name())) is not None:
        flops = causal_flops(PretrainedCausalConfig(type="pretrained", path=str(folder / part / "model")))
        assert flops is not None
        lengths = np.array([len(row["input_ids"]) for row in json.loads((folder / part / "rows.json").read_text())])
        per_token = flops.training(lengths, int(lengths.sum()) - len(lengths)) / int(lengths.sum())
        figures[f"{part}_mfu"] = found["ours"].tokens_per_s * per_token / rate
    return figures


def measure_grpo(folder: Path, sizes: Sizes) -> dict[str, Any]:
    contenders = grpo_contenders(sizes.generated)
    if importlib.util.find_spec("trl") is None:
        contenders = contenders[:1]
    found = Comparison(folder / "grpo", sizes.grpo, "grpo", "").of(contenders)
    figures = _rates("grpo", found)
    others = [measured.tokens_per_s for name, measured in found.items() if name != "ours"]
    return figures | ({"grpo_vs_trl": found["ours"].tokens_per_s / max(others)} if others else {})


def _rates(part: str, found: Mapping[str, Measured]) -> dict[str, Any]:
    own = found["ours"]
    figures: dict[str, Any] = {f"{part}_{name}_tokens_per_s": item.tokens_per_s for name, item in found.items()}
    figures |= {f"{part}_{name}_peak_mb": item.peak_mb for name, item in found.items()}
    others = {name: item for name, item in found.items() if item is not own}
    return figures | {f"{part}_vs_{name}": own.tokens_per_s / item.tokens_per_s for name, item in others.items()}


def as_users_run_it(complete: Callable[[int], int]) -> Callable[[int], int]:
    """Return the completion of a peer without our deterministic mode, and with no tokens where it raises."""

    def timed_complete(round_number: int) -> int:
        was_deterministic = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        try:
            return complete(round_number)
        except RuntimeError as error:
            print(f"  a peer failed: {error}")
            return 0
        finally:
            torch.use_deterministic_algorithms(was_deterministic)

    return timed_complete


def measure_decode(sizes: Sizes, device: torch.device, copied_bytes_per_s: float) -> dict[str, Any]:
    """Completions of one length by a model of 141 M parameters, drawn at temperature 1."""
    plan, figures = sizes.sft["sft-141m"], dict[str, Any]()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=plan.vocab_size, hidden_size=plan.hidden_size, intermediate_size=3 * plan.hidden_size,
        num_hidden_layers=plan.num_layers, num_attention_heads=plan.num_heads, max_position_embeddings=1024,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    network = LlamaForCausalLM(config).to(device, torch.bfloat16 if plan.on_gpu else torch.float32).eval()
    # A step reads a few rows of the input embedding.
    read = [*network.model.layers.parameters(), network.lm_head.weight]
    weight_bytes = sum(parameter.nbytes for parameter in read)
    for num_rows in sizes.decode_rows:
        prompts = torch.randint(2, plan.vocab_size, (num_rows // 8, PROMPT)).repeat_interleave(8, 0)
        contenders: dict[str, Callable[[int], int]] = {
            "ours": ours(network, prompts, sizes.generated, batch=num_rows),
            "generate": as_users_run_it(transformers_generate(network, prompts, sizes.generated, batch=num_rows)),
        }
        if plan.on_gpu:
            torch._dynamo.reset()
            contenders["static"] = as_users_run_it(
                transformers_generate(network, prompts, sizes.generated, batch=num_rows, cache_implementation="static")
            )
        turns = in_turn(
            {name: partial(timed, complete) for name, complete in contenders.items()}, sizes.decode_rounds, warm_ups=1
        )
        rates = {name: max(turn.num_tokens / turn.wall_s for turn in found) for name, found in turns.items()}
        key = f"decode_{num_rows}"
        figures |= {f"{key}_{name}_tokens_per_s": rate for name, rate in rates.items()}
        others = {name: rate for name, rate in rates.items() if name != "ours" and rate}
        figures |= {f"{key}_vs_{name}": rates["ours"] / rate for name, rate in others.items()}
        position_bytes = 2 * plan.num_layers * plan.hidden_size * network.dtype.itemsize
        step_bytes = weight_bytes + num_rows * (PROMPT + sizes.generated / 2) * position_bytes
        if copied_bytes_per_s:
            figures[f"{key}_of_floor"] = rates["ours"] * step_bytes / num_rows / copied_bytes_per_s
    generator = Generator(network, ends=(), slots=max(sizes.decode_rows))
    return figures | {"decode_batch_invariance": generator.batch_invariance.name}


def measure_kill(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Train GRPO undisturbed, and killed once; compare weights, and replay a step."""
    root, plan = folder / "kill", sizes.grpo
    root.mkdir()
    model = write_model(
        root / "model", vocab_size=plan.vocab_size, hidden_size=plan.hidden_size, num_layers=plan.num_layers,
        num_heads=plan.num_heads,
    )  # fmt: skip
    dataset = write_rows(root, prompt_rows(256, plan.vocab_size))
    recipe, faults = root / "recipe.yaml", root / "faults.yaml"
    tree = {
        "name": "kill",
        "data": {"dataset": str(dataset), "split": SPLIT},
        "loader": {"lanes": 4, "global_batch_size": 32},
        "method": {
            "type": "grpo", "model": {"type": "pretrained", "path": str(model)}, "group_size": 8,
            "sampling": {"max_tokens": sizes.generated // 4}, "rewards": [{"grader": SHAPED_REWARD}],
        },
        "trainer": {"epochs": 100, "max_steps": sizes.kill_steps, "commit_every": 2, "spot_check_every": 2},
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump(tree))
    killed_at = {"type": "kill", "attempt": 1, "step": sizes.kill_steps // 2 + 1}
    faults.write_text(yaml.safe_dump({"faults": [killed_at]}))
    seconds, digests = {}, {}
    for run_id, options in (("undisturbed", ()), ("killed", ("--faults", str(faults)))):
        started_s = time.monotonic()
        assay("train", str(recipe), "--run-id", run_id, *options)
        seconds[run_id] = time.monotonic() - started_s
        digests[run_id] = last_json(assay("runs", "show", run_id, "--json"))["weights_digest"]
    replayed = last_json(assay("runs", "replay", "killed", "--step", str(killed_at["step"]), "--json"))
    return {
        "kill_undisturbed_s": seconds["undisturbed"],
        "kill_killed_s": seconds["killed"],
        "kill_is_undisturbed": digests["killed"] == digests["undisturbed"],
        "replay_is_equal": replayed["verdict"] == "equal",
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--tiny", action="store_true")
    parts = ("facts", *FULL.sft, "decode", "grpo", "kill")
    parser.add_argument("--only", nargs="+", choices=parts)
    arguments = parser.parse_args()
    sizes = TINY if arguments.tiny else FULL
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    describe_machine()
    device = torch.device("cpu") if arguments.tiny else device_of()
    facts = facts_of(device) if arguments.tiny else measure_gpu(device)
    measures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "facts": lambda _: json.loads(facts.to_json()),
        **{part: partial(measure_sft, sizes=sizes, part=part) for part in sizes.sft},
        "decode": lambda _: measure_decode(sizes, device, facts.copied_bytes_per_s),
        "grpo": partial(measure_grpo, sizes=sizes),
        "kill": partial(measure_kill, sizes=sizes),
    }
    print_result(_measured(measures, arguments.only or parts), TARGETS)


def _measured(measures: Mapping[str, Callable[[Path], dict[str, Any]]], parts: Sequence[str]) -> dict[str, Any]:
    """Return the figures of the parts; a part that fails is named with its reason, and the others go on."""
    figures: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with workspace() as folder:
        for part in parts:
            started_s = time.monotonic()
            try:
                figures |= measures[part](folder)
            except (Exception, SystemExit) as error:
                failures[part] = f"{type(error).__name__}: {str(error)[-400:]}"
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            print(f"{part}: {time.monotonic() - started_s:.0f} s", flush=True)
    return figures | ({"failed_parts": failures} if failures else {})


if __name__ == "__main__":
    main()
