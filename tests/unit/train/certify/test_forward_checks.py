"""What a forward and a backward pass of the small model tell: nothing of right families, and each fault by its code."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from transformers.models.llama import modeling_llama
from transformers.models.t5 import modeling_t5

from dsrun.certify.checks import CHECK_FACTS
from dsrun.models.families import FAMILIES
from dsrun.train.certify.look import CHECKS
from dsrun.train.certify.look.forward import LATER, LENGTH
from dsrun.train.packing import probe
from dsrun.train.packing.documents import DocumentAttention
from tests.unit.train.certify.subjects import RIGHT, codes, config_of, subject_of

FORWARD = [check for check in CHECKS if check.code in ("causal", "packed", "recomputed", "half")]
CAUSAL, PACKED, RECOMPUTED, HALF = FORWARD


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """built(kind, **values): the subject of such a config."""
    folder = tmp_path_factory.mktemp("subjects")
    return lambda kind, **values: subject_of(
        config_of(kind, **values), make(folder / "-".join([kind, *map(str, values.values())])), build=True
    )


def make(folder):
    folder.mkdir(exist_ok=True)
    return folder


def found(check, subject):
    return codes(check.look(subject))


@pytest.mark.parametrize("check", FORWARD, ids=lambda check: check.code)
@pytest.mark.parametrize("kind", RIGHT)
def test_families_that_train_right(built, kind, check):
    assert found(check, built(kind)) == [("info", check.code)]


def test_checks_are_registered_with_the_fault_that_they_answer():
    assert all(CHECK_FACTS[check.code]["field"] for check in FORWARD)


def leaking(queries, keys):
    """A mask that hides no token but shows some beside the causal ones."""

    def mask(input_embeds=None, inputs_embeds=None, **_):
        length = (input_embeds if input_embeds is not None else inputs_embeds).shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        seen[queries, keys] = True
        return torch.zeros(length, length).masked_fill(~seen, -torch.inf)[None, None]

    return mask


@pytest.mark.parametrize(
    ("queries", "keys"),
    [(slice(None), slice(None)), (slice(0, 64), slice(64, None)), (0, 1), (20, 21), (LENGTH - 2, LENGTH - 1)],
    ids=["both ways", "the next chunk", "at the beginning", "at one position", "at the end"],
)
@pytest.mark.parametrize(("kind", "module"), [("llama", modeling_llama), ("t5", modeling_t5)])
def test_later_tokens_seen(built, monkeypatch, kind, module, queries, keys):
    monkeypatch.setattr(module, "create_causal_mask", leaking(queries, keys))
    assert found(CAUSAL, built(kind)) == [("error", "causal_later")]


def test_logits_that_are_no_numbers_are_no_proof(built, monkeypatch):
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, hidden: hidden * torch.nan)
    assert found(CAUSAL, built("llama")) == [("error", "causal_later")]


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_window_that_is_ignored(built, monkeypatch, kind):
    subject = built(kind, sliding_window=1024)
    assert found(CAUSAL, subject) == [("info", "causal")]
    module = import_module(f"transformers.models.{kind.removesuffix('_text')}.modeling_{kind.removesuffix('_text')}")
    monkeypatch.setattr(module, "create_sliding_window_causal_mask", module.create_causal_mask)
    assert ("error", "causal_window") in found(CAUSAL, subject)


def test_window_that_no_layer_has_is_not_missed(built):
    assert found(CAUSAL, built("qwen2", use_sliding_window=False)) == [("info", "causal")]


def test_changed_tokens_are_within_the_row():
    assert all(0 < position < LENGTH for position in LATER)


@pytest.mark.parametrize("kind", ["bloom", "qwen3_next", "jamba"])
def test_model_that_dsrun_does_not_pack_is_right_without(built, kind):
    assert found(PACKED, built(kind)) == [("info", "packed_refused")]


def test_choice_of_tokens_in_a_packed_row(built):
    """By an indexer, of fewer tokens than a document has."""
    assert found(PACKED, built("deepseek_v32")) == [("info", "packed")]


def test_window_that_packing_loses_in_long_documents(built, monkeypatch):
    """The documents by which training decides are shorter than the window."""
    assert found(PACKED, built("mistral", sliding_window=4096)) == [("info", "packed")]
    monkeypatch.setattr(DocumentAttention, "_window_mask", lambda *_: None)
    monkeypatch.setattr("dsrun.train.packing.probe.refuse_lost_window", lambda model: None)
    assert found(PACKED, built("mistral", sliding_window=4096)) == [("error", "packed_mixes")]


@pytest.mark.parametrize("kind", ["falcon", "t5"])
def test_models_that_take_a_mask(built, kind):
    assert found(PACKED, built(kind)) == [("info", "packed")]


def test_mask_that_leaks_in_long_rows(built, monkeypatch):
    """Training decides by shorter ones."""
    block = probe.block_causal_mask

    def leaky(segments):
        mask = block(segments)
        return mask | mask.roll(1, -1) if segments.shape[-1] > 66 else mask

    monkeypatch.setattr(probe, "block_causal_mask", leaky)
    assert found(PACKED, built("falcon")) == [("error", "packed_mixes")]


def detached(function, *inputs, **_):
    return function(*(each.detach() if torch.is_tensor(each) else each for each in inputs))


def test_recomputation_that_loses_gradients(built, monkeypatch):
    def enable(self, *_, **__):
        self._set_gradient_checkpointing(gradient_checkpointing_func=detached)

    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "activation_checkpointing_enable", enable)
    assert found(RECOMPUTED, built("llama")) == [("error", "recomputed_differs")]


def test_layer_that_computes_something_else_the_second_time(built, monkeypatch):
    forward, calls = modeling_llama.LlamaMLP.forward, []

    def counted(self, hidden):
        calls.append(1)
        # Two layers; with recomputation, each runs a second time.
        return forward(self, hidden) * (1 if len(calls) <= 2 else 1.01)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", counted)
    assert found(RECOMPUTED, built("llama")) == [("error", "recomputed_differs")]


def test_recomputed_gradient_that_is_no_number(built, monkeypatch):
    forward, calls = modeling_llama.LlamaMLP.forward, []

    def counted(self, hidden):
        calls.append(1)
        made = forward(self, hidden)
        if len(calls) <= 2:  # two layers; with recomputation, each runs a second time
            made.register_hook(lambda gradient: gradient * torch.nan)
        return made

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", counted)
    assert found(RECOMPUTED, built("llama")) == [("error", "recomputed_differs")]


def test_model_that_cannot_recompute_is_left_out(built, monkeypatch):
    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "supports_gradient_checkpointing", False)
    assert found(RECOMPUTED, built("llama")) == []


def no_kernel():
    raise RuntimeError("not implemented for 'Half'")


def wrapped(change):
    """LlamaMLP.forward with its output changed."""
    forward = modeling_llama.LlamaMLP.forward
    return lambda self, hidden: change(forward(self, hidden))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda out: out.float(), [("error", "half_raises")]),
        (lambda out: out + 10 * (out.dtype == torch.bfloat16), [("error", "half_differs")]),
        (lambda out: out * torch.nan if out.dtype == torch.bfloat16 else out, [("error", "half_differs")]),
        (lambda out: no_kernel() if out.dtype == torch.float16 else out, [("info", "half")]),
        (lambda out: out * 1e7 / 1e7, [("warning", "half_overflows")]),
    ],
    ids=["in fp32", "off", "no number", "not there in fp16", "beyond fp16"],
)
def test_sixteen_bits(built, monkeypatch, change, expected):
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", wrapped(change))
    assert found(HALF, built("llama")) == expected


@pytest.mark.parametrize("kind", [kind for kind, family in FAMILIES.items() if family.casts_no_tables])
def test_tables_that_no_engine_casts(built, kind):
    assert found(HALF, built(kind)) == [("info", "half")]


def test_family_that_is_known_to_overflow_is_told(built):
    (known,), (other,) = HALF.look(built("t5")), HALF.look(built("llama"))
    assert known.message.values["overflow"] != other.message.values["overflow"]
