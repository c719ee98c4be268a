"""Rollouts of an engine in another process: weights are synchronized, completions requested, and stored before use.

    weights --rank 0--> FOLDER/DIGEST --engine loads--> completions --made/STEP/ROW--> trained
                        stored completions of the step, if any ---------------^

This process cannot generate a completion again with the same bits. So a step that is run again, by any rank, uses the
stored completions if they are of its weights; a replay uses whatever is stored.

An engine can report a digest and keep a part of the earlier weights. So it is probed with changed weights before the
run and after each start of the engine; and the logprob gap of a step is compared with that of the run's first step.
"""

import copy
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from assay.base.errors import ConfigError, DataError
from assay.base.seeds import derive_key
from assay.base.shapes import Float32
from assay.data.dataset.tokens import SETTINGS_FILE, TOKENIZER_FILE, tokenizer_file
from assay.inference.protocol import Reason, SamplingParams
from assay.inference.remote import HOW, POLL_S, EngineError, RemoteEngine, RemoteSampler
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.config import checkpoint_path
from assay.models.exporting import ExportOptions, save_model
from assay.models.head import TokenScores
from assay.models.lora import base_sha256, merge_adapters
from assay.models.token_scores import CausalNetwork
from assay.records.rollout_log import NEGLIGIBLE_NATS, FirstLogprobGap, GeneratedCompletion, GeneratedGroup, largest_gap
from assay.training.checkpoint.reward_cache import RewardCache, delete_groups, load_groups, save_group
from assay.training.checkpoint.saver import weights_digest
from assay.training.methods.grpo.batch import RolloutGroup
from assay.training.rollouts.source import RolloutContext

