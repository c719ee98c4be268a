"""Requests of a session as the server acknowledges them, and workers that execute them in this process."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.base.digest import canonical_json
from assay.distributed.ranks import Ranks
from assay.records.session import SessionCreated, SessionModel, SessionSampler
from assay.serving.base_models import read_base_models
from assay.serving.sessions.request_log import JSON, PROTOBUF, RequestKind, TargetId
from assay.serving.sessions.sessions import SessionRepository
from assay.serving.tinker.messages import FLOAT32, INT64, canonical_bytes, new_message
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workers.sessions.model import ModelExecutor, SessionTools
from assay.workers.sessions.rank_models import ModelRanks, OwnModels
from clocks import ManualClock
from served import write_models

SESSION = "session-" + "0" * 24
MODEL = TargetId(SESSION, "train", 0)


class RequestedSession:
    """A session. By default its models train all of their weights, so that no adapters are needed."""

    def __init__(
        self, folder: Path, *, num_models: int = 1, models: Sequence[Mapping[str, Any]] = (), **changes: Any
    ) -> None:
        """`models`: fields of each. `changes`: of the base model's file."""
        self.clock = ManualClock()
        self.home = Home.at(folder)
        self.store = open_store(str(folder / "api"))
        self.sessions = SessionRepository(self.store, self.clock)
        self.notes: list[str] = []
        base = read_base_models(write_models(folder / "models", method="supervised", **changes))["tiny"]
        self.base = base.config.model_dump(mode="json")
        self.sessions.put(SessionCreated(session_id=SESSION, project="p", at_s=0.0, key_id="", sdk_version="0.38.0"))
        for number, fields in enumerate(models or [{"lora_rank": None}] * num_models):
            model = SessionModel(at_s=0.0, model_index=number, base_model="tiny", base=self.base, **fields)
            self.sessions.add_model(SESSION, model)

    def tools(self, ranks: Ranks | ModelRanks, *, commit_after_s: float = 1e9) -> SessionTools:
        """`ranks`: this process, or processes of a worker."""
        of_worker = OwnModels(self.sessions, ranks) if isinstance(ranks, Ranks) else ranks
        return SessionTools(
            self.store, self.sessions, of_worker, self.clock, commit_after_s, self.notes.append, Counter()
        )

    def executor(self, ranks: Ranks | ModelRanks, *, number: int = 0, **choices: Any) -> ModelExecutor:
        """A worker's part for one model, as it begins after the death of the one before."""
        state = self.sessions.state(SESSION)
        assert state is not None
        return ModelExecutor(self.tools(ranks, **choices), MODEL._replace(number=number), state.models[number])

    def send(self, seq_id: int, kind: RequestKind, *, target: TargetId = MODEL, **fields: Any) -> None:
        """Append a request with a JSON body."""
        body = {"model_id": str(target), "seq_id": seq_id, **fields, "type": kind}
        self.sessions.requests(target).append(seq_id, kind, JSON, canonical_json(body).encode(), now_s=0.0)

    def create(self, number: int = 0) -> None:
        """Append the first request of a model."""
        body = {"session_id": SESSION, "model_seq_id": number, "base_model": "tiny", "type": "create_model"}
        target = MODEL._replace(number=number)
        self.sessions.requests(target).append(0, "create_model", JSON, canonical_json(body).encode(), now_s=0.0)

    def send_pass(self, seq_id: int, *, target: TargetId = MODEL, **fields: Any) -> None:
        """Append a pass over datums of its own. `fields`: see `passes`."""
        body = passes(seq_id, **fields)
        self.sessions.requests(target).append(seq_id, "forward_backward", PROTOBUF, body, now_s=0.0)

    def execute_all(self, ranks: Ranks | ModelRanks, *, number: int = 0, **choices: Any) -> None:
        """Execute the requests of a model."""
        executor = self.executor(ranks, number=number, **choices)
        while executor.execute_next():
            pass

    def step(self, seq_id: int, *, target: TargetId = MODEL, scale: float = 1.0) -> None:
        """Append a pass and an update."""
        self.send_pass(seq_id, target=target, scale=scale)
        self.send(seq_id + 1, "optim_step", target=target, adam_params={"learning_rate": 0.01})

    def sampler(self, number: int, **weights: Any) -> TargetId:
        self.sessions.add_sampler(SESSION, SessionSampler(at_s=0.0, sampler_index=number, base_model="tiny", **weights))
        return TargetId(SESSION, "sample", number)

    def sample(self, target: TargetId, seq_id: int, tokens: list[int], **fields: Any) -> None:
        """Append a prompt."""
        settings = fields.pop("sampling_params", {"max_tokens": 5})
        body = {
            "sampling_session_id": str(target), "seq_id": seq_id, "type": "sample", "sampling_params": settings,
            "prompt": {"chunks": [{"tokens": tokens, "type": "encoded_text"}]}, **fields,
        }  # fmt: skip
        self.sessions.requests(target).append(seq_id, "sample", JSON, canonical_json(body).encode(), now_s=0.0)

    def results(self, target: TargetId = MODEL) -> dict[int, bytes]:
        """The body of each result by the number of its request."""
        log = self.sessions.requests(target)
        found = {seq_id: log.result(seq_id) for seq_id in sorted(log.seq_ids("results"))}
        return {seq_id: result.body for seq_id, result in found.items() if result is not None}

    def states(self, *kinds: str) -> dict[str, bytes]:
        """The stored states of all models."""
        keys = [item.key for item in self.store.list(f"session-data/{SESSION}/train/")]
        return {key.partition("/train/")[2]: self.store.get(key) for key in keys if key.split("/")[-2] in kinds}


def passes(seed: int, *, scale: float = 1.0, loss: str = "cross_entropy", is_forward_only: bool = False) -> bytes:
    """The body of a `forward_backward` of five datums."""
    rng, message = np.random.default_rng(seed), new_message("ForwardBackwardRequest")
    message.loss_fn, message.forward_only = loss, is_forward_only
    for length in rng.integers(2, 9, 5):
        tokens, datum = rng.integers(0, 300, length + 1), message.data.add()
        datum.model_input.add().encoded_text.tokens = tokens[:-1].astype("<i4").tobytes()
        targets, weights = datum.loss_fn_inputs["target_tokens"], datum.loss_fn_inputs["weights"]
        targets.dtype, targets.dense = INT64, tokens[1:].astype("<i8").tobytes()
        weights.dtype, weights.dense = FLOAT32, np.full(length, scale, "<f4").tobytes()
    return canonical_bytes(message)
