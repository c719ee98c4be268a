"""Answers of an engine of another process: weights are handed over, groups asked for, what comes back is kept.

    weights --rank 0--> FOLDER/DIGEST --engine loads--> answers --made/STEP/ROW--> learned
                        kept answers of the step, if there are any -----------------^

Nobody here can make an answer again. So a step that is made again, by whichever rank, takes what is kept if it
is of the weights that it has; and where nothing is to be asked (a replay), whatever is kept.
"""

import copy
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
import torch.distributed as dist

from assay.base.errors import ConfigError, DataError
from assay.base.seeds import derive_key
from assay.data.dataset.tokens import SETTINGS_FILE, TOKENIZER_FILE, tokenizer_file
from assay.inference.remote import HOW, POLL_S, AskedGroup, EngineError, RemoteEngine
from assay.inference.remote_config import RemoteSampler
from assay.inference.rollout import GenerationAbandonedError, Rollout
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.config import checkpoint_path
from assay.models.exporting import Leaving, save_model
from assay.models.lora import base_sha256, merge_adapters
from assay.models.token_scores import CausalNetwork
from assay.records.made_group import MadeAnswer, MadeGroup
from assay.scoring.sampler import Sampling
from assay.training.checkpoint.grade_book import GradeBook
from assay.training.checkpoint.made_groups import forget_groups, found_groups, keep_group
from assay.training.checkpoint.saver import weights_digest
from assay.training.methods.grpo.batch import PromptRow

_UNFINISHED = ".unfinished-"
_DIGEST_LENGTH = 64
SIGN_OF_LIFE_S = 5.0
"""From one to the next, while an engine is waited for."""


class RemoteAnswers:
    """What one engine answers to one rank."""

    def __init__(
        self,
        sampler: RemoteSampler,
        model: PretrainedCausalConfig,
        sampling: Sampling,
        *,
        group_size: int,
        ends: Collection[int],
    ) -> None:
        self._sampler = sampler
        self._model = model
        self._size = group_size
        self._engine = RemoteEngine(sampler, sampling, ends=ends)
        self._last: tuple[GradeBook, int] | None = None
        """Where and for which step answers were kept last."""

    def of(
        self,
        network: CausalNetwork,
        rows: Sequence[PromptRow],
        *,
        step: int,
        seed: int,
        book: GradeBook,
        is_stopping: Callable[[], bool],
        give_sign: Callable[[], None],
    ) -> list[Rollout]:
        """`group_size` answers to each row, to be learned in update number `step`.

        A `GenerationAbandonedError` comes where the process `is_stopping` meanwhile. `give_sign` of life is
        called while it waits for the engine, which has a time limit of its own.
        """
        kept, self._last = found_groups(book.store, step, [row.row_id for row in rows]), (book, step)
        answers = {row_id: _rollouts(group) for row_id, group in kept.items()}
        if book.is_read_only:
            lacking = [row.row_id for row in rows if row.row_id not in answers]
            answers |= _committed(book, step, lacking) if lacking else {}
        else:
            network = _as_handed_over(network)
            policy = weights_digest(network.state_dict())
            of_others = [row_id for row_id, group in kept.items() if group.policy != policy]
            answers = {row_id: made for row_id, made in answers.items() if row_id not in of_others}
            groups = [
                AskedGroup(row.row_id, row.tokens, self._size, derive_key(seed, row.row_id, "engine"))
                for row in rows
                if row.row_id not in answers
            ]

            def keep(group: AskedGroup, rollouts: list[Rollout]) -> None:
                keep_group(book.store, _made(group, rollouts, policy, step, book.attempt))

            asked = partial(self._asked, network, groups, policy, keep, is_stopping)
            answers |= _patiently(asked, is_stopping, give_sign)
        if lost := [row.row_id for row in rows if len(answers.get(row.row_id, ())) != self._size]:
            raise DataError(
                f"step {step}, row {lost[0]}: what {self._sampler.url} answered is not kept any more, and "
                "nobody can make it again. Restore the commit that holds the step (journal.parquet)."
            )
        return [answer for row in rows for answer in answers[row.row_id]]

    def refuse_gap(self, gap: float, *, step: int) -> None:
        """Raise of a step whose answers the engine finds likelier, or less likely, than the trainer does."""
        allowed = self._sampler.logprob_gap
        if allowed.on_excess != "refuse" or gap <= allowed.bound:
            return
        if self._last is not None and not self._last[0].is_read_only:
            book, asked = self._last
            forget_groups(book.store, asked)
        raise EngineError(
            f"step {step}: method.sampler.url={self._sampler.url} and the trainer are {gap:.3g} nats apart per "
            f"token, more than method.sampler.logprob_gap.bound={allowed.bound:g}: it draws with other "
            "weights than it names, at another temperature, leaves tokens out, or says how likely they are "
            "before all that (vLLM: --logprobs-mode processed_logprobs). No update was made, and what is "
            f"committed is intact. Mend the engine ({HOW}) and go on with assay train --resume; or weigh such "
            "tokens: assay train --from RUN method.sampler.logprob_gap.on_excess=truncate."
        )

    def _asked(
        self,
        network: CausalNetwork,
        groups: Sequence[AskedGroup],
        policy: str,
        keep: Callable[[AskedGroup, list[Rollout]], None],
        is_stopping: Callable[[], bool],
    ) -> dict[int, list[Rollout]]:
        is_alone = not dist.is_initialized() or dist.get_world_size() == 1
        # The others cannot know whether anybody has something to ask, so rank 0 hands over for them, too.
        if (is_alone and groups) or (not is_alone and dist.get_rank() == 0):
            self.hand_over(network, policy)
        elif groups:
            self._engine.await_weights(policy)
        return self._engine.answer(groups, policy, keep, is_stopping) if groups else {}

    def hand_over(self, network: CausalNetwork, policy: str) -> None:
        """Have the engine load the weights, whose digest is `policy`; earlier ones are removed."""
        place = Path(self._sampler.folder)
        try:
            if self._engine.named() != policy:
                _write(network, self._model, place / policy)
            self._engine.load(policy, place / policy)
            for each in place.iterdir():
                is_older = len(each.name) == _DIGEST_LENGTH and each.name != policy
                if is_older or each.name.startswith(_UNFINISHED):
                    shutil.rmtree(each, ignore_errors=True)
        except OSError as error:
            raise EngineError(
                f"method.sampler.folder={place}: weights cannot be handed over there: {error}. It has to be a "
                "folder that this run may write to and the engine sees."
            ) from error


