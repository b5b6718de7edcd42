"""`dsrun plan` against GPU memory that others published (published.toml) and that was measured here (measured.toml).

The same quantity is compared: of torch's peak of allocated memory the plan's without the process's context and what the
allocator cannot use again, of its peak of reserved memory without the context, of nvidia-smi's figure the whole. What a
plan cannot express is listed and not counted.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from bench import memory_cases
from dsrun.zero.memory.model.architecture import ModelShapes, adapter
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.peak import GpuPeak, ZeroStrategy, gpu
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.rank.activations import LIGER, LigerPart

DATA = Path(__file__).parents[1] / "tests" / "data" / "memory"
BYTES = {"GB": 10**9, "GiB": 2**30, "MB": 2**20}
GIB = 2**30
MEDIAN, NEAR, SHARE, TOO_LOW = 0.05, 0.12, 0.90, 0.05
"""The goals: half within MEDIAN, a SHARE within NEAR, none more than TOO_LOW under what was measured."""
LINE = "{:38} {:>9} {:>7} {:>7}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One figure and all that it depends on; the fields are explained in published.toml."""

    id: str
    source: str
    printed: float
    unit: str = "GiB"
    measured: Literal["allocated", "reserved", "device"]
    config: dict[str, Any]
    gpus: str
    stage: int
    offload: Literal["none", "optimizer", "cpu"] = "none"
    states: Literal["bf16", "fp32"] = "fp32"
    micro_batch: int
    accumulation: int = 1
    length: int
    padded: bool = False
    recompute: bool = False
    attention: Literal["eager", "sdpa", "flash"] = "sdpa"
    loss: Literal["plain", "chunked", "liger"]
    trainer: Literal["dsrun", "hf", "trl", "own"]
    optimizer: str = "adamw_torch"
    lora: int | None = None
    lora_dropout: float = 0.0
    targets: tuple[str, ...] = ("all",)
    bits: int | None = None
    liger: tuple[LigerPart, ...] = ()
    beyond: str = ""

    @property
    def bytes(self) -> float:
        return self.printed * BYTES[self.unit]


def published() -> Iterator[Record]:
    """The records of published.toml. A key that is no field raises TypeError."""
    read = tomllib.loads((DATA / "published.toml").read_text(encoding="utf-8"))
    for source in read["source"]:
        for run in source["runs"]:
            known = {"unit": source["unit"], "measured": source["measured"]} | source["all"] | run
            config = read["models"][known.pop("model")]
            if "tied" in known:  # by the trainer's own model code
                config = config | {"tie_word_embeddings": known.pop("tied")}
            known["id"] = f"{source['id']}/{run['id']}"
            known["targets"] = tuple(known.get("targets", ["all"]))
            yield Record(**known, config=config, source=source["address"])


def measured() -> Iterator[Record]:
    """Those of measured.toml, whose last table is other people's, too."""
    read = tomllib.loads((DATA / "measured.toml").read_text(encoding="utf-8"))
    fixed: dict[str, Any] = {"source": "measured.toml", "measured": "device"}
    for name in ("h100", "h200"):
        for number, run in enumerate(read[name]["run"], start=1):
            yield Record(
                **fixed, id=f"{name}/{run['model']}-{number}", printed=run["reserved"] + read[name]["beside"],
                config=getattr(memory_cases, run["model"]), gpus=f"{name}:1", stage=2, length=run["length"],
                micro_batch=run["micro_batch"], accumulation=run.get("accumulation", 1),
                padded=not run.get("packed", False), recompute=run.get("recompute", False),
                loss="liger" if run.get("liger") else "plain", trainer="dsrun",
            )  # fmt: skip
    for number, run in enumerate(read["stock"]["run"], start=1):
        config = getattr(memory_cases, run["model"])
        yield Record(
            **fixed, id=f"stock/{run['model']}-{number}", printed=run["reserved"] + read["stock"]["beside"],
            config=config | {"num_hidden_layers": run.get("layers", config["num_hidden_layers"])}, gpus="h200:1",
            stage=run["stage"], length=run["length"], micro_batch=run["micro_batch"],
            recompute=run.get("recompute", False), loss="liger" if "loss" in run.get("liger", ()) else "plain",
            liger=tuple(run.get("liger", ())), trainer="hf", lora=run.get("lora"), bits=run.get("bits"),
            states="bf16" if "lora" in run else "fp32", optimizer="adamw_torch_fused",
        )  # fmt: skip
    for thousands, printed in read["published"].items():
        yield Record(
            **fixed, id=f"ml-engineering/llama-3.1-8b-{thousands}k", printed=printed, config=memory_cases.LLAMA_8B,
            gpus="h200:8", stage=3, offload="optimizer", length=int(thousands) * 1024, micro_batch=1, recompute=True,
            loss="liger", trainer="hf",
        )  # fmt: skip


