"""Learned datums, and whether trained tokens are those that were sampled."""

import re
from typing import Any

import numpy as np
import pytest

from assay.base.digest import canonical_json
from assay.records.session import SessionCreated, SessionModel, SessionSampler
from assay.reporting.views.runs.session_audit import SessionAudit
from assay.serving.sessions.request_log import JSON, PROTOBUF, Result, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker import results
from assay.serving.tinker.messages import FLOAT32, INT64, canonical_bytes, new_message
from assay.store.objects import open_store
from assay.workers.sessions.audit import audit_session
from clocks import ManualClock

SESSION, OTHER = "session-" + "0" * 24, "session-" + "1" * 24
MODEL, SAMPLER = TargetId(SESSION, "train", 0), TargetId(SESSION, "sample", 2)
PROMPT, COMPLETIONS = [5, 6, 7], [[8, 9], [3, 1, 4]]
X = f"{SAMPLER}:9:1"
"""Id of the second completion."""


class Loop:
    """A session in which two completions were sampled, and a model that learns from them."""

    def __init__(self) -> None:
        self.sessions = SessionRepository(open_store("memory:"), ManualClock())
        for session_id, project in ((SESSION, "p"), (OTHER, "q")):
            self.sessions.put(
                SessionCreated(session_id=session_id, project=project, at_s=0.0, key_id="", sdk_version="0.38.0")
            )
        model = SessionModel(at_s=0.0, model_index=0, base_model="tiny", base={}, lora_rank=4)
        self.sessions.add_model(SESSION, model)
        self.sessions.add_sampler(
            SESSION, SessionSampler(at_s=0.0, sampler_index=2, base_model="tiny", model_index=0, seq_id=3)
        )
        self.put(0, "create_model", {})
        self.sample(SAMPLER)
        self.sample(TargetId(OTHER, "sample", 2))

    def sample(self, sampler: TargetId) -> None:
        log = self.sessions.requests(sampler)
        body = {
            "sampling_session_id": str(sampler), "seq_id": 9, "num_samples": 2, "sampling_params": {},
            "prompt": {"chunks": [{"tokens": PROMPT}]},
        }  # fmt: skip
        log.append(9, "sample", JSON, canonical_json(body).encode(), now_s=1.0)
        sampled = [results.SampledSequence(tokens, [-1.0] * len(tokens), True) for tokens in COMPLETIONS]
        log.put_result(9, results.samples(sampled))

    def put(self, seq_id: int, kind: Any, body: dict[str, Any], result: Result | None = None) -> None:
        log = self.sessions.requests(MODEL)
        log.append(seq_id, kind, JSON, canonical_json({"seq_id": seq_id, **body}).encode(), now_s=2.0)
        log.put_result(seq_id, result or Result.of_json({"metrics": {}}))

    def learn(
        self, seq_id: int, *rows: list[int], spans: Any = ((), ()), trained: int = 2, num_logprobs: int = 0
    ) -> None:
        """A pass: of each row the last tokens are trained. `spans`: of the input and of the targets."""
        message = new_message("ForwardBackwardRequest")
        message.seq_id, message.loss_fn = seq_id, "importance_sampling"
        for row in rows:
            datum = message.data.add()
            datum.model_input.add().encoded_text.tokens = np.array(row[:-1], "<i4").tobytes()
            targets, advantages = datum.loss_fn_inputs["target_tokens"], datum.loss_fn_inputs["advantages"]
            targets.dtype, targets.dense = INT64, np.array(row[1:], "<i8").tobytes()
            numbers = np.where(np.arange(len(row) - 1) >= len(row) - 1 - trained, 0.5, 0.0)
            advantages.dtype, advantages.dense = FLOAT32, numbers.astype("<f4").tobytes()
            for field, own in zip((datum.model_input_spans, datum.loss_fn_input_spans), spans, strict=True):
                for kind, sequence_id, offset, length in own:
                    span = getattr(field.add(), kind)
                    span.sequence_id, span.offset, span.length = sequence_id, offset, length
        logprobs = [np.zeros(len(row) - 1 + num_logprobs, np.float32) for row in rows]
        log = self.sessions.requests(MODEL)
        log.append(seq_id, "forward_backward", PROTOBUF, canonical_bytes(message), now_s=2.0)
        log.put_result(seq_id, results.forward_backward(logprobs, {"loss:sum": 1.0}))

    def update(self, seq_id: int, result: Result | None = None) -> None:
        self.put(seq_id, "optim_step", {}, result)

    def audit(self) -> SessionAudit:
        return audit_session(self.sessions, SESSION)


