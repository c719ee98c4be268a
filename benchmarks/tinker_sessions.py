"""Training over the Tinker API beside the same trainer in this process: `benchmarks/tinker_sessions.py [--tiny]`.

`assay serve` and `assay serve sessions` run in processes of their own, and answer real HTTP from this one. The SDK is
not used: what it takes of the processor is left out.

`acknowledge`: from a request until it is durable and acknowledged, of both kinds. `step_ms`: a `forward_backward` and
an `optim_step`, sent before either is waited for, until both results are here; nothing else runs. `bare_step_ms`: the
passes and the update of the same batches, without server and log. The contenders take turns, some steps at a time.
`server_mb_per_session`, `worker_mb_per_session`: more resident memory for each session with a model that has made a
step, child processes included. (The file is not called tinker.py, because scripts beside it could not import the SDK
then.)
"""

import http.client
import json
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import yaml

from assay.data.dataset.tokens import train_tokenizer
from assay.distributed.ranks import Ranks
from assay.records.session import SessionModel
from assay.serving.base_models import read_base_models
from assay.serving.tinker.messages import FLOAT32, INT64, canonical_bytes, new_message
from assay.store.home import Home
from assay.training.sessions.bases import FrozenBases
from assay.training.sessions.batch import TARGETS, Datum
from assay.training.sessions.trainer import AdamSettings, RequestLoss
from assay.workers.sessions.base import base_of_model
from assay.workers.sessions.rank_models import new_trainer
from harness import Target, describe_machine, in_turn, options_of, print_result, rss_mb, workspace
from serve import started

TARGETS_OF_FIGURES = [
    Target("acknowledge_p50_ms", 20.0, at_most=True),
    Target("step_ratio", 1.3, at_most=True),
    Target("server_mb_per_session", 5.0, at_most=True),
]
VOCABULARY, RANK, LANES = 300, 8, 8
LEARNING_RATE = 1e-3


class Size(NamedTuple):
    """What is trained, and how often."""

    hidden_size: int
    num_layers: int
    num_datums: int
    num_tokens: int
    rounds: int
    steps_per_round: int
    num_sessions: int


FULL = Size(128, 4, num_datums=16, num_tokens=128, rounds=8, steps_per_round=5, num_sessions=30)
TINY = Size(32, 1, num_datums=8, num_tokens=16, rounds=2, steps_per_round=2, num_sessions=2)


