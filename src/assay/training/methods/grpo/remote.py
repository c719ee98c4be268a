"""Rollouts of an engine in another process: weights are synchronized, completions requested, and stored before use.

    weights --rank 0--> FOLDER/DIGEST --engine loads--> completions --made/STEP/ROW--> trained
                        stored completions of the step, if any ---------------^

This process cannot generate a completion again with the same bits. So a step that is run again, by any rank, uses the
stored completions if they are of its weights; a replay uses whatever is stored.
"""

import copy
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
import torch.distributed as dist

from assay.base.errors import ConfigError, DataError
from assay.base.seeds import derive_key
from assay.data.dataset.tokens import SETTINGS_FILE, TOKENIZER_FILE, tokenizer_file
from assay.inference.protocol import SamplingParams
from assay.inference.remote import HOW, POLL_S, EngineError, RemoteEngine, RemoteSampler
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.config import checkpoint_path
from assay.models.exporting import ExportOptions, save_model
from assay.models.lora import base_sha256, merge_adapters
from assay.models.token_scores import CausalNetwork
from assay.records.rollout_log import GeneratedCompletion, GeneratedGroup
from assay.training.checkpoint.pending_rollouts import delete_groups, load_groups, save_group
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.saver import weights_digest
from assay.training.methods.grpo.batch import RolloutGroup

_UNFINISHED = ".unfinished-"
_DIGEST_LENGTH = 64
HEARTBEAT_S = 5.0
"""Interval of heartbeats while the engine generates."""


class RemoteRollouts:
    """Rollouts that one rank gets from one engine."""

    def __init__(
        self,
        sampler: RemoteSampler,
        model: PretrainedCausalConfig,
        params: SamplingParams,
        *,
        group_size: int,
        ends: Collection[int],
    ) -> None:
        self._sampler = sampler
        self._model = model
        self._size = group_size
        self._engine = RemoteEngine(sampler, params, group_size=group_size, ends=ends)
        self._last: tuple[RewardCache, int] | None = None
        """Cache and step of the last stored rollouts."""

    def of(
        self,
        network: CausalNetwork,
        groups: Sequence[RolloutGroup],
        *,
        step: int,
        seed: int,
        reward_cache: RewardCache,
        is_stopping: Callable[[], bool],
        heartbeat: Callable[[], None],
    ) -> list[Rollout]:
        """Return `group_size` completions of each prompt for optimizer step `step`.

        Raises `GenerationCancelledError` if `is_stopping()` becomes true. `heartbeat` is called while the
        engine generates; the engine's own timeout applies.
        """
        row_ids = [group.row_id for group in groups]
        saved, self._last = load_groups(reward_cache.store, step, row_ids), (reward_cache, step)
        if reward_cache.is_read_only:
            rollouts = {row_id: _rollouts(record) for row_id, record in saved.items()}
            lacking = [row_id for row_id in row_ids if row_id not in rollouts]
            rollouts |= _committed(reward_cache, step, lacking) if lacking else {}
        else:
            network = _merged(network)
            policy = weights_digest(network.state_dict())
            rollouts = {row_id: _rollouts(record) for row_id, record in saved.items() if record.policy == policy}
            prompts = {
                group.row_id: Prompt(group.prompt, derive_key(seed, group.row_id, "engine"))
                for group in groups
                if group.row_id not in rollouts
            }

            def keep(row_id: int, rollouts: list[Rollout]) -> None:
                save_group(reward_cache.store, _group_record(row_id, rollouts, policy, step, reward_cache.attempt))

            generate = partial(self._sync_and_generate, network, prompts, policy, keep, is_stopping)
            rollouts |= _with_heartbeat(generate, is_stopping, heartbeat)
        if lost := [row_id for row_id in row_ids if len(rollouts.get(row_id, ())) != self._size]:
            raise DataError(
                f"step {step}, row {lost[0]}: the completions of {self._sampler.url} are not stored any "
                "more and cannot be generated again. Restore the commit that holds the step (journal.parquet)."
            )
        return [rollout for row_id in row_ids for rollout in rollouts[row_id]]

    def check_logprob_gap(self, gap: float, *, step: int) -> None:
        """Raise `EngineError` if the engine's logprobs differ from the trainer's by more than the bound."""
        allowed = self._sampler.logprob_gap
        if allowed.on_excess != "refuse" or gap <= allowed.bound:
            return
        if self._last is not None and not self._last[0].is_read_only:
            reward_cache, last_step = self._last
            delete_groups(reward_cache.store, last_step)
        raise EngineError(
            f"step {step}: method.sampler.url={self._sampler.url} and the trainer are {gap:.3g} nats apart per "
            f"token, more than method.sampler.logprob_gap.bound={allowed.bound:g}: it samples with other "
            "weights than it reports, at another temperature or from a truncated distribution, or reports logprobs "
            "before these are applied (vLLM: --logprobs-mode processed_logprobs). No update was made, and commits "
            f"are intact. Fix the engine ({HOW}) and continue with assay train --resume; or weight such "
            "tokens: assay train --from RUN method.sampler.logprob_gap.on_excess=truncate."
        )

    def _sync_and_generate(
        self,
        network: CausalNetwork,
        prompts: Mapping[int, Prompt],
        policy: str,
        keep: Callable[[int, list[Rollout]], None],
        is_stopping: Callable[[], bool],
    ) -> dict[int, list[Rollout]]:
        is_alone = not dist.is_initialized() or dist.get_world_size() == 1
        # The others cannot know whether anybody has something to ask, so rank 0 hands over for them, too.
        if (is_alone and prompts) or (not is_alone and dist.get_rank() == 0):
            self.sync_weights(network, policy)
        elif prompts:
            self._engine.await_weights(policy)
        return self._engine.generate(prompts, policy, keep, is_stopping) if prompts else {}

    def sync_weights(self, network: CausalNetwork, policy: str) -> None:
        """Have the engine load the weights with digest `policy`; remove earlier ones."""
        folder = Path(self._sampler.folder)
        try:
            if self._engine.named() != policy:
                _write(network, self._model, folder / policy)
            self._engine.load(policy, folder / policy)
            for entry in folder.iterdir():
                is_older = len(entry.name) == _DIGEST_LENGTH and entry.name != policy
                if is_older or entry.name.startswith(_UNFINISHED):
                    shutil.rmtree(entry, ignore_errors=True)
        except OSError as error:
            raise EngineError(
                f"method.sampler.folder={folder}: weights cannot be handed over there: {error}. It has to be a "
                "folder that this run may write to and the engine sees."
            ) from error