@pytest.fixture
def loop() -> Loop:
    return Loop()


ROW = PROMPT + COMPLETIONS[1]
TRUE = (
    [("prompt_tokens", X, 0, 3), ("sampled_tokens", X, 0, 2)],
    [("prompt_tokens", X, 1, 2), ("sampled_tokens", X, 0, 3)],
)


def test_datums_are_counted_by_what_became_of_them(loop: Loop) -> None:
    loop.learn(1, ROW, ROW)
    loop.learn(2, ROW)
    loop.update(3)
    loop.learn(4, ROW)
    loop.update(5, Result.of_error("the gradient's norm is nan", "user"))
    loop.learn(6, ROW, ROW)
    found = loop.audit()
    assert (found.verdict, found.num_trained, found.num_dropped, found.num_waiting) == ("pass", 3, 1, 2)
    assert found.num_trained_tokens == 6


def test_tokens_are_traced_by_true_claims_and_by_equal_rows(loop: Loop) -> None:
    loop.learn(1, ROW, spans=TRUE)
    loop.learn(2, ROW, PROMPT + COMPLETIONS[0])
    loop.learn(3, [*ROW, 1])
    loop.update(4)
    found = loop.audit()
    assert (found.verdict, found.num_trained_tokens, found.num_sampled_tokens) == ("pass", 8, 6)
    first, second = found.token_sources
    assert (first.sampled_by, first.sequences, first.num_tokens, first.is_claimed) == (f"{SAMPLER}:9", (1,), 2, True)
    assert (second.seq_id, second.sequences, second.num_tokens, second.is_claimed) == (2, (0, 1), 4, False)
    assert first.weights == f"{MODEL} before request 3"


@pytest.mark.parametrize(
    "row, spans, problem",
    [
        ([5, 6, 7, 3, 2, 4], TRUE, "token 2 is not token 1 of the sampled tokens of .*:9:1, which is 1"),
        ([5, 5, 7, 3, 1, 4], TRUE, "token 5 is not token 1 of the tokens of the prompt"),
        (ROW, (TRUE[0], [("sampled_tokens", X, 1, 3), *TRUE[1][:1]]), "has 3 sampled tokens, not 1 to 4"),
        (ROW, (TRUE[0], [("sampled_tokens", X, -1, 5)]), "has 3 sampled tokens, not -1 to 4"),
        (ROW, (TRUE[0][:1], TRUE[1]), "data.0..model_input: its spans cover 3 tokens, not 5"),
        (ROW, (TRUE[0], []), "data.0..target_tokens: its spans cover 0 tokens, not 5"),
        (ROW, (TRUE[0], [("sampled_tokens", f"{SAMPLER}:9:2", 0, 5)]), "'.*:9:2' was not sampled"),
        (ROW, (TRUE[0], [("sampled_tokens", f"{SAMPLER}:8:0", 0, 5)]), "'.*:8:0' was not sampled"),
        (ROW, (TRUE[0], [("sampled_tokens", X.replace(SESSION, OTHER), 0, 5)]), "'session-1.*' was not sampled"),
        (ROW, (TRUE[0], [("sampled_tokens", "x", 0, 5)]), "'x' was not sampled"),
    ],
)
def test_a_claim_that_is_not_true_is_named(loop: Loop, row: list[int], spans: Any, problem: str) -> None:
    loop.learn(1, row, spans=spans)
    loop.update(2)
    found = loop.audit()
    assert found.verdict == "fail"
    assert found.problems[0].startswith(f"{MODEL}: request 1: data[0].")

    assert any(re.search(problem, item) for item in found.problems), found.problems


def test_a_result_that_leaves_out_a_datum_is_named(loop: Loop) -> None:
    loop.learn(1, ROW, num_logprobs=-1)
    assert "request 1: its result has not one logprob for each target" in loop.audit().problems[0]
