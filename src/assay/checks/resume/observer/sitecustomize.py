"""What a script under test trains on, as seen from inside its Python processes; the script itself stays as it is.

    $ASSAY_OBSERVE --> hooks, set when the script imports torch --> one file of CRC-framed lines for each process

A row is the digest of what the model gets for it, so no dataset has to number its rows. A line is one `write`, so the
lines of a killed process stay. At the requested stop the process waits for the signal of the parent; so a kill hits
the same instruction every time. Knows only the standard library and whatever torch the script has.
"""

import atexit
import functools
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "ASSAY_OBSERVE"
REACHED, CONTINUE = "reached", "continue"
"""Files: the process waits at its stop, and its facts; the parent has sent its signal."""
SAMPLE = 64
"""Weights of a step that are recorded, to measure how far two runs differ."""
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


class Observer:
    """The hooks of one process, and its file of observations."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._folder, self._out = Path(settings["folder"]), Path(settings["out"]).resolve()
        self._stop: dict[str, Any] = settings["stop"] or {}
        self._checker: int = settings["checker"]
        self._torch: Any = None
        self._pid = self._descriptor = -1
        self._calls = threading.local()
        self._in_backward = False
        self._optimizer: int | None = None
        self._steps = self._saves = 0
        self._rows: list[str] = []
        self._own_rows: list[str] = []
        self._losses: list[float] = []
        self._rates: list[float] = []
        self._generator = ""
        self._files: list[tuple[int, int]] = []
        self._rows_at_save: list[str] = []
        self._step_at_save = 0

    def observe(self, rows: Sequence[Any], loss: float | None = None) -> None:
        """Record what a script itself says of the batch before the next optimizer step."""
        self._own_rows += map(str, rows)
        if loss is not None:
            self._losses = [float(loss)]

    def watch_torch(self, torch: Any) -> None:
        """Set the hooks: on outermost calls of models, on backward, on optimizers and on saving."""
        self._torch = torch
        call, backward = torch.nn.Module.__call__, torch.autograd.backward
        torch.nn.Module.__call__ = functools.wraps(call)(lambda *args, **kwargs: self._call(call, *args, **kwargs))
        torch.autograd.backward = functools.wraps(backward)(
            lambda *args, **kwargs: self._backward(backward, *args, **kwargs)
        )
        optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim hides it
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        torch.save = torch.serialization.save = self._saver(torch.save)
        atexit.register(self._end_save)
        self._write("watching")

    def watch_safetensors(self, module: Any) -> None:
        """Observe the files that safetensors writes."""
        module.save_file = self._saver(module.save_file)

    def _call(self, call: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        if self._torch.compiler.is_compiling() or getattr(self._calls, "is_inside", False):
            return call(module, *args, **kwargs)
        self._calls.is_inside = True
        try:
            # Recomputed activations, losses and evaluations train on no further rows.
            if module.training and self._torch.is_grad_enabled() and not self._in_backward:
                tensors = dict(_tensors({**dict(enumerate(args)), **kwargs}, self._torch.Tensor))
                is_input = tensors and not any(tensor.requires_grad for tensor in tensors.values())
                if is_input and next(module.parameters(), None) is not None:
                    self._begin_forward()
                    self._rows += _row_ids(self._torch, tensors)
            return call(module, *args, **kwargs)
        finally:
            self._calls.is_inside = False

    def _begin_forward(self) -> None:
        self._end_save()
        if not self._rows:
            states = [self._torch.get_rng_state()]
            if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
                states.append(self._torch.cuda.get_rng_state())
            self._generator = _hex(b"".join(state.numpy().tobytes() for state in states))
            if self._stop.get("at") == "forward" and self._steps + 1 == self._stop["number"]:
                self._wait_for_signal()

    def _backward(self, backward: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if self._in_backward:
            return backward(tensors, *args, **kwargs)
        roots = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors)
        self._losses.append(sum(float(root.detach().sum()) for root in roots))
        self._in_backward = True
        try:
            return backward(tensors, *args, **kwargs)
        finally:
            self._in_backward = False

    def _before_step(self, optimizer: Any, _: Any, __: Any) -> None:
        self._end_save()
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            self._write("begin", **self._state(optimizer))
        if self._optimizer == id(optimizer):
            self._rates = [float(group["lr"]) for group in optimizer.param_groups]

    def _after_step(self, optimizer: Any, _: Any, __: Any) -> None:
        if self._optimizer != id(optimizer):
            return
        self._steps += 1
        self._write(
            "step",
            number=self._steps,
            rows=self._own_rows or self._rows,
            loss=sum(self._losses),
            rates=self._rates,
            generator=self._generator,
            **self._state(optimizer),
        )
        self._rows, self._own_rows, self._losses = [], [], []
        if self._stop.get("at") == "step" and self._steps == self._stop["number"]:
            self._wait_for_signal()

    def _state(self, optimizer: Any) -> dict[str, Any]:
        """Return digests of the weights and of the optimizer's state, and some of the weights."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        moments = [optimizer.state.get(weight, {}) for weight in weights]
        tensors = [
            moment[name]
            for moment in moments
            for name in sorted(moment)
            if isinstance(moment[name], self._torch.Tensor)
        ]
        return {
            "weights": self._digest(weights),
            "optimizer": self._digest(tensors),
            "sample": self._sample(weights),
        }

    def _digest(self, tensors: Sequence[Any]) -> str:
        sums = []
        for tensor in map(_local, tensors):
            integers = tensor.reshape(-1).view(getattr(self._torch, _INTEGERS.get(tensor.element_size(), "int8")))
            sums.append(integers.sum(dtype=self._torch.int64).cpu())
        return _hex(str([int(value) for value in sums]).encode())

    def _sample(self, weights: Sequence[Any]) -> list[float]:
        chosen = weights[:: max(1, len(weights) // SAMPLE)][:SAMPLE]
        values: list[float] = []
        for weight in map(_local, chosen):
            flat, most = weight.reshape(-1), max(1, SAMPLE // len(chosen))
            values += flat[:: max(1, flat.numel() // most)][:most].double().tolist()
        return values

    def _saver(self, save: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(save)

        @functools.wraps(save)
        def observed(*args: Any, **kwargs: Any) -> Any:
            _, target = list(signature.bind(*args, **kwargs).arguments.values())[:2]
            self._begin_file(target)
            result = save(*args, **kwargs)
            self._end_file(target)
            return result

        return observed

    def _begin_file(self, target: Any) -> None:
        if not self._files:
            self._rows_at_save, self._step_at_save = list(self._rows), self._steps
        if isinstance(target, str | os.PathLike):
            path = Path(target).resolve()
            allowed = (self._out, Path(tempfile.gettempdir()).resolve())
            if not any(path.is_relative_to(folder) for folder in allowed):
                self._write("outside", path=str(path))
                raise PermissionError(f"{path}: 'assay check resume' lets a script save only to {self._out}")

    def _end_file(self, target: Any) -> None:
        if isinstance(target, str | os.PathLike):
            status = Path(target).stat()
        else:
            try:
                target.flush()
                status = os.fstat(target.fileno())
            except (AttributeError, OSError):  # a buffer, which the script writes to a file later
                status = None
        self._files.append((status.st_ino, status.st_size) if status else (0, target.tell()))
        is_stop = self._stop.get("at") == "save" and self._saves + 1 == self._stop["number"]
        if is_stop and len(self._files) == self._stop["file"]:
            if status:  # half of its bytes reached the disk
                os.truncate(target if isinstance(target, str | os.PathLike) else target.fileno(), status.st_size // 2)
            self._wait_for_signal(is_on_disk=bool(status))

    def _end_save(self) -> None:
        """Record where the files of a finished save lie now: many scripts rename them."""
        if not self._files:
            return
        inodes, sizes = {inode for inode, _ in self._files if inode}, {size for inode, size in self._files if not inode}
        lying = []
        for path in sorted(path for path in self._out.rglob("*") if path.is_file()):
            status = path.stat()
            if status.st_ino in inodes or status.st_size in sizes:
                lying.append((str(path.relative_to(self._out)), status.st_size, status.st_mtime_ns))
        self._saves += 1
        self._write(
            "saved", step=self._step_at_save, files=lying, num_files=len(self._files), rows_in_flight=self._rows_at_save
        )
        self._files = []

    def _wait_for_signal(self, **facts: Any) -> None:
        if self._rank() != 0:
            return
        try:
            reached = os.open(self._folder / REACHED, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(reached, json.dumps(facts).encode())  # the checker waits for it, and may kill this process then
        os.close(reached)
        while not (self._folder / CONTINUE).exists():
            if not Path(f"/proc/{self._checker}").exists():
                os._exit(1)  # nobody is left to send the signal
            time.sleep(0.005)

    def _rank(self) -> int:
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return int(os.environ.get("RANK", "0"))

    def _write(self, kind: str, **facts: Any) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._descriptor = os.open(self._folder / f"{time.time_ns()}-{self._pid}.observed", flags)
        line = json.dumps({"kind": kind, "rank": self._rank(), "at_s": time.time(), **facts}).encode()
        os.write(self._descriptor, b"%08x %s\n" % (zlib.crc32(line), line))


def _tensors(value: Any, tensor_class: type, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the batched tensors of a model's arguments, with their names."""
    if isinstance(value, tensor_class):
        if value.dim() and value.shape[0]:  # type: ignore[attr-defined]
            yield name, value
    elif hasattr(value, "items"):
        for key, part in value.items():
            yield from _tensors(part, tensor_class, str(key))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _tensors(part, tensor_class, f"{name}.{index}")


def _row_ids(torch: Any, tensors: dict[str, Any]) -> Iterator[str]:
    """Yield a digest of each row's content, which does not depend on how its batch was padded."""
    tokens = tensors.get("input_ids", tensors.get("decoder_input_ids"))
    if tokens is None:
        size = next(iter(tensors.values())).shape[0]
        parts = [_rows_of(torch, tensor) for tensor in tensors.values() if tensor.shape[0] == size]
        yield from (_hex(b"|".join(row)) for row in zip(*parts, strict=True))
        return
    tokens, mask, positions = tokens.cpu(), tensors.get("attention_mask"), tensors.get("position_ids")
    if mask is not None and mask.shape == tokens.shape:
        yield from (_hex(row[keep].numpy().tobytes()) for row, keep in zip(tokens, mask.cpu().bool(), strict=True))
    elif positions is not None and tokens.shape[0] == 1:  # rows that were joined to one line
        starts = (positions.cpu().reshape(-1) == 0).nonzero().reshape(-1).tolist()
        yield from (_hex(row.numpy().tobytes()) for row in tokens[0].tensor_split(starts) if row.numel())
    else:
        yield from map(_hex, _rows_of(torch, tokens))


def _rows_of(torch: Any, tensor: Any) -> Iterator[bytes]:
    tensor = _local(tensor).cpu()
    is_text = tensor.dim() == 2 and not tensor.is_floating_point()
    for row in tensor.reshape(tensor.shape[0], -1).contiguous():
        end = row.numel()
        if is_text:  # what follows the last change is padding
            changes = (row != row[-1]).nonzero()
            end = int(changes[-1]) + 2 if len(changes) else 1
        yield row[:end].contiguous().view(torch.uint8).numpy().tobytes()


def _local(tensor: Any) -> Any:
    tensor = tensor.detach()
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).contiguous()


def _hex(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


class _HookedImports:
    """Sets the hooks once a module has been imported."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the other finders have, with a loader that sets the hook."""
        if name not in self._hooks:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            hook, execute = self._hooks.pop(name), spec.loader.exec_module

            def execute_and_hook(module: ModuleType) -> None:
                execute(module)
                hook(module)

            spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def _run_replaced() -> None:
    """Run the `sitecustomize` that this one hides."""
    own = Path(__file__).resolve().parent
    others = [folder for folder in sys.path if Path(folder).resolve() != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if VARIABLE in os.environ:
        observer = Observer(json.loads(os.environ[VARIABLE]))
        hooks = {"torch": observer.watch_torch, "safetensors.torch": observer.watch_safetensors}
        sys.meta_path.insert(0, _HookedImports(hooks))
    _run_replaced()
