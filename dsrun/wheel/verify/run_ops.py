"""Loads DeepSpeed's compiled operations and runs each once, where nothing can be compiled in their place.

A program of its own that needs torch and DeepSpeed but not dsrun, so that it can be sent to a node and run by the
interpreter in question: `python - --accelerator cpu cpu_adam async_io < run_ops.py`. Its last line on stdout is a
JSON object. Every operation runs in a process forked after the imports: one compiled for another processor dies of
SIGILL, and the others still run."""

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

_SECONDS = 120
_SIZE = 1025  # no multiple of any vector width: the scalar rest runs as well
_BLOCK = 1 << 20


def main() -> int:
    """Print what became of each operation; exit code 0 whatever that is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", help="folder to import DeepSpeed from")
    parser.add_argument("--accelerator", required=True)
    parser.add_argument("ops", nargs="*")
    given = parser.parse_args()
    answer = os.dup(1)
    os.dup2(2, 1)  # DeepSpeed prints on import
    if given.site:
        sys.path.insert(0, given.site)
    os.environ["DS_ACCELERATOR"] = given.accelerator
    # A compiler that cannot be found cannot help: what loads now was in the wheel.
    os.environ["PATH"] = os.environ["CUDA_HOME"] = os.devnull
    results = {"python": platform.python_version(), **run_all(given.ops, given.site)}
    sys.stdout.flush()
    os.write(answer, (json.dumps(results) + "\n").encode())
    return 0


def run_all(names: list[str], site: str | None) -> dict[str, object]:
    """What became of each operation, or `error` where not even the imports work."""
    try:
        import torch

        # Processes are forked below, and a pool of threads does not survive that.
        torch.set_num_threads(1)
        import deepspeed
        from deepspeed.ops.op_builder.builder import OpBuilder
    except Exception as error:  # an import may fail in any way; the reason is the answer
        return {"error": f"import: {first_line(error)}", "ops": {}}
    folder = Path(deepspeed.__file__).resolve().parent
    if site and Path(site).resolve() not in folder.parents:
        return {"error": f"import: another DeepSpeed came first, from {folder}", "ops": {}}
    OpBuilder.jit_load = refuse_jit_load
    return {
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
        "folder": str(folder),
        "gpus": torch.cuda.device_count(),
        "ops": {name: run_in_child(name) for name in names},
    }


def refuse_jit_load(builder: Any, verbose: bool = True) -> None:
    """In place of OpBuilder.jit_load."""
    raise RuntimeError("DeepSpeed would compile it now: the one in the wheel is not used")


def run_in_child(name: str) -> dict[str, object]:
    """`result` of one operation ("ran", "loaded", "failed") with what was done, from a process of its own."""
    began = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # the parent tidies up, see on_node.py
            signal.signal(signum, signal.SIG_DFL)
        # With its default action, which also ends a process that is in C code, where no handler of Python's would run.
        signal.alarm(_SECONDS)
        os.write(write, json.dumps(load_and_run(name)).encode())
        os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            output = pipe.read()
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    results = json.loads(output) if output else {"result": "failed", "what": describe_exit(status)}
    return {**results, "seconds": round(time.monotonic() - began, 2)}


def describe_exit(status: int) -> str:
    """How a process ended that wrote no result."""
    if not os.WIFSIGNALED(status):
        return f"its process ended with exit code {os.WEXITSTATUS(status)}"
    number = signal.Signals(os.WTERMSIG(status))
    known = {
        signal.SIGILL: "SIGILL: compiled for a newer processor than this one",
        signal.SIGALRM: f"not done within {_SECONDS} s",
    }
    return known.get(number, f"its process died of {number.name}")


def load_and_run(name: str) -> dict[str, object]:
    import torch
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    try:
        if name not in ALL_OPS:
            return {"result": "failed", "what": "this DeepSpeed does not know it under this accelerator"}
        ALL_OPS[name].load()
        run = RUNS.get(name)
        if run is None:
            return {"result": "loaded", "what": "loaded"}
        if name in NEED_GPU and device_here() == "cuda" and not torch.cuda.is_available():
            return {"result": "loaded", "what": "loaded; there is no GPU to run it on"}
        return {"result": "ran", "what": run()}
    except Exception as error:  # whatever an operation does wrong is what the user wants to read
        return {"result": "failed", "what": first_line(error)}


def first_line(error: BaseException) -> str:
    """The first line of what went wrong first: DeepSpeed's optimizers wrap the reason in a general sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def parameters(device: str) -> list[Any]:
    """Two equal parameters with equal gradients."""
    import torch

    values = torch.randn(_SIZE, generator=torch.Generator().manual_seed(7))
    pair = [torch.nn.Parameter(values.clone().to(device)) for _ in range(2)]
    give_gradients(pair, 0)
    return pair


def give_gradients(parameters: list[Any], step: int) -> None:
    """Give all parameters the same gradient, another at each step.

    Each is a new tensor: DeepSpeed's CPU Adagrad writes into the gradient it is given (csrc/adagrad/cpu_adagrad.cpp,
    Step_1), as it may, since training computes another before the next step."""
    import torch

    gradient = torch.randn(_SIZE, generator=torch.Generator().manual_seed(8 + step))
    for parameter in parameters:
        parameter.grad = gradient.clone().to(parameter.device)


