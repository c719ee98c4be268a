"""Models with adapters of their own on one base: company changes no bit, and the base is held once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.base.errors import DamagedDataError
from assay.distributed.ranks import Ranks
from assay.models.lora import BASE
from assay.serving.sessions.request_log import TargetId
from assay.store.leased_worker import LeasedWorker
from assay.training.sessions.stored_state import stored
from assay.training.sessions.trainer import SessionTrainer
from assay.workers.sessions.base import base_of_model
from assay.workers.sessions.handler import SessionHandler
from assay.workers.sessions.rank_models import ModelRanks, OwnModels, RankModels
from forked_ranks import on_ranks
from session_requests import MODEL, SESSION, RequestedSession

TENANTS = (
    {"lora_rank": 2, "lora_seed": 1},
    {"lora_rank": 16, "lora_seed": 2, "trains_mlp": False},
    {"lora_rank": 4, "lora_seed": 3, "trains_attention": False},
    {"lora_rank": 1, "lora_seed": 1, "trains_unembedding": False},
)
TARGETS = [MODEL._replace(number=number) for number in range(len(TENANTS))]
NUM_STEPS = 3


def send_steps(session: RequestedSession, target: TargetId) -> None:
    session.create(target.number)
    for step in range(NUM_STEPS):
        # The second tenant's gradient is not finite in its second step, which fails.
        is_wrong = target.number == 1 and step == 1
        session.step(1 + 2 * step, target=target, scale=3e38 if is_wrong else target.number + 1.0)
    session.send(1 + 2 * NUM_STEPS, "save_weights", target=target, path="end")
    session.send(2 + 2 * NUM_STEPS, "save_weights_for_sampler", target=target, sampling_session_seq_id=target.number)
    sampler = session.sampler(target.number, model_index=target.number, seq_id=2 + 2 * NUM_STEPS)
    session.sample(sampler, 1, [5, 6, 7], sampling_params={"max_tokens": 6, "seed": 9})


def executed(session: RequestedSession, ranks: ModelRanks, targets: list[TargetId]) -> dict[str, bytes]:
    """Results and saved states of models and samplers."""
    handler = SessionHandler(session.tools(ranks), session.home)
    worker = LeasedWorker(session.store, [handler], name="a", clock=session.clock, term_s=20.0)
    while worker.poll() and handler.has_executed:
        pass
    worker.leave()
    found = session.states("training", "captured")
    for target in [*targets, *(target._replace(role="sample") for target in targets)]:
        found |= {f"{target}:{seq_id}": body for seq_id, body in session.results(target).items()}
    return found


def test_four_tenants_beside_each_other_have_the_bits_that_each_has_alone(tmp_path: Path) -> None:
    def together(ranks: Ranks) -> dict[str, bytes]:
        session = RequestedSession(tmp_path / "together", models=TENANTS)
        for target in TARGETS:
            send_steps(session, target)
        return executed(session, OwnModels(session.sessions, ranks), TARGETS)

    def alone(ranks: Ranks) -> dict[str, bytes]:
        found = {}
        for target in TARGETS:
            session = RequestedSession(tmp_path / str(target.number), models=TENANTS)
            send_steps(session, target)
            found |= executed(session, OwnModels(session.sessions, ranks), [target])
        return found

    [in_company], [by_itself] = on_ranks(1, together, tmp_path / "a"), on_ranks(1, alone, tmp_path / "b")
    assert in_company == by_itself
    states = [in_company[f"{number}/training/{1 + 2 * NUM_STEPS:019d}"] for number in range(len(TENANTS))]
    assert len(set(states)) == len(TENANTS) and b"so no update was made" in in_company[f"{TARGETS[1]}:4"]
    assert all(b"error" not in in_company[f"{target._replace(role='sample')}:1"] for target in TARGETS)


def storages(models: list[nn.Module]) -> dict[int, int]:
    """Address -> bytes of all weights."""
    weights = [weight.untyped_storage() for model in models for weight in model.parameters()]
    return {weight.data_ptr(): weight.nbytes() for weight in weights}


def test_tenants_hold_their_base_once_and_free_it(tmp_path: Path) -> None:
    def held(ranks: Ranks) -> list[Any]:
        session = RequestedSession(tmp_path, models=TENANTS)
        for target in TARGETS:
            send_steps(session, target)
        of_process = OwnModels(session.sessions, ranks)
        executed(session, of_process, [])
        models = of_process.models
        state = session.sessions.state(SESSION)
        assert state is not None
        for target in TARGETS:
            models.create(target, base_of_model(state.models[target.number]))
        networks = [models.train(target, lambda trainer: trainer.model) for target in TARGETS]
        networks += [sampling._model for sampling in models._samplers._models.values()]
        [base] = {id(base): base for base in models._bases._networks.values()}.values()
        adapters = sum(
            sum(weight.nbytes for weight in network.parameters() if weight.requires_grad) for network in networks
        )
        of_base = sum(storages([base]).values())
        found = [len(networks), sum(storages(networks).values()), adapters, of_base]
        models.free(SESSION)
        models._samplers._models.clear()
        del networks, base
        import gc

        gc.collect()
        return [*found, len(models._bases._networks)]

    [(num_networks, num_bytes, of_adapters, of_base, num_left)] = on_ranks(1, held, tmp_path)
    assert num_networks == len(TENANTS) + 2
    assert num_bytes == of_base + of_adapters
    assert num_left == 0


def test_a_tenant_on_another_base_is_refused_and_the_others_keep_the_digest_of_theirs(tmp_path: Path) -> None:
    def refused(ranks: Ranks) -> bool:
        session = RequestedSession(tmp_path, models=TENANTS)
        state = session.sessions.state(SESSION)
        assert state is not None
        models = RankModels(session.sessions, ranks)
        bases = [base_of_model(state.models[number]) for number in (0, 0)]
        models.create(TARGETS[0], bases[0])
        before = models.train(TARGETS[0], SessionTrainer.digest)
        tensors = dict(models.train(TARGETS[0], lambda trainer: trainer._parts["model"].state()))
        name = next(name for name in tensors if name.endswith(BASE))
        damaged = stored({**tensors, name: torch.zeros_like(tensors[name])})
        with pytest.raises(DamagedDataError, match="the weights below the adapters"):
            models.create(TARGETS[1], bases[1], damaged, with_moments=False)
        return models.train(TARGETS[0], SessionTrainer.digest) == before

    assert on_ranks(1, refused, tmp_path) == [True]
