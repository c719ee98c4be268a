"""What torch's flight recorder keeps of this process: the collectives that it entered, of gloo as of NCCL."""


def flight_dump() -> bytes:
    """As JSON, for `assay triage hang`; may be asked for in any thread while another waits in a collective."""
    # What torch's own watchdog writes; the function has no stub, and no public name.
    from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

    written: str | bytes = _dump_fr_trace_json()
    return written if isinstance(written, bytes) else written.encode()
