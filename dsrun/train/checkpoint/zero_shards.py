"""Reads a DeepSpeed ZeRO checkpoint parameter by parameter, whatever its stage and the number of ranks that saved it.

Where ranks keep what, as DeepSpeed 0.19 writes it (runtime/zero/stage_1_and_2.py and stage3.py, state_dict): ZeRO-1 and
2 lay all parameters of a group end to end, in the order of `param_shapes`, and cut that vector into one partition per
rank. (`param_slice_mappings`, from which ds_to_universal reads, is wrong under round_robin_gradients: it follows the
order before the shuffle.) ZeRO-3 cuts every single parameter into as many equal pieces as there are ranks, the last one
padded, and lays a rank's pieces of a (sub-)group end to end.

Files are mapped, not read, and mapped anew after a window of bytes: memory stays bounded by the window and the largest
parameter, not by the model."""

import math
import pickle
import re
from dataclasses import dataclass
from enum import EnumType
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dsrun.errors import UsageError
from dsrun.train.base.refusals import refusal

FP32 = "fp32"
WINDOW = 32 * 2**20

_OPTIMIZER_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


@dataclass(frozen=True)
class ShardedParameter:
    """A trainable parameter: its shape, and the pieces of it as (rank, start, elements) in its group's partitions."""

    group: int
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, int, int], ...]


