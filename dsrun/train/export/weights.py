"""Which tensors of a checkpoint make the exported model, and how each is read without reading the others."""

import contextlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import UsageError
from dsrun.train.checkpoint.plain import ADAPTER, in_adapter
from dsrun.train.checkpoint.weight_files import ExportWeight, stored_weights
from dsrun.train.checkpoint.zero_shards import WINDOW, ZeroCheckpoint, load, state_folder

ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class FoundWeights:
    """The weights of a checkpoint. `reference` reads the same ones in a way of its own; `dtypes` are those the two are
    kept in, by whose rounding they may differ; `by_module`: they have the names of the model's modules."""

    weights: list[ExportWeight]
    reference: Mapping[str, torch.Tensor]
    dtypes: frozenset[torch.dtype]
    notices: tuple[str, ...] = ()
    by_module: bool = False


def find_weights(checkpoint: Path, dtype: torch.dtype | None) -> FoundWeights:
    """What to export from `checkpoint`: its Hugging Face weights where they are whole, else what the ranks' shards
    hold. For fp32 the shards come first, as ZeRO trains fp32 copies of weights that it saves in bf16 or fp16."""
    lora = (checkpoint / ADAPTER_CONFIG).is_file()
    zero = _zero(checkpoint)
    stored = stored_weights(checkpoint, ADAPTER if lora else "model*.safetensors")
    empty = [weight.name for weight in stored if _is_placeholder(weight, zero)]
    dtypes = _floating(stored)
    if zero is None:
        if empty or not stored:
            lacks = "it has neither safetensors nor ZeRO shards"
            what = f"{empty[0]} is empty (zero3_empty_weights)" if empty else lacks
            raise UsageError(f"{checkpoint}: no weights to export: {what}")
        reads = {weight.name: weight.read for weight in stored}
        notices: tuple[str, ...] = ()
        if dtype == torch.float32 and not dtypes <= {torch.float32}:
            saved = ", ".join(sorted(str(each).removeprefix("torch.") for each in dtypes))
            notices = (
                f"its weights were saved in {saved}: fp32 makes them no more exact, as a ZeRO checkpoint's would be",
            )
        return FoundWeights(stored, LazyWeights(reads, lambda name: reads[name]()), dtypes, notices)
    module = _Module(zero)
    if stored and not empty:
        by_name = {(in_adapter(name) if lora else name): name for name in zero.parameters}
        if dtype == torch.float32:
            stored = [
                replace(w, dtype=dtype, read=partial(zero.read, by_name[w.name]))
                if w.name in by_name and w.dtype != dtype
                else w
                for w in stored
            ]
        return FoundWeights(stored, renamed(module.reference(), by_name), dtypes)
    weights = [replace(weight, name=in_adapter(weight.name) if lora else weight.name) for weight in module.weights()]
    notice = "its model files hold no whole weights, so they are put together from the ranks' shards"
    names = {(in_adapter(name) if lora else name): name for name in module.names}
    dtypes = _floating(weights)
    return FoundWeights(weights, renamed(module.reference(), names), dtypes, (notice,), by_module=not lora)


def _floating(weights: list[ExportWeight]) -> frozenset[torch.dtype]:
    return frozenset(weight.dtype for weight in weights if weight.dtype.is_floating_point)


def _zero(checkpoint: Path) -> ZeroCheckpoint | None:
    folder = state_folder(checkpoint)
    if folder is None or not list(folder.glob("*_optim_states.pt")):
        return None
    zero = ZeroCheckpoint(checkpoint)
    return None if zero.model_states.get("param_shapes") is None else zero


def _is_placeholder(weight: ExportWeight, zero: ZeroCheckpoint | None) -> bool:
    """ZeRO-3 leaves tensors without elements, or flat ones, where a weight was not gathered."""
    whole = zero.parameters.get(weight.name) if zero else None
    return 0 in weight.shape or (whole is not None and whole.shape != weight.shape)


