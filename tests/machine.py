"""The machine on which attempts of test records ran."""

from typing import Any

from assay.base.code_version import code_version
from assay.records.node_environment import NodeEnvironment
from assay.records.processor import Processor

MACHINE: dict[str, Any] = {
    "folder": "",
    "code_version": code_version(),
    "processor": Processor(model="a processor", instructions="AVX2", torch="2.0"),
    "environment": NodeEnvironment(
        python="3.11", kernel="6.1", driver="", image="", user="me", launcher="machine", job="", partition="",
    ),
}  # fmt: skip
"""The fields of an `Attempt` that say where and by what it was made."""
