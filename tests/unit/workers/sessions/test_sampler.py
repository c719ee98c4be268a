"""Samples of a session: which weights, which draws, what ends them, and that company changes no bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.distributed.ranks import Ranks
from assay.serving.sessions.request_log import TargetId
from assay.serving.sessions.sessions import CheckpointPath
from assay.serving.tinker.messages import parse_message
from assay.training.sessions.bases import FrozenBases
from assay.workers.sessions.base import base_of
from assay.workers.sessions.rank_models import new_trainer
from assay.workers.sessions.sampler import SamplerExecutor
from assay.workers.sessions.weights import KEEP
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession

PROMPT = [5, 6, 7]


def trained(session: RequestedSession, ranks: Ranks) -> None:
    """One step, and weights saved after it: by a name, and for sampler 1."""
    session.create()
    session.step(1)
    session.send(3, "save_weights_for_sampler", path="named")
    session.send(4, "save_weights_for_sampler", sampling_session_seq_id=1)
    executor = session.executor(ranks)
    while executor.execute_next():
        pass


def samples_of(session: RequestedSession, target: TargetId) -> dict[int, Any]:
    """(tokens, logprobs, whether it stopped) of each sequence, by request."""
    found = {}
    for seq_id, body in session.results(target).items():
        message = parse_message("SampleResponse", body)
        found[seq_id] = [
            (
                np.frombuffer(item.tokens, "<i4").tolist(),
                np.frombuffer(item.logprobs, "<f4").tolist(),
                item.stop_reason == 0,
            )
            for item in message.sequences
        ]
    return found


def execute(session: RequestedSession, ranks: Ranks) -> None:
    executor = SamplerExecutor(session.sessions, FrozenBases(ranks.device))
    while executor.execute_waiting(SESSION):
        pass


def test_samplers_use_the_weights_that_they_name(tmp_path: Path) -> None:
    def sampled(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path)
        trained(session, ranks)
        path = str(CheckpointPath(MODEL, "sampler", "named"))
        targets = [
            session.sampler(0, base=session.base),
            session.sampler(1, model_index=0, seq_id=4),
            session.sampler(2, path=path),
        ]
        for target in targets:
            session.sample(target, 1, PROMPT, sampling_params={"max_tokens": 6, "seed": 9})
        execute(session, ranks)
        return [samples_of(session, target)[1] for target in targets]

    [(base, captured, named)] = on_ranks(1, sampled, tmp_path)
    assert captured == named != base
    assert len(base[0][0]) == 6


def test_a_sample_depends_on_its_seed_or_its_number_and_on_nothing_beside_it(tmp_path: Path) -> None:
    def sampled(ranks: Ranks) -> list[Any]:
        found = []
        for name, company in (("alone", False), ("among others", True)):
            session = RequestedSession(tmp_path / name)
            target = session.sampler(0, base=session.base)
            for seq_id in (1, 2):
                session.sample(target, seq_id, PROMPT, num_samples=2)
                if not company:
                    execute(session, ranks)
            for seq_id in (3, 4):
                session.sample(target, seq_id, PROMPT, sampling_params={"max_tokens": 5, "seed": 1}, num_samples=2)
            execute(session, ranks)
            found.append(samples_of(session, target))
        return found

    [(alone, among_others)] = on_ranks(1, sampled, tmp_path)
    assert alone == among_others
    assert alone[3] == alone[4]
    assert len({tuple(tokens) for seq_id in (1, 2, 3) for tokens, *_ in alone[seq_id]}) == 6


def test_logprobs_of_a_prompt_and_of_its_samples_are_those_of_the_model(tmp_path: Path) -> None:
    def sampled(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        target = session.sampler(0, base=session.base)
        session.sample(target, 1, PROMPT, prompt_logprobs=True, topk_prompt_logprobs=2)
        execute(session, ranks)
        message = parse_message("SampleResponse", session.results(target)[1])
        network = new_trainer(base_of(session.base, name="tiny"), ranks, FrozenBases(ranks.device)).model.network
        [(tokens, logprobs, _)] = samples_of(session, target)[1]
        with torch.no_grad():
            expected = network(input_ids=torch.tensor([PROMPT + tokens])).logits[0].log_softmax(-1)
        own = [expected[position, token].item() for position, token in enumerate((PROMPT + tokens)[1:])]
        top = np.frombuffer(message.topk_prompt_logprobs.token_ids, "<i4").reshape(3, 2).tolist()
        best = expected[: len(PROMPT) - 1].topk(2).indices.tolist()
        return np.frombuffer(message.prompt_logprobs, "<f4").tolist(), logprobs, own, top, best

    [(of_prompt, of_sample, own, top, best)] = on_ranks(1, sampled, tmp_path)
    assert np.isnan(of_prompt[0])
    np.testing.assert_allclose([*of_prompt[1:], *of_sample], own, atol=1e-5)
    assert top == [[0, 0], *best]


def test_stops_replace_the_end_of_text_and_an_empty_list_stops_nothing(tmp_path: Path) -> None:
    def sampled(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        target = session.sampler(0, base=session.base)
        everything = {"max_tokens": 12, "seed": 4}
        session.sample(target, 1, PROMPT, sampling_params={**everything, "stop": []})
        execute(session, ranks)
        [(tokens, _, _)] = samples_of(session, target)[1]
        session.sample(target, 2, PROMPT, sampling_params={**everything, "stop": [tokens[4]]})
        execute(session, ranks)
        return tokens, samples_of(session, target)

    [(tokens, samples)] = on_ranks(1, sampled, tmp_path)
    assert len(tokens) == 12 and samples[1][0][2] is False
    first = tokens.index(tokens[4])
    assert samples[2] == [(tokens[: first + 1], samples[1][0][1][: first + 1], True)]


def test_the_samplers_without_a_name_that_were_used_last_are_kept(tmp_path: Path) -> None:
    def sampled(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        session.create()
        last = 2 * KEEP["captured"]
        for number in range(1, last + 1):
            session.send(number, "save_weights_for_sampler", sampling_session_seq_id=number)
        first, second, *_ = [session.sampler(number, model_index=0, seq_id=number) for number in range(1, last + 1)]
        executor = session.executor(ranks)
        for number in range(last + 1):
            executor.execute_next()
            if number % 5 == 2:
                session.sample(first, number, PROMPT)
                execute(session, ranks)
        session.sample(second, 1, PROMPT)
        execute(session, ranks)
        return [*session.results(first).values()], session.results(second)[1], [*session.states("captured")]

    [(of_reference, of_unused, names)] = on_ranks(1, sampled, tmp_path)
    assert [len(parse_message("SampleResponse", result).sequences) for result in of_reference] == [1] * 7
    assert "other samplers were captured or sampled from since" in json.loads(of_unused)["error"]
    assert [int(name.rpartition("/")[2]) for name in names] == [
        1,
        *range(2 + KEEP["captured"], 1 + 2 * KEEP["captured"]),
    ]


def test_a_prompt_that_does_not_fit_fails_alone_and_deleted_weights_are_told(tmp_path: Path) -> None:
    def sampled(ranks: Ranks) -> Any:
        session = RequestedSession(tmp_path)
        trained(session, ranks)
        path = CheckpointPath(MODEL, "sampler", "named")
        base, gone = session.sampler(0, base=session.base), session.sampler(2, path=str(path))
        session.sessions.delete_checkpoint(path)
        session.sample(base, 1, [1] * 126)
        session.sample(base, 2, [300])
        session.sample(base, 3, PROMPT)
        session.sample(gone, 1, PROMPT)
        waits = session.sampler(1, model_index=0, seq_id=99)
        session.sample(waits, 1, PROMPT)
        execute(session, ranks)
        return session.results(base), session.results(gone), session.results(waits)

    [(of_base, of_deleted, of_waiting)] = on_ranks(1, sampled, tmp_path)
    errors = [json.loads(of_base[1])["error"], json.loads(of_base[2])["error"], json.loads(of_deleted[1])["error"]]
    assert "126 tokens" in errors[0] and "300 is no token" in errors[1] and "were deleted" in errors[2]
    assert len(parse_message("SampleResponse", of_base[3]).sequences) == 1
    assert of_waiting == {}