def rank(record: Record, model: ModelShapes) -> int | None:
    """The LoRA rank that has as many parameters on every linear layer, where plans have them, as the record's on its
    targets."""
    if not record.lora or record.targets == ("all",):
        return record.lora
    sizes = {weight.name: sum(adapter(weight, record.lora)) for weight in model.tensors()}
    ours = sum(size for name, size in sizes.items() if name.split(".")[-2] in record.targets)
    return max(1, round(record.lora * ours / sum(sizes.values())))


def predict(record: Record) -> float:
    """The plan's bytes of what the record measured."""
    return part(peak_of(record), record.measured)


def peak_of(record: Record) -> GpuPeak:
    """The plan's peak of the record's run."""
    model = describe(record.config | {"max_position_embeddings": 262_144}, from_scratch=True)
    gpus = cluster(record.gpus)
    bf16 = record.states == "bf16"
    # Plain DDP trains the weights as they are loaded; under FSDP bf16 shards are what bf16 master weights are.
    strategy = ZeroStrategy(
        stage=record.stage,
        offload=record.offload,
        checkpointing=record.recompute,
        bf16_master=bf16 and record.stage > 0,
    )
    request = PlanRequest(
        model=model,
        cluster=gpus,
        length=record.length,
        source_length=record.length,
        global_batch=record.micro_batch * gpus.world * record.accumulation,
        micro_batch=record.micro_batch,
        stage=record.stage,
        lora=rank(record, model),
        bits=record.bits,
        attention=record.attention,
        packed=not record.padded,
        optimizer=record.optimizer,
        weights=2 if bf16 else 4,
        liger=LIGER if record.loss == "liger" else frozenset(record.liger),
        sums_in_fp32=None if record.trainer == "dsrun" else False,
        # A trainer of its own with transformers' loss holds what the Trainer does; one that cuts its logits, less.
        trainer=record.trainer if record.trainer != "own" else "hf" if record.loss == "plain" else "dsrun",
    )
    return gpu(request, strategy, record.micro_batch)


def part(peak: GpuPeak, what: str) -> float:
    """Bytes of the peak that are allocated, reserved, or in use on the device."""
    beside = {"device": 0, "reserved": peak.buffers.context, "allocated": peak.buffers.context + peak.reserve}
    return peak.total - beside[what]


def main(only: str = "") -> bool:
    """Print the table, or the lines of the ids that begin with `only`, and what they come to; whether those of dsrun,
    the stock Trainer and TRL are within the goals. Plans are not for other training code, which has none."""
    print("GiB; off: of the plan, + is too much")
    print(LINE.format("id", "published", "plan", "off"))
    offs: dict[bool, list[float]] = {False: [], True: []}
    for record in [*published(), *measured()]:
        if not record.id.startswith(only):
            continue
        planned = predict(record)
        off = planned / record.bytes - 1
        note = f"  not counted: {record.beyond}" if record.beyond else ""
        print(LINE.format(record.id, f"{record.bytes / GIB:.2f}", f"{planned / GIB:.2f}", f"{off:+.1%}") + note)
        if not record.beyond:
            offs[record.trainer == "own"].append(off)
    held = True
    for own, found in offs.items():
        if found:
            middle, near = median(map(abs, found)), sum(abs(off) <= NEAR for off in found) / len(found)
            print(f"{'other training code' if own else 'dsrun, Trainer and TRL'}: {len(found)}, ", end="")
            print(f"median {middle:.1%} off, {near:.0%} within {NEAR:.0%}, from {min(found):+.1%} to {max(found):+.1%}")
            held &= own or (middle <= MEDIAN and near >= SHARE and min(found) >= -TOO_LOW)
    return held


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)
