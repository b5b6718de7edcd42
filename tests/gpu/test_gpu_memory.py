"""Memory that runs out, and memory that was planned."""

from __future__ import annotations

import json

import pytest

from bench.ladder.data import LLAMA, make_tokenizer
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.request import PlanRequest, cluster
from dsrun.zero.memory.strategy import Strategy, gpu
from tests.gpu.runs import train

LONG = 8192
# 128 samples × 16 heads × 8192² scores in bf16 are 256 GiB, more than any GPU has; one sample takes 2.
GREEDY = LLAMA | {"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": LONG, "head_dim": 16}


@pytest.fixture(scope="module")
def greedy(tmp_path_factory):
    """A model without weights, and samples as long as it takes."""
    folder = tmp_path_factory.mktemp("greedy")
    make_tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps(GREEDY))
    rows = [[3 + (row * 31 + place * 7) % 4000 for place in range(LONG)] for row in range(128)]
    with (folder / "train.jsonl").open("w") as lines:
        lines.writelines(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in rows)
    return folder / "model", folder / "train.jsonl"


def test_out_of_memory_halves_micro_batch(greedy, gpus, tmp_path):
    """CUDA's own error is recognised, the micro batch is halved until it fits, and the global batch stays."""
    batch = ["--global-batch-size", str(128 * len(gpus)), "--micro-batch-size", "128", "--max-steps", "1"]
    flags = ["--from-scratch", "true", "--attn-implementation", "eager", "--max-length", str(LONG), *batch]
    done = train(greedy, tmp_path / "run", "--bf16", "true", "--zero", "2", *flags)
    remedies = done.events("remedy")
    assert remedies
    assert remedies[-1]["halvings"] == len(remedies)
    assert len(done.losses) == 1
    assert done.facts["batch"]["global_batch"] == 128 * len(gpus)
    assert done.facts["batch"]["micro_batch"] < 128


def test_peak_is_within_the_plan(llama, gpus, tmp_path):
    """The peak that torch reserved is below the plan's figure, which must not be too low. bench/memory.py has larger
    models and the goal of 5%: of this one most is what CUDA itself takes."""
    flags = ("--bf16", "true", "--zero", "2", "--train-sampling-strategy", "random")
    measured = train(llama, tmp_path / "run", *flags).rows[-1]["gpu_memory_peak"]
    request = PlanRequest(
        model=describe(LLAMA, from_scratch=True),
        cluster=cluster(f"{gpus[0].name}:{len(gpus)}", memory=80),
        length=512,
        source_length=512,
        global_batch=32,
        precision="bf16",
        lora=None,
    )
    planned = gpu(request, Strategy(stage=2, offload="none", checkpointing=False), 4).total
    assert measured <= 1.03 * planned
