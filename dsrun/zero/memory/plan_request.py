"""What a plan is asked: model, GPUs (`--gpus a100-80:8`), lengths and limits."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf
from typing import Literal, Self

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.hardware.gpu_facts import GpuModel, lookup, memory_sizes, near_names, unknown_gpu
from dsrun.hardware.site import instance
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.refusals import Refusals
from dsrun.zero.generate.presets import GIB, BufferSizes, sizes
from dsrun.zero.memory.model.architecture import ModelShapes
from dsrun.zero.memory.rank import optimizers
from dsrun.zero.memory.rank.activations import AttentionKernel, LigerPart, TokenBatch
from dsrun.zero.memory.rank.loss import TrainerName
from dsrun.zero.memory.rank.states import FP32, StateOffload, StatePrecision

MOST_GPUS = 1024
"""Per node; no machine has more in one."""
MOST_NODES = 100_000
LINKED = frozenset({(7, 0), (8, 0), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities of V100, A100, H100, B200 and B300."""
_FORM = re.compile(r"^(?P<name>.*?)(?::(?P<count>-?\d+))?$")


@dataclass(frozen=True, kw_only=True)
class GpuCluster:
    """GPUs of one kind: `per_node` on each of `nodes`, with `memory` GiB each; `name` as the user wrote it.

    `note` says what was assumed of a name that fits GPUs of different memory."""

    name: str
    model: GpuModel
    per_node: int
    nodes: int
    memory: float
    note: str = ""

    @property
    def world(self) -> int:
        return self.per_node * self.nodes

    def with_nodes(self, nodes: int, per_node: int | None = None) -> Self:
        """The same GPUs, more or fewer of them."""
        return replace(self, nodes=nodes, per_node=per_node or self.per_node)

    @property
    def has_nvlink(self) -> bool:
        """Whether the GPUs of a node are taken to be linked: datacenter boards with HBM that are no PCIe cards."""
        model = self.model
        return (
            model.segment == "datacenter"
            and model.capability in LINKED
            and not any(word in f"{model.name} {self.name}".lower() for word in ("pcie", "nvl"))
        )

    @property
    def has_nvls(self) -> bool:
        """Whether NVSwitches reduce what these GPUs send."""
        return self.has_nvlink and self.per_node > 2 and self.model.capability >= (9, 0)


def cluster(text: str, *, nodes: int = 1, memory: float | None = None) -> GpuCluster:
    """What `--gpus NAME[:COUNT] --nodes N --gpu-memory GIB` describe; one GPU without a count.

    Raises UsageError for counts that make no cluster, and for a GPU whose memory is neither known nor given."""
    if re.search("gpu:|[x×*]", text, re.IGNORECASE):
        from dsrun.hardware.gres import written_gpus  # a100:8 needs no reading

        text = written_gpus(text)
    match = _FORM.match(text.strip())
    name, count = (match["name"].strip(), match["count"]) if match else ("", None)
    rented = instance(name)
    per_node = int(count) if count is not None else rented.count if rented else 1
    given = {"text": text, "name": name, "number": name or 8, "per_node": per_node, "nodes": nodes, "memory": memory}
    _TEXTS.check("cluster", most_gpus=MOST_GPUS, most_nodes=MOST_NODES, **given)
    model = lookup(name)
    if model is None:
        if memory is None:
            near = f"did you mean {' or '.join(near_names(name))}? If not, " if near_names(name) else ""
            raise UsageError(f"--gpus {text}: {unknown_gpu(name)}", fix=f"{near}add --gpu-memory GIB")
        model = GpuModel(name=name, capability=(0, 0), memory_gib=round(memory))
    known, note = (memory, "") if memory is not None else _memory(name, model)
    if known is None:
        raise UsageError(f"--gpus {text}: how much memory {model.name} has is not known", fix="add --gpu-memory GIB")
    return GpuCluster(
        name=name, model=model.with_memory(round(known)), per_node=per_node, nodes=nodes,
        memory=float(known), note=note,
    )  # fmt: skip