def step_optimizer(name: str) -> str:
    """Step the optimizer of operation `name` and its reference from the same point, and compare."""
    import torch

    module, kind, reference, options = OPTIMIZERS[name]
    ours = getattr(importlib.import_module(f"deepspeed.ops.{module}"), kind)
    theirs = PlainLion if reference == "Lion" else getattr(torch.optim, reference)
    one, other = parameters("cpu" if name.startswith("cpu_") else device_here())
    before = one.detach().clone()
    optimizers = ours([one], lr=1e-2, **options), theirs([other], lr=1e-2, **options)
    for step in range(3):
        give_gradients([one, other], step)
        for optimizer in optimizers:
            optimizer.step()
    label = reference if reference == "Lion" else f"torch.optim.{reference}"
    if torch.equal(one, before):
        raise RuntimeError("its step changed nothing")
    worst = float((one - other).abs().max())
    if not worst < 1e-5:
        raise RuntimeError(f"differs from {label} by {worst:.3g} after three steps")
    return f"three steps as {label}'s"


def device_here() -> str:
    """Where the operations of the accelerator in question compute."""
    return "cuda" if os.environ["DS_ACCELERATOR"] == "cuda" else "cpu"


class PlainLion:
    """Lion as its paper writes it (Chen et al. 2023, algorithm 2), to compare with."""

    def __init__(self, given: list[Any], lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        self.parameter, self.lr, self.betas, self.momentum = given[0], lr, betas, 0.0

    def step(self) -> None:
        """Move against the sign of the interpolated momentum."""
        import torch

        first, second = self.betas
        gradient = self.parameter.grad
        with torch.no_grad():
            self.parameter -= self.lr * torch.sign(first * self.momentum + (1 - first) * gradient)
        self.momentum = second * self.momentum + (1 - second) * gradient


def fused_lamb() -> str:
    """FusedLamb; torch has no LAMB, so that its step moves the parameters and stays finite is all that is asked."""
    import torch
    from deepspeed.ops.lamb import FusedLamb

    parameter, before = parameters(device_here())
    FusedLamb([parameter], lr=1e-2).step()
    if torch.equal(parameter, before) or not torch.isfinite(parameter).all():
        raise RuntimeError("its step changed nothing, or gave no numbers")
    return "one step"


def utils() -> str:
    """Tensors as bytes, for the NVMe offload (0.19), or flat and back (before)."""
    import torch
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    module = ALL_OPS["utils"].load()
    if hasattr(module, "cast_to_byte_tensor"):
        values = torch.arange(6.0)
        if not torch.equal(module.cast_to_byte_tensor(values), values.view(torch.uint8)):
            raise RuntimeError("the bytes of a tensor are not its bytes")
        return "six numbers as bytes"
    parts = [torch.arange(6.0).reshape(2, 3), torch.ones(4)]
    back = module.unflatten(module.flatten(parts), parts)
    if not all(torch.equal(one, other) for one, other in zip(parts, back, strict=True)):
        raise RuntimeError("unflatten(flatten(x)) is not x")
    return "flattened and unflattened"


def async_io() -> str:
    """Write a file and read it back, as the NVMe offload does."""
    import torch
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    handle = ALL_OPS["async_io"].load().aio_handle(_BLOCK, 8, False, True, 1)
    wrote = torch.randint(0, 255, (_BLOCK,), dtype=torch.uint8)
    read = torch.zeros_like(wrote)
    # Without a name of its own, as this process may be killed.
    with tempfile.TemporaryFile() as block:
        file = f"/proc/self/fd/{block.fileno()}"
        handle.sync_pwrite(wrote, file, 0)
        handle.sync_pread(read, file, 0)
    if not torch.equal(wrote, read):
        raise RuntimeError("read back something other than it wrote")
    return "1 MiB written and read back"


def pin_memory() -> str:
    """Take locked memory and give it back."""
    import torch
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    handle = ALL_OPS["pin_memory"].load().pin_handle()
    locked = handle.new_cpu_locked_tensor(1024, torch.zeros(1))
    locked.fill_(1)
    if not handle.is_pinned(locked) or not handle.free_cpu_locked_tensor(locked):
        raise RuntimeError("does not know its own memory")
    return "4 KiB locked and freed"


# The module and class in deepspeed.ops, the optimizer to compare with, and options of both.
OPTIMIZERS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "cpu_adam": ("adam", "DeepSpeedCPUAdam", "AdamW", {"weight_decay": 0.01}),
    "cpu_adagrad": ("adagrad", "DeepSpeedCPUAdagrad", "Adagrad", {}),
    "cpu_lion": ("lion", "DeepSpeedCPULion", "Lion", {"betas": (0.9, 0.99)}),
    "fused_adam": ("adam", "FusedAdam", "AdamW", {"weight_decay": 0.01}),
    "fused_lion": ("lion", "FusedLion", "Lion", {"betas": (0.9, 0.99)}),
}
RUNS: dict[str, Callable[[], str]] = {
    **{name: partial(step_optimizer, name) for name in OPTIMIZERS},
    "fused_lamb": fused_lamb,
    "utils": utils,
    "async_io": async_io,
    "pin_memory": pin_memory,
}
NEED_GPU = frozenset({"fused_adam", "fused_lamb", "fused_lion"})

if __name__ == "__main__":
    sys.exit(main())