class Client:
    """One connection at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=120)

    def post(self, path: str, body: dict[str, Any] | bytes) -> Any:
        """Return the response; None if the result is pending."""
        is_message = isinstance(body, bytes)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/x-protobuf" if is_message else "application/json"}
        try:
            self._connection.request("POST", f"/api/v1/{path}", data, headers)
            response = self._connection.getresponse()
        except ConnectionError:  # the server closes idle connections; a repeat has one effect
            self._connection.close()
            self._connection.request("POST", f"/api/v1/{path}", data, headers)
            response = self._connection.getresponse()
        received = response.read()
        if response.status == 408:
            return None
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {received[:300]!r}")
        return json.loads(received) if response.headers["content-type"] == "application/json" else received

    def result(self, future: dict[str, Any]) -> Any:
        """Wait for the result of a request."""
        while (found := self.post("retrieve_future", {"request_id": future["request_id"]})) is None:
            pass
        if isinstance(found, dict) and "error" in found:
            raise SystemExit(f"{future['request_id']}: {found['error']}")
        return found


class ServedModel:
    """A model of a session of its own."""

    def __init__(self, client: Client) -> None:
        self.acknowledge_ms: list[float] = []
        self._client = client
        self._seq_ids = count(1)
        self.session_id = client.post("create_session", {"sdk_version": "0.38.0"})["session_id"]
        model = {"session_id": self.session_id, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": RANK}}
        created = client.post("create_model", model)
        self._model_id = client.result(created)["model_id"]

    def step(self, datums: list[Datum]) -> None:
        """Pass and update, both sent before a result is waited for."""
        message = _message(datums)
        message.model_id, message.seq_id = self._model_id, next(self._seq_ids)
        passed = self._acknowledged("forward_backward", canonical_bytes(message))
        adam = {"learning_rate": LEARNING_RATE}
        step = {"model_id": self._model_id, "seq_id": next(self._seq_ids), "adam_params": adam}
        updated = self._acknowledged("optim_step", step)
        self._client.result(passed)
        self._client.result(updated)

    def _acknowledged(self, path: str, body: dict[str, Any] | bytes) -> Any:
        began_s = time.perf_counter()
        future = self._client.post(path, body)
        self.acknowledge_ms.append(1e3 * (time.perf_counter() - began_s))
        return future


class BareModel:
    """The same model with the same adapter, without server and log."""

    def __init__(self, ranks: Ranks, models: Path) -> None:
        config = read_base_models(models)["tiny"].config.model_dump(mode="json")
        model = SessionModel(at_s=0.0, model_index=0, base_model="tiny", base=config, lora_rank=RANK)
        self._seq_ids = count(1)
        self._trainer = new_trainer(base_of_model(model), ranks, FrozenBases(ranks.device))

    def step(self, datums: list[Datum]) -> None:
        """Pass and update."""
        self._trainer.forward_backward(datums, RequestLoss("cross_entropy"), seq_id=next(self._seq_ids))
        self._trainer.update(AdamSettings(LEARNING_RATE, 0.9, 0.95, 1e-12, 0.0, None))


def write_models(folder: Path, size: Size) -> Path:
    """Write the file of a base model with random weights."""
    folder.mkdir()
    train_tokenizer(["a model answers"], vocab_size=VOCABULARY).save(str(folder / "tokenizer.json"))
    network = {
        "type": "new", "vocab_size": VOCABULARY, "hidden_size": size.hidden_size, "num_layers": size.num_layers,
        "num_heads": 4, "intermediate_size": 3 * size.hidden_size, "max_tokens": size.num_tokens + 8,
    }  # fmt: skip
    recipe = {
        "loader": {"lanes": LANES, "global_batch_size": LANES, "threads": 1},
        "method": {"type": "sft", "train_on": "spans", "model": network},
    }
    trainable = {"recipe": recipe, "max_tokens": size.num_tokens}
    (folder / "tiny.yaml").write_text(
        yaml.safe_dump({"tokenizer": "tokenizer.json", "methods": {"supervised": trainable}})
    )
    return folder


def random_batch(size: Size, seed: int) -> list[Datum]:
    """Return sequences of one length, all of whose tokens are learned."""
    rows = np.random.default_rng(seed).integers(0, VOCABULARY, (size.num_datums, size.num_tokens + 1))
    weights = np.ones(size.num_tokens, np.float32)
    return [Datum(row[:-1], row[1:], {"weights": weights}) for row in rows]


def _message(datums: list[Datum]) -> Any:
    message = new_message("ForwardBackwardRequest")
    message.loss_fn = "cross_entropy"
    for datum in datums:
        sent = message.data.add()
        sent.model_input.add().encoded_text.tokens = datum.tokens.astype("<i4").tobytes()
        targets, weights = sent.loss_fn_inputs[TARGETS], sent.loss_fn_inputs["weights"]
        targets.dtype, targets.dense = INT64, datum.targets.astype("<i8").tobytes()
        weights.dtype, weights.dense = FLOAT32, datum.inputs["weights"].astype("<f4").tobytes()
    return message


def measure_steps(client: Client, bare: BareModel, size: Size) -> dict[str, Any]:
    """Return what a step and an acknowledgement take."""
    served = ServedModel(client)

    def of_round(model: BareModel | ServedModel, number: int) -> list[float]:
        took_ms = []
        for step in range(size.steps_per_round):
            datums = random_batch(size, number * size.steps_per_round + step)
            began_s = time.perf_counter()
            model.step(datums)
            took_ms.append(1e3 * (time.perf_counter() - began_s))
        return took_ms

    contenders = {"bare": lambda number: of_round(bare, number), "served": lambda number: of_round(served, number)}
    rounds = in_turn(contenders, size.rounds, warm_ups=1)
    bare_ms, step_ms = (float(np.median(rounds[name])) for name in contenders)
    return {
        "acknowledge_p50_ms": float(np.quantile(served.acknowledge_ms, 0.5)),
        "acknowledge_p90_ms": float(np.quantile(served.acknowledge_ms, 0.9)),
        "bare_step_ms": bare_ms,
        "step_ms": step_ms,
        "step_ratio": step_ms / bare_ms,
    }


def measure_memory(client: Client, size: Size, pids: dict[str, int]) -> dict[str, float]:
    """Return what an idle session adds to each process, beside some that have warmed it up."""

    def begin(num_sessions: int) -> dict[str, float]:
        for _ in range(num_sessions):
            model = ServedModel(client)
            model.step(random_batch(size, 0))
            client.post("session_heartbeat", {"session_id": model.session_id})
        return {name: _rss_mb(pid) for name, pid in pids.items()}

    before = begin(max(2, size.num_sessions // 5))
    after = begin(size.num_sessions)
    return {f"{name}_mb_per_session": (after[name] - before[name]) / size.num_sessions for name in pids}


def _rss_mb(pid: int | str) -> float:
    """Return the resident memory of a process and its children: ranks hold the models of a worker."""
    return rss_mb(pid) + sum(map(_rss_mb, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--tiny", action="store_true", help="a smaller model and fewer rounds, for a test")
    size = TINY if parser.parse_args().tiny else FULL
    describe_machine()
    with workspace() as folder:
        models = write_models(folder / "models", size)
        ranks = Ranks.join(rank=0, world_size=1, rendezvous=f"file://{folder}/rendezvous", num_threads=1)
        bare = BareModel(ranks, models)
        home, serve = Home.from_environment(), ("serve", "--port", "0", "--models", str(models))
        with started(home, *serve) as server, started(home, "serve", "sessions") as worker:
            assert server.stderr is not None
            client = Client(server.stderr.readline().split()[-1])
            found = measure_steps(client, bare, size)
            found |= measure_memory(client, size, {"server": server.pid, "worker": worker.pid})
        ranks.leave()
    print_result({**size._asdict(), **found}, TARGETS_OF_FIGURES)


if __name__ == "__main__":
    main()
