"""The server that a worker's ranks are forked from. It starts before the worker itself imports torch."""

from multiprocessing.context import ForkServerContext

from assay.elastic.fork_server import fork_context


def rank_context() -> ForkServerContext:
    """Start the fork server if it does not run, and return its context."""
    return fork_context("assay.workers.sessions.rank_models", "peft")