def refuse_engine(
    sampler: RemoteSampler, model: PretrainedCausalConfig, sampling: Sampling, longest: int
) -> None:
    """Raise `ConfigError` of an engine that could not be learned from; it is handed the model as it begins."""
    RemoteEngine(sampler, sampling, ends=()).check(longest)
    if not Path(sampler.folder).is_dir():
        raise ConfigError(
            f"method.sampler.folder={sampler.folder}: no such folder. Make one that the engine sees, too."
        )
    network = CausalNetwork(model.model_copy(update={"lora": None}))
    try:
        answers = RemoteAnswers(sampler, model, sampling, group_size=1, ends=())
        answers.hand_over(network, weights_digest(network.state_dict()))
    except EngineError as error:
        raise ConfigError(str(error)) from error


def _patiently(
    work: Callable[[], dict[int, list[Rollout]]], is_stopping: Callable[[], bool], give_sign: Callable[[], None]
) -> dict[int, list[Rollout]]:
    """What the work comes to, done beside signs of life; whoever is asked to stop leaves it alone."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="engine")
    future, signed_s = pool.submit(work), time.monotonic()
    try:
        while not wait([future], timeout=POLL_S).done:
            if is_stopping():
                raise GenerationAbandonedError
            if time.monotonic() > signed_s + SIGN_OF_LIFE_S:
                give_sign()
                signed_s = time.monotonic()
        return future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _as_handed_over(network: CausalNetwork) -> CausalNetwork:
    """With adapters added into the matrices of a copy."""
    if base_sha256(network) is None:
        return network
    merged = copy.deepcopy(network)
    merge_adapters(merged)
    return merged


def _write(network: CausalNetwork, config: PretrainedCausalConfig, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt: nobody knows whether it is whole
    unfinished = folder.parent / f"{_UNFINISHED}{folder.name}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    save_model(network.network, config, unfinished, Leaving())
    tokenizer = tokenizer_file(checkpoint_path(config.path))
    for name in (TOKENIZER_FILE, SETTINGS_FILE):
        if (file := tokenizer.parent / name).is_file():
            shutil.copyfile(file, unfinished / name)
    for file in unfinished.iterdir():
        file.chmod(0o644)  # the engine may be somebody else's
    unfinished.rename(folder)


def _made(group: AskedGroup, rollouts: Sequence[Rollout], policy: str, step: int, attempt: int) -> MadeGroup:
    answers = tuple(
        MadeAnswer(
            tokens=tuple(rollout.tokens.tolist()),
            logprobs=tuple(rollout.logprobs.tolist()),
            reason=rollout.reason,
        )
        for rollout in rollouts
    )
    return MadeGroup(step=step, row_id=group.row_id, attempt=attempt, policy=policy, answers=answers)


def _committed(book: GradeBook, step: int, row_ids: Sequence[int]) -> dict[int, list[Rollout]]:
    """What is in a commit's journal: of the last, where several held the step."""
    return {
        group.row_id: [
            Rollout(
                np.array(each.tokens, np.int64),
                np.array(each.logprobs, np.float32),
                "length" if each.is_cut else "stop",
            )
            for each in group.answers
            if each.tokens is not None
        ]
        for group in book.journaled(step, row_ids)
    }


def _rollouts(group: MadeGroup) -> list[Rollout]:
    return [
        Rollout(np.array(each.tokens, np.int64), np.array(each.logprobs, np.float32), each.reason)
        for each in group.answers
    ]