_UNFINISHED = ".unfinished-"
_DIGEST_LENGTH = 64
HEARTBEAT_S = 5.0
"""Interval of heartbeats while the engine generates."""
FIRST_GAP_KEY = "first-logprob-gap.json"
"""A `FirstLogprobGap` in the run's store."""
_PROBE_PROMPTS, _PROBE_SAMPLES, _PROBE_TOKENS = 8, 4, 16
MAX_STALE_SHARE = 0.1
"""Largest logprob gap of a probe, as a share of what the change of the weights does. docs/generation.md
has what was measured."""


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
        self._params = params
        self._size = group_size
        self._engine = RemoteEngine(sampler, params, group_size=group_size, ends=ends)
        self._last: tuple[RewardCache, int] | None = None
        """Cache and step of the last stored rollouts."""

    def of(self, network: CausalNetwork, groups: Sequence[RolloutGroup], context: RolloutContext) -> list[Rollout]:
        """Return `group_size` completions of each prompt.

        `context.enter_phase` is called again and again while the engine generates; the engine's own timeout applies.
        """
        step, is_stopping, reward_cache = context.step, context.is_stopping, context.reward_cache
        assert reward_cache is not None, "completions of a remote engine must be stored"
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
                group.row_id: Prompt(group.prompt, derive_key(context.seed, group.row_id, "engine"))
                for group in groups
                if group.row_id not in rollouts
            }

            def keep(row_id: int, rollouts: list[Rollout]) -> None:
                save_group(reward_cache.store, _group_record(row_id, rollouts, policy, step, reward_cache.attempt))

            generate = partial(self._sync_and_generate, network, prompts, policy, keep, is_stopping)
            heartbeat = partial(context.enter_phase, "generation")
            rollouts |= _with_heartbeat(generate, is_stopping, heartbeat)
        if lost := [row_id for row_id in row_ids if len(rollouts.get(row_id, ())) != self._size]:
            raise DataError(
                f"step {step}, row {lost[0]}: the completions of {self._sampler.url} are not stored any "
                "more and cannot be generated again. Restore the commit that holds the step (journal.parquet)."
            )
        return [rollout for row_id in row_ids for rollout in rollouts[row_id]]

    def check_logprob_gap(self, gap: float, *, step: int) -> None:
        """Raise `EngineError` if the engine's logprobs differ from the trainer's by more than the bound, or by much
        more than in the run's first step."""
        allowed, problem = self._sampler.logprob_gap, ""
        if allowed.on_excess == "refuse" and gap > allowed.bound:
            problem = (
                f"more than method.sampler.logprob_gap.bound={allowed.bound:g}: it samples with other "
                "weights than it reports, at another temperature or from a truncated distribution, or reports logprobs "
                "before these are applied (vLLM: --logprobs-mode processed_logprobs)"
            )
            otherwise = "weight such tokens: assay train --from RUN method.sampler.logprob_gap.on_excess=truncate"
        elif gap and self._last is not None and gap > largest_gap((first := _first_gap(self._last[0], gap, step)).gap):
            problem = (
                f"{gap / first.gap:,.0f} times as much as in step {first.step} ({first.gap:.2g}): it samples with "
                "older weights than it reports, or at another precision than then"
            )
            otherwise = "if its precision was changed on purpose, make this step the first: assay train --from RUN"
        if not problem:
            return
        if self._last is not None and not self._last[0].is_read_only:
            reward_cache, last_step = self._last
            delete_groups(reward_cache.store, last_step)
            self._engine.forget()
        raise EngineError(
            f"step {step}: method.sampler.url={self._sampler.url} and the trainer are {gap:.3g} nats apart per "
            f"token, {problem}. No update was made, and commits are intact. Fix the engine ({HOW}) and continue with "
            f"assay train --resume; or {otherwise}."
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
        """Have the engine load the weights with digest `policy`; probe it first if it was just started."""
        if len(self._engine.named()) != _DIGEST_LENGTH:
            self.probe(_base_network(self._model))
        self._load(network, policy)

    @torch.no_grad()
    def probe(self, network: CausalNetwork) -> None:
        """Raise `EngineError` unless the engine's logprobs follow when weights change; the network is restored."""
        longest = min(self._params.max_tokens, _PROBE_TOKENS)
        params = self._params.model_copy(update={"max_tokens": longest, "stop": ()})
        tokens = np.linspace(0, network.network.config.vocab_size - 1, _PROBE_PROMPTS, dtype=np.int64)
        prompts = {key: Prompt([int(token)], key) for key, token in enumerate(tokens)}
        engine = RemoteEngine(self._sampler, params, group_size=_PROBE_SAMPLES, ends=())
        _flip_signs(network)
        try:
            changed = weights_digest(network.state_dict())
            self._load(network, changed)
            groups = engine.generate(prompts, changed, lambda *_: None)
            rollouts = [(prompts[key], rollout) for key, group in groups.items() for rollout in group]
            own = _own_logprobs(network, rollouts, params)
        finally:
            _flip_signs(network)
        found = np.concatenate([rollout.logprobs for _, rollout in rollouts])
        gap = float(np.abs(found - own).mean())
        change = float(np.abs(_own_logprobs(network, rollouts, params) - own).mean())
        if not gap <= max(NEGLIGIBLE_NATS, MAX_STALE_SHARE * change):
            self._engine.forget()
            raise EngineError(
                f"method.sampler.url={self._sampler.url}: it does not follow the weights that it is handed. With "
                f"changed weights, its logprobs and the trainer's are {gap:.3g} nats apart per token, and the change "
                f"itself makes {change:.3g}. It keeps some of the earlier weights (update vLLM), samples at another "
                "temperature, or reports logprobs before this is applied (vLLM: --logprobs-mode processed_logprobs). "
                f"{HOW}."
            )

    def _load(self, network: CausalNetwork, policy: str) -> None:
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
    """Raise `ConfigError` for an engine that cannot be trained with; the engine gets changed weights, then the
    initial ones."""
    RemoteEngine(sampler, params, group_size=1, ends=()).check(longest)
    if not Path(sampler.folder).is_dir():
        raise ConfigError(
            f"method.sampler.folder={sampler.folder}: no such folder. Make one that the engine sees, too."
        )
    network = _base_network(model)
    try:
        rollouts = RemoteRollouts(sampler, model, params, group_size=1, ends=())
        rollouts.probe(network)
        rollouts.sync_weights(network, weights_digest(network.state_dict()))
    except EngineError as error:
        raise ConfigError(str(error)) from error


def _base_network(model: PretrainedCausalConfig) -> CausalNetwork:
    return CausalNetwork(model.model_copy(update={"lora": None})).eval()


def _flip_signs(network: nn.Module) -> None:
    """Negate every second row of all weights, so that no matrix keeps its meaning; again, it restores every bit."""
    for weight in network.parameters():
        weight[1::2].neg_()


def _own_logprobs(
    network: CausalNetwork, rollouts: Sequence[tuple[Prompt, Rollout]], params: SamplingParams
) -> Float32[np.ndarray, "token"]:
    """Return the logprobs of all completions' tokens in the distribution of `params`."""
    found = []
    for prompt, rollout in rollouts:
        tokens = torch.tensor([[*prompt.tokens, *rollout.tokens.tolist()]])
        scores: TokenScores = network(tokens, temperature=params.temperature)
        found.append(scores.logprobs[0, -len(rollout.tokens) :].numpy())
    return np.concatenate(found)


def _first_gap(reward_cache: RewardCache, gap: float, step: int) -> FirstLogprobGap:
    """Return the gap of the run's first step, which is this one if none is stored; ranks agree."""
    own, store = FirstLogprobGap(step=step, gap=gap), reward_cache.store
    is_new = not store.exists(FIRST_GAP_KEY)
    if is_new and (reward_cache.is_read_only or store.put_if_absent(FIRST_GAP_KEY, own.to_sealed_json().encode())):
        return own
    return FirstLogprobGap.from_json(store.get(FIRST_GAP_KEY), source=f"{store.url}/{FIRST_GAP_KEY}")


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
    # vLLM's reload renews an output matrix only from a tensor of its own, even if the model ties it to the embedding.
    save_model(network.network, config, unfinished, ExportOptions(writes_head=True))
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
            tokens=tuple(rollout.tokens.tolist()), logprobs=tuple(rollout.logprobs.tolist()), reason=rollout.reason
        )
        for rollout in rollouts
    )
    return GeneratedGroup(step=step, row_id=row_id, attempt=attempt, policy=policy, completions=completions)


def _committed(reward_cache: RewardCache, step: int, row_ids: Sequence[int]) -> dict[int, list[Rollout]]:
    """Return the completions in commits' rollout logs; the last log wins."""
    return {
        group.row_id: [
            _rollout(entry.tokens, entry.logprobs, "length" if entry.is_cut else "stop")
            for entry in group.completions
            if entry.tokens is not None
        ]
        for group in reward_cache.committed_groups(step, row_ids)
    }


def _rollouts(group: GeneratedGroup) -> list[Rollout]:
    return [_rollout(entry.tokens, entry.logprobs, entry.reason) for entry in group.completions]


def _rollout(tokens: Sequence[int], logprobs: Sequence[float] | None, reason: Reason) -> Rollout:
    return Rollout(np.array(tokens, np.int64), np.array(logprobs, np.float32), reason)