class _Module:
    def __init__(self, zero: ZeroCheckpoint) -> None:
        self.zero = zero
        if zero.stage == 3:
            # Unpickled under guard here, before DeepSpeed's own reader unpickles them without.
            self.states = [load(file) for file in zero.model_files]
            for rank in range(zero.world_size):
                zero.optimizer(rank)
        else:
            self.states = [zero.model_states]
        saved = self.states[0]
        self.buffers = [name for name in saved.get("buffer_names") or () if name in saved["module"]]
        frozen = saved.get("frozen_param_shapes") or {}
        self.frozen = {n: tuple(shape) for n, shape in frozen.items() if n not in zero.aliases}
        if zero.stage < 3:
            rest = set(saved["module"]) - set(zero.parameters) - set(zero.aliases) - set(self.buffers)
            self.frozen = {n: tuple(saved["module"][n].shape) for n in saved["module"] if n in rest}

    @property
    def names(self) -> list[str]:
        return [*self.zero.parameters, *self.frozen, *self.buffers]

    def weights(self) -> list[ExportWeight]:
        """Every weight once, tied ones under their first name, in the dtype they were trained in."""
        module = self.states[0]["module"]
        found = [
            ExportWeight(name, module[name].dtype, parameter.shape, partial(self.zero.read, name))
            for name, parameter in self.zero.parameters.items()
        ]
        found += [ExportWeight(n, module[n].dtype, shape, self._frozen(n)) for n, shape in self.frozen.items()]
        buffers = {name: module[name] for name in self.buffers}
        return found + [ExportWeight(n, each.dtype, tuple(each.shape), each.detach) for n, each in buffers.items()]

    def reference(self) -> Mapping[str, torch.Tensor]:
        """The weights as DeepSpeed reads them itself: its module under ZeRO-1 and 2, its own script under ZeRO-3."""
        folder, checkpoint = self.zero.folder, self.zero.folder.parent
        aliases = self.zero.aliases
        if self.zero.stage < 3:
            file = folder / "mp_rank_00_model_states.pt"
            return reopened(lambda: load(file)["module"], aliases)
        return reopened(lambda: _their_weights(checkpoint, folder.name), aliases)

    def _frozen(self, name: str) -> Callable[[], torch.Tensor]:
        if self.zero.stage < 3:
            return lambda: self.states[0]["module"][name]
        shape = self.frozen[name]

        def read() -> torch.Tensor:
            parts = [state["frozen_param_fragments"][name].reshape(-1) for state in self.states]
            return torch.cat(parts)[: math.prod(shape)].reshape(shape)

        return read


def _their_weights(checkpoint: Path, tag: str) -> dict[str, Any]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    # It prints, and shows progress bars.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), tag=tag, lazy_mode=True)


class LazyWeights(Mapping[str, torch.Tensor]):
    """Weights by name, each read when it is asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], torch.Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def renamed(weights: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> LazyWeights:
    return LazyWeights((*weights, *names), lambda name: weights[names.get(name, name)])


def rounded(weights: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype]) -> LazyWeights:
    kinds = set(dtypes.values())

    def read(name: str) -> torch.Tensor:
        value = weights[name]
        # One that is written in parts, under their names, is rounded as all are.
        other = next(iter(kinds)) if len(kinds) == 1 and value.is_floating_point() else value.dtype
        return value.to(dtypes.get(name, other))

    return LazyWeights(weights, read)


def reopened(open_: Callable[[], Mapping[str, Any]], aliases: Mapping[str, str]) -> LazyWeights:
    """Weights mapped from files that are opened again after a window of bytes, so that memory stays bounded."""
    opened: Mapping[str, Any] | None = open_()
    touched = 0

    def read(name: str) -> torch.Tensor:
        nonlocal opened, touched
        opened = open_() if opened is None else opened
        found = opened[name if name in opened else aliases[name]]
        value: torch.Tensor = found.clone() if torch.is_tensor(found) else found.contiguous()
        touched += value.nbytes
        if touched > WINDOW:
            opened, touched = None, 0
        return value

    return LazyWeights((*(opened or ()), *aliases), read)