def _memory(name: str, model: GpuModel) -> tuple[float | None, str]:
    """The GPU's memory in GiB; of several that a name fits the most common one, and of equals the smallest."""
    if model.unified and model.memory:
        return model.memory * (1 - UNIFIED_HOST), f"{model.name} shares its {model.memory} GiB with the CPU"
    sizes = Counter(memory_sizes(model))
    if not sizes:
        return None, ""
    chosen = min(sizes, key=lambda each: (-sizes[each], each))
    others = " or ".join(str(each) for each in sorted(sizes) if each != chosen)
    if not others:
        return chosen, ""
    return (chosen, f"{name} is taken to be the one with {chosen} GiB; there are some with {others} GiB (--gpu-memory)")


PLACES: dict[int, tuple[StateOffload, ...]] = {
    0: ("none",),
    1: ("none", "cpu"),
    2: ("none", "cpu"),
    3: ("none", "optimizer", "cpu", "nvme"),
}
"""Where DeepSpeed can keep the states of each stage; NVMe needs ZeRO-3, below which only the optimizer is offloaded."""


def is_place(stage: int, place: StateOffload, wanted: str) -> bool:
    """Whether --offload `wanted` means `place` at that stage: below ZeRO-3 cpu moves nothing but the optimizer."""
    return wanted == place or (stage < 3 and (wanted, place) == ("optimizer", "cpu"))


_CHECKED, _TEXTS = toml_beside(__file__), Refusals(__file__, "refusals.toml")
USUAL_LENGTH = 1024

SHARES = {"conservative": 0.50, "balanced": 0.65, "aggressive": 0.90}
"""Share of a GPU's memory that a preset lets a run fill."""
PHYSICAL = 0.96
"""Share that can be filled at all; the rest is reserved by driver and ECC."""

USUAL_HOST = 256.0
"""GiB of host memory per GPU that a node is taken to have when nothing is said; 2 TiB beside eight GPUs is common."""

UNIFIED_HOST = 0.2
"""Share of a unified memory that is left to the CPU: system, page cache and the training process. An assumption."""