def check_engine(sampler: RemoteSampler, model: PretrainedCausalConfig, params: SamplingParams, longest: int) -> None:
    """Raise `ConfigError` for an engine that cannot be trained with; the engine gets the initial weights."""
    RemoteEngine(sampler, params, group_size=1, ends=()).check(longest)
    if not Path(sampler.folder).is_dir():
        raise ConfigError(
            f"method.sampler.folder={sampler.folder}: no such folder. Make one that the engine sees, too."
        )
    network = CausalNetwork(model.model_copy(update={"lora": None}))
    try:
        rollouts = RemoteRollouts(sampler, model, params, group_size=1, ends=())
        rollouts.sync_weights(network, weights_digest(network.state_dict()))
    except EngineError as error:
        raise ConfigError(str(error)) from error


def _with_heartbeat(
    work: Callable[[], dict[int, list[Rollout]]], is_stopping: Callable[[], bool], heartbeat: Callable[[], None]
) -> dict[int, list[Rollout]]:
    """Return the result of `work`, run in a thread with heartbeats; a cancelled wait leaves the thread alone."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="engine")
    future, signed_s = pool.submit(work), time.monotonic()
    try:
        while not wait([future], timeout=POLL_S).done:
            if is_stopping():
                raise GenerationCancelledError
            if time.monotonic() > signed_s + HEARTBEAT_S:
                heartbeat()
                signed_s = time.monotonic()
        return future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _merged(network: CausalNetwork) -> CausalNetwork:
    """Return a copy with adapters merged, or the network itself if it has none."""
    if base_sha256(network) is None:
        return network
    merged = copy.deepcopy(network)
    merge_adapters(merged)
    return merged


def _write(network: CausalNetwork, config: PretrainedCausalConfig, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt, perhaps incomplete
    unfinished = folder.parent / f"{_UNFINISHED}{folder.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    save_model(network.network, config, unfinished, ExportOptions())
    tokenizer = tokenizer_file(checkpoint_path(config.path))
    for name in (TOKENIZER_FILE, SETTINGS_FILE):
        if (file := tokenizer.parent / name).is_file():
            shutil.copyfile(file, unfinished / name)
    for file in unfinished.iterdir():
        file.chmod(0o644)  # the engine may run as another user
    unfinished.rename(folder)


def _group_record(row_id: int, rollouts: Sequence[Rollout], policy: str, step: int, attempt: int) -> GeneratedGroup:
    completions = tuple(
        GeneratedCompletion(
            tokens=tuple(rollout.tokens.tolist()),
            logprobs=tuple(rollout.logprobs.tolist()),
            reason=rollout.reason,
        )
        for rollout in rollouts
    )
    return GeneratedGroup(step=step, row_id=row_id, attempt=attempt, policy=policy, completions=completions)


def _committed(reward_cache: RewardCache, step: int, row_ids: Sequence[int]) -> dict[int, list[Rollout]]:
    """Return the completions in commits' rollout logs; the last log wins."""
    return {
        group.row_id: [
            Rollout(
                np.array(entry.tokens, np.int64),
                np.array(entry.logprobs, np.float32),
                "length" if entry.is_cut else "stop",
            )
            for entry in group.completions
            if entry.tokens is not None
        ]
        for group in reward_cache.committed_groups(step, row_ids)
    }


def _rollouts(group: GeneratedGroup) -> list[Rollout]:
    return [
        Rollout(np.array(entry.tokens, np.int64), np.array(entry.logprobs, np.float32), entry.reason)
        for entry in group.completions
    ]
