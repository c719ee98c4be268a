"""Runs of SFT, reward models, DPO and GRPO with real processes, small and quick: what tests of theirs share."""

from pathlib import Path
from typing import Any

from transformers.models.llama.modeling_llama import LlamaForCausalLM

import language_rows
import preference_rows
from agreement.tiny_models import save_tiny
from assay.base.clock import SystemClock
from assay.base.config import LoadedConfig
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.workflows.run import create_run
from language_rows import language_dataset, sft_recipe
from preference_rows import preference_dataset, preference_recipe
from prompt_rows import grpo_recipe, prompt_dataset

LORA = {"rank": 2, "dropout": 0.1}


def method_recipe(method: str, folder: Path, **model: Any) -> dict[str, Any]:
    """Of one of the methods, on rows that are made in `folder`; `model`: further keys of the model.

    SFT and the reward model begin with weights that are drawn from the run's seed, DPO and GRPO with a
    folder's.
    """
    if method == "sft":
        keys = {"model": language_rows.small_model(**model)}
        return sft_recipe(language_dataset(folder / "rows"), method=keys)
    if method == "grpo":
        tree = grpo_recipe(prompt_dataset(folder / "rows"), folder / "base")
        tree["method"]["model"] |= model
        return tree
    dataset = preference_dataset(folder / "rows")
    if method == "reward":
        return preference_recipe(dataset, {"type": "reward", "model": preference_rows.small_model(**model)})
    base = save_tiny(LlamaForCausalLM, folder / "base", seed=3)
    return preference_recipe(dataset, {"type": "dpo", "model": {"type": "pretrained", "path": str(base), **model}})


def digest(tree: dict[str, Any], name: str, policy: RestartPolicy, world_size: int = 1) -> str:
    """Of the weights with which a run of real processes ends; it is audited."""
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=name)
    log = CommitLog(open_store(run.store_url))
    Supervisor(run, log, policy=policy, observers=[], clock=SystemClock()).run(world_size)
    finished = log.finished()
    assert finished is not None and audit_run(run, log).verdict in ("pass", "incomplete")
    return finished.weights_digest


def eventful() -> RestartPolicy:
    """Four ranks with shards, then two with all weights, then two with shards, then one."""
    kills = [{"type": "kill", "attempt": attempt, "step": step} for attempt, step in ((1, 5), (2, 8), (3, 11))]
    return RestartPolicy(
        world_sizes=(4, 2, 2, 1),
        parallel=("fsdp2", "ddp", "fsdp2", "ddp"),
        faults=FaultPlan.model_validate({"faults": kills}),
    )
