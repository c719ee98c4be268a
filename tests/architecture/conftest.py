"""Syntax trees of all modules: parsed once, without garbage collection, and dropped behind the folder's last test."""

import gc

import pytest

import import_graph


def pytest_runtest_setup() -> None:
    gc.disable()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path.parent != item.path.parent:
        import_graph.forget()
        gc.enable()