def state_folder(checkpoint: Path) -> Path | None:
    """The folder of DeepSpeed's files in a Trainer checkpoint; None where there is none (plain DDP)."""
    latest = checkpoint / "latest"
    if latest.is_file():
        named = checkpoint / latest.read_text().strip()
        if named.is_dir():
            return named
    found = sorted(checkpoint.glob("global_step*"), key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
    return found[-1] if found else None


def load(path: Path) -> Any:
    """A checkpoint file with its tensors mapped from disk. Only tensors and DeepSpeed's own small records are
    unpickled, so that the file can run no code. Raises UsageError for a damaged file and for anything else in it."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    records = [fragment_address, LossScaler, DynamicLossScaler, ZeroStageEnum, (_enum_member, "builtins.getattr")]
    try:
        with torch.serialization.safe_globals(records):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        # Torch's own message advises to load the file without the guard.
        reason = str(error.__context__ or error).partition(". Please use")[0]
        raise UsageError(f"{path}: it cannot be read as tensors and DeepSpeed's own records: {reason}") from error
    except Exception as error:
        # Damaged bytes surface as any error in torch's reader: TypeError, IndexError, struct.error.
        raise UsageError(f"{path}: it cannot be read: {type(error).__name__}: {error}".splitlines()[0]) from error


def _enum_member(enum: Any, name: str) -> Any:
    """In place of `getattr`: Python 3.11.2 pickles a member of an Enum as `getattr(ZeroStageEnum, "weights")`, later
    versions as `ZeroStageEnum(3)`. Raises UnpicklingError for any other use."""
    if not (isinstance(enum, EnumType) and name in enum.__members__):
        raise pickle.UnpicklingError(f"getattr of {enum!r} and {name!r}")
    return enum[name]


def _pieces(start: int, elements: int, size: float) -> tuple[tuple[int, int, int], ...]:
    """`elements` from `start` on of a vector that is cut into partitions of `size`, as (rank, start, elements)."""
    pieces = []
    while elements:
        rank = int(start // size)
        offset = int(start - rank * size) if rank else start
        count = int(min(elements, size - offset))
        pieces.append((rank, offset, count))
        start, elements = start + count, elements - count
    return tuple(pieces)


class ZeroCheckpoint:
    """The trainable parameters of a ZeRO checkpoint in fp32, with their optimizer states."""

    def __init__(self, checkpoint: Path, *, window: int = WINDOW) -> None:
        folder = state_folder(checkpoint)
        if folder is None:
            raise UsageError(f"{checkpoint}: no DeepSpeed checkpoint there (it has no global_step folder)")
        self.folder = folder
        self.window = window
        self.optimizer_files = self._ranks(_OPTIMIZER_FILE, "_optim_states.pt")
        if not self.optimizer_files:
            raise UsageError(f"{folder}: no file of optimizer states there")
        self.world_size = len(self.optimizer_files)
        self._open: dict[int, dict[str, Any]] = {}
        self._touched = 0
        first = self.optimizer(0)
        self.stage = int(first.get("zero_stage", 1))
        count = first.get("partition_count", self.world_size)
        saved = max(count) if isinstance(count, list) else int(count)
        if saved != self.world_size:
            raise refusal("checkpoint.files", folder=self.folder, found=self.world_size, saved=saved)

    def optimizer(self, rank: int) -> dict[str, Any]:
        if rank not in self._open:
            self._open[rank] = load(self.optimizer_files[rank])["optimizer_state_dict"]
        return self._open[rank]

    @cached_property
    def model_states(self) -> dict[str, Any]:
        return load(self.model_files[0])

    @cached_property
    def model_files(self) -> list[Path]:
        files = self._ranks(_MODEL_FILE, "_model_states.pt")
        if not files or (self.stage == 3 and len(files) != self.world_size):
            raise UsageError(f"{self.folder}: {len(files)} of {self.world_size} files of model states are there")
        return files

    @cached_property
    def groups(self) -> list[dict[str, tuple[int, ...]]]:
        shapes = self.model_states["param_shapes"]
        return [{name: tuple(shape) for name, shape in group.items()} for group in shapes]

    @cached_property
    def parameters(self) -> dict[str, ShardedParameter]:
        """All trainable parameters by name; tied ones once, under the first of their names."""
        found = self._cut_parameters() if self.stage == 3 else self._laid_out_parameters()
        for name, parameter in found.items():
            held = sum(elements for _, _, elements in parameter.pieces)
            if held != math.prod(parameter.shape):
                whole = math.prod(parameter.shape)
                raise UsageError(f"{self.folder}: {name} is incomplete: {held} of {whole} elements")
        return found

    @property
    def counters(self) -> dict[str, Any]:
        return self.model_states

    @property
    def loss_scaler(self) -> dict[str, Any]:
        return {name: self.optimizer(0).get(name) for name in ("loss_scaler", "dynamic_loss_scale")}

    @property
    def aliases(self) -> dict[str, str]:
        """Further names of tied parameters, each with the name under which it is kept."""
        return dict(self.model_states.get("shared_params") or {})

    @cached_property
    def states(self) -> tuple[str, ...]:
        """Names of the optimizer's states that have one value per element: exp_avg and exp_avg_sq for Adam."""
        sizes = [len(self._flat(0, group, FP32)) for group in range(len(self.groups))]
        names = []
        for name, value in self._group_state(0, 0).items():
            if torch.is_tensor(value) and value.numel() > 1:
                if value.dim() != 1 or value.numel() < sizes[0]:
                    raise refusal("checkpoint.not_per_element", folder=self.folder, name=name)
                names.append(name)
        return tuple(names)

    @property
    def step(self) -> int:
        """Updates that the optimizer has made; it corrects Adam's bias by them."""
        state = self._group_state(0, 0)
        return int(state.get("step", self.param_groups[0].get("step", 0)))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return list(self._base(0)["param_groups"])

    def read(self, name: str, state: str = FP32) -> torch.Tensor:
        """One parameter (`state` fp32) or one of its optimizer states, whole, as a copy in memory."""
        parameter = self.parameters[name]
        parts = [
            self._flat(rank, parameter.group, state)[start : start + elements]
            for rank, start, elements in parameter.pieces
        ]
        whole = torch.cat(parts).reshape(parameter.shape) if parts else torch.empty(parameter.shape)
        self._touched += whole.nbytes
        if self._touched > self.window:
            # Give back the mapped files' pages.
            self._open.clear()
            self._touched = 0
        return whole

    def _flat(self, rank: int, group: int, state: str) -> torch.Tensor:
        if state == FP32:
            key = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
            return self.optimizer(rank)[key][group]
        return self._group_state(rank, group)[state]

    def _base(self, rank: int) -> dict[str, Any]:
        """The state dict of the optimizer that ZeRO wraps."""
        base = self.optimizer(rank).get("optimizer_state_dict" if self.stage == 3 else "base_optimizer_state")
        if not isinstance(base, dict):
            raise UsageError(f"{self.folder}: saved with elastic_checkpoint, whose layout is not read")
        return base

    def _group_state(self, rank: int, group: int) -> dict[str, Any]:
        states = self._base(rank)["state"]
        if group not in states:
            raise UsageError(f"{self.folder}: the optimizer has no states: none saved yet, or on NVMe")
        return states[group]

    def _laid_out_parameters(self) -> dict[str, ShardedParameter]:
        found = {}
        paddings = self.optimizer(0).get("param_alignment_paddings")
        for index, group in enumerate(self.groups):
            # Without its own padding, which only the last rank has; a single rank's partition is the whole vector.
            size = self._flat(0, index, FP32).numel() if self.world_size > 1 else math.inf
            gaps = paddings[index] if paddings else [0] * len(group)
            start = 0
            for (name, shape), gap in zip(group.items(), gaps, strict=True):
                elements = math.prod(shape)
                found[name] = ShardedParameter(index, shape, _pieces(start, elements, size))
                start += elements + gap
        return found

    def _cut_parameters(self) -> dict[str, ShardedParameter]:
        found = {}
        for index, group in enumerate(self.groups):
            start = 0
            for name, shape in group.items():
                elements = math.prod(shape)
                share = math.ceil(elements / self.world_size)
                own = [max(0, min(share, elements - rank * share)) for rank in range(self.world_size)]
                pieces = tuple((rank, start, count) for rank, count in enumerate(own) if count)
                found[name] = ShardedParameter(index, shape, pieces)
                start += share
        return found

    def _ranks(self, pattern: re.Pattern[str], suffix: str) -> list[Path]:
        found: dict[int, Path] = {}
        for path in self.folder.glob(f"*{suffix}"):
            match = pattern.fullmatch(path.name)
            if match is None or int(match[2]):
                raise UsageError(f"{path}: saved with tensor, pipeline or expert parallelism, which is not read")
            found[int(match[1] or 0)] = path
        return [found[rank] for rank in sorted(found)]
