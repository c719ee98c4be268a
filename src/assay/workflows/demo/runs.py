"""Trains a run of a demo, optionally killing a worker half-way."""

from assay.base.config import LoadedConfig
from assay.elastic.faults import NO_FAULTS, FaultPlan, SignalFault
from assay.elastic.supervisor import RestartPolicy
from assay.store.home import Home
from assay.workflows.bookkeeping import writer_of
from assay.workflows.campaign.train import ObserverFactory
from assay.workflows.run import create_run
from assay.workflows.train import RunResult, train_run


def train_demo_run(
    home: Home, recipe: LoadedConfig, workers: int, make_observer: ObserverFactory, kill: SignalFault | None = None
) -> RunResult:
    """Train a run of the recipe to the end. Raises its error if it fails."""
    run = create_run(home, recipe)
    policy = RestartPolicy(faults=FaultPlan(faults=(kill,)) if kill else NO_FAULTS)
    with writer_of(home, run) as writer:
        result = train_run(home, run, writer, world_size=workers, policy=policy, observers=[make_observer(run)])
    if result.error is not None:
        raise result.error
    return result


def kill_half_way(steps: int, *, workers: int) -> SignalFault:
    """Return a kill some steps after the middle, when the commit before it has been written."""
    return SignalFault(type="kill", rank=workers - 1, step=min(steps, steps // 2 + 5))