PlanSwitch = Literal["on", "off", "auto"]


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Everything a plan depends on. Lengths are tokens per sample, `host_memory` GiB per node."""

    model: ModelShapes
    cluster: GpuCluster
    length: int = USUAL_LENGTH
    source_length: int = USUAL_LENGTH
    global_batch: int | None = None
    lora: int | None = None
    bits: int | None = None
    """Of the linear layers under LoRA: 4 or 8 (--quantization), None for as many as the others."""
    preset: str = "balanced"
    precision: StatePrecision = "bf16"
    checkpointing: PlanSwitch = "auto"
    attention: AttentionKernel = "sdpa"
    packed: bool = False
    """Rows are packed, or all of one length: no micro batch has padding."""
    host_memory: float | None = None
    stage: int | None = None
    offload: StateOffload | None = None
    micro_batch: int | None = None
    """What the configuration fixes; None leaves it to the plan."""
    optimizer: str = optimizers.DEFAULT
    weights: int = FP32
    """Bytes of a weight as it is loaded (--weights-dtype); DeepSpeed casts it, plain DDP trains it so."""
    beside: ModelShapes | None = None
    """A model that is read and not trained: the teacher of a distillation, or the reference of DPO."""
    sequence_parallel: int = 1
    """GPUs that share a sample (Ulysses); its activations are cut over them."""
    rows: int = 1
    """Of a sample: DPO's pairs have 2."""
    trainer: TrainerName = "dsrun"
    """Whose training is planned: by its loss, transformers' Trainer (hf) and TRL's take other memory."""
    liger: frozenset[LigerPart] = frozenset()
    """What is liger-kernel's: the loss, which never has all logits at a time, and layers, which keep less."""
    own_sizes: BufferSizes | None = None
    """Those of the user's own DeepSpeed JSON instead of the preset's."""
    sums_in_fp32: bool | None = None
    """Whether bf16 gradients are summed in fp32; None: as dsrun's own configurations do."""
    factor: float = field(default=1.0)
    """Measured over predicted GPU memory, from `dsrun plan --calibrate`."""

    def __post_init__(self) -> None:
        for flag, (name, most) in _CHECKED["most"].items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"{flag} {value} is not a valid value", fix=f"give a number from 1 to {most:,}")
        optimizers.state_bytes(self.optimizer, stage=1)  # refuses unknown ones
        names = SubjectNames(self, _CHECKED["terms"], shares=SHARES, inf=inf)
        for each in _CHECKED["checks"]:
            if evaluate(each["when"], names):
                raise UsageError(each["message"].format_map(names), fix=each["fix"].format_map(names))

    @property
    def groups(self) -> int:
        """Micro batches that the cluster takes at a time."""
        return self.cluster.world // self.sequence_parallel

    @property
    def places(self) -> Iterator[tuple[int, StateOffload]]:
        """Every stage and place that DeepSpeed has and the configuration does not rule out."""
        for stage, places in PLACES.items():
            for place in places:
                if stage == 0 and self.sequence_parallel > 1:
                    continue  # dsrun train has it with DeepSpeed's engine only
                if self.stage in (None, stage) and (self.offload is None or is_place(stage, place, self.offload)):
                    yield stage, place

    @cached_property
    def sizes(self) -> BufferSizes:
        """The sizes that the generator chooses for it."""
        return self.own_sizes or sizes(self.preset, self.model.hidden, self.cluster.model)

    @property
    def budget(self) -> float:
        """Bytes of one GPU that the preset lets a run fill."""
        return SHARES[self.preset] * self.cluster.memory * GIB

    @property
    def limit(self) -> float:
        """Bytes of one GPU that can be filled at all."""
        return PHYSICAL * self.cluster.memory * GIB

    @property
    def host(self) -> float:
        """GiB of host memory per node, assumed where not given."""
        if self.host_memory is not None:
            return self.host_memory
        model = self.cluster.model
        if model.unified:  # of whose memory the cluster has the GPU's part
            return self.cluster.memory * UNIFIED_HOST / (1 - UNIFIED_HOST) * self.cluster.per_node
        return USUAL_HOST * self.cluster.per_node

    @property
    def upcasts(self) -> bool:
        """Whether peft's prepare_model_for_kbit_training, which scripts with the stock Trainer call, turns all that is
        not quantised into fp32."""
        return self.bits is not None and self.trainer == "hf"

    @property
    def tokens(self) -> int:
        """Tokens of one sample that pass through the model."""
        return self.length + (self.source_length if self.model.seq2seq else 0)

    def work(self, micro_batch: int, *, stage: int, checkpointing: bool) -> TokenBatch:
        """One rank's micro batch. Plain DDP computes under autocast; DeepSpeed casts the model itself."""
        autocast = stage == 0 and self.precision != "fp32"
        return TokenBatch(
            micro_batch=micro_batch * self.rows,
            # Between its two all-to-alls Ulysses has whole samples of a share of the heads: as many elements
            # (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509, section 3.2). It drops the padding mask.
            length=ceil(self.length / self.sequence_parallel),
            padded=self.sequence_parallel == 1 and not self.packed,
            source_length=self.source_length if self.model.seq2seq else 0,
            width=4 if self.precision == "fp32" else 2,
            checkpointing=checkpointing,
            attention=self.attention,
            autocast=autocast,
            residual=autocast and (self.weights == FP32 or self.upcasts),
            adapters=self.lora,
            trainer=self.trainer,
            liger=self.liger,
        )


def attention_of(implementation: object) -> AttentionKernel:
    """What an --attn-implementation is counted as; without one models take sdpa."""
    name = str(implementation or "")
    return "eager" if name == "eager" else "flash" if "flash" in name else "sdpa"


def default_precision(requested: str, model: ModelShapes, cluster: GpuCluster) -> StatePrecision:
    """bf16 where the GPU computes in it (an unknown GPU is taken to), else fp16, or fp32 for what overflows in it."""
    if requested == "fp16" and family_of(model.family).overflows_in_fp16:
        raise UsageError(f"--precision fp16: {overflow_in_fp16(model.family)}", fix="use bf16 or fp32")
    if requested in ("bf16", "fp16", "fp32"):
        chosen: dict[str, StatePrecision] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
        return chosen[requested]
    if cluster.model.has_bf16 or cluster.model.capability == (0, 0):
        return "bf16"
    return "fp32" if family_of(model.family).overflows_in_fp16 else "fp16"
