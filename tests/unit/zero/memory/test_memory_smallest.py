"""The plan where GPUs or the model are left open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.memory_cases import LLAMA_1B, LLAMA_8B, T5_LARGE
from dsrun.zero.memory.model.architecture import training
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.smallest import STEP, fits, largest, longest, models, smallest, ways

GIB = 2**30
MODELS = {"1B": describe(LLAMA_1B), "8B": describe(LLAMA_8B), "T5": describe(T5_LARGE)}


def asked(model="8B", gpus="h100:8", **more):
    return PlanRequest(model=MODELS[model], cluster=cluster(gpus), length=2048, source_length=2048, **more)


@pytest.mark.parametrize("model", MODELS)
def test_fewest_gpus_fit_and_half_as_many_do_not(model):
    found = smallest(asked(model))
    assert {each.way for each in found} == set(ways(asked(model)))
    for each in found:
        assert each.choice.verdict == "fits"
        world = each.request.cluster.world
        if world > 1:
            fewer = each.request.cluster.with_nodes(max(1, each.request.cluster.nodes // 2), min(8, world // 2))
            assert not fits(replace(each.request, cluster=fewer))


def test_machines_of_a_way_come_by_their_memory():
    for way in ways(asked()):
        sizes = [each.size for each in smallest(asked()) if each.way == way]
        assert len(sizes) >= 5
        assert sizes == sorted(sizes)


def test_every_way_asks_for_what_it_says():
    for each in smallest(asked()):
        flags = each.flags
        assert ("lora" in flags) == ("LoRA" in each.way)
        assert (flags.get("quantization") == "4bit") == (each.way == "QLoRA")
        assert flags.get("offload") == ("cpu" if each.way == "full + cpu" else None)


def test_what_is_given_leaves_one_way():
    assert set(ways(asked(lora=8))) == {"LoRA"}
    assert set(ways(asked(lora=8, bits=8))) == {"QLoRA"}
    assert set(ways(asked(offload="nvme"))) == {"full + nvme"}
    assert ways(asked(lora=8))["LoRA"].lora == 8


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("more", [{}, {"lora": 16}, {"lora": 16, "bits": 4}, {"offload": "cpu"}], ids=str)
def test_longest_rows_fit_and_longer_ones_do_not(model, more):
    request = asked(model, "l40s:4", **more)
    length = longest(request)
    assert length >= STEP

    def of(tokens):
        return replace(request, length=tokens, source_length=tokens, micro_batch=1)

    assert fits(of(length))
    limit = request.model.positions
    assert length + STEP > (limit or 2**40) or not fits(of(length + STEP))


def test_no_rows_fit_where_the_model_does_not():
    assert longest(asked("8B", "t4:1", offload="none")) == 0


def test_largest_model_fits_and_the_next_does_not():
    names = list(models())
    parameters = [shapes.parameters for shapes in models().values()]
    assert parameters == sorted(parameters)
    for each in largest(asked(gpus="a100-80:2")):
        assert each.choice.verdict == "fits"
        for larger in names[names.index(each.model) + 1 :]:
            assert not fits(replace(each.request, model=models()[larger]))


def test_quantised_weights_take_what_was_measured():
    """On an H200 (docs/benchmarks.md): Llama-3.1-8B of 16 layers in nf4, quantised twice, embeddings in fp32, adapters
    of rank 16 in bf16: 5.62 GiB."""
    shapes = describe(LLAMA_8B | {"num_hidden_layers": 16})
    held = training(shapes, 16, 4)
    again = sum(each.elements for each in shapes.tensors() if each.kind in ("embedding", "head"))
    assert 2 * (sum(held.frozen) + again + held.trainable) / GIB == pytest.approx(5.62, abs=0.01)
