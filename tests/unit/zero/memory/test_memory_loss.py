"""The loss of each trainer, its place in the peak, and what `dsrun plan --explain` says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import memory_cases
from dsrun.zero.memory.explain import explain
from dsrun.zero.memory.model.count import describe
from dsrun.zero.memory.peak import ZeroStrategy, gpu
from dsrun.zero.memory.plan import plan
from dsrun.zero.memory.plan_request import PlanRequest, cluster
from dsrun.zero.memory.rank.activations import LIGER, TokenBatch, activations
from dsrun.zero.memory.rank.loss import LogitShape, liger_loss, stock_loss, trl_loss
from dsrun.zero.memory.rank.optimizers import state_bytes

LLAMA = describe(memory_cases.LLAMA_1B)
T5 = describe(memory_cases.T5_LARGE)
FEW = LogitShape(tokens=1024, vocabulary=65_536, hidden=512, width=2)
RECOMPUTING = ZeroStrategy(stage=0, offload="none", checkpointing=True)


def ask(**changes):
    fixed = {"model": LLAMA, "cluster": cluster("h100-80:1"), "length": 2048, "global_batch": 4, "micro_batch": 4}
    return PlanRequest(**(fixed | {"trainer": "hf", "optimizer": "adamw_torch_fused"} | changes))


def test_stock_loss_of_seq2seq_stays_in_the_dtype_of_its_logits():
    """T5 computes it on the logits as they are; causal language models, and autocast, in fp32."""
    assert stock_loss(FEW, upcast=True) == (3 * 4 * FEW.elements, 2 * FEW.elements)
    assert stock_loss(FEW, upcast=False) == (3 * 2 * FEW.elements, 0)
    request = ask(model=T5, stage=2)
    in_bf16, cast = (
        gpu(request, ZeroStrategy(stage=stage, offload="none", checkpointing=False), 4).activations.logits
        for stage in (2, 0)
    )
    assert cast == 2 * in_bf16


def test_losses_in_pieces_do_not_grow_with_the_logits():
    """TRL's and Liger's: of four times the tokens far less than four times the bytes; a frozen head has no gradient."""
    for loss in (trl_loss, liger_loss):
        few, many = (loss(FEW._replace(tokens=tokens), head_trains=True).peak for tokens in (4096, 16_384))
        assert many < 2 * few
        assert few - loss(FEW._replace(tokens=4096), head_trains=False).peak >= 2 * 2 * FEW.head


def test_gradients_are_not_there_when_a_single_micro_batch_has_its_loss():
    one, several = (gpu(ask(global_batch=batch), RECOMPUTING, 4) for batch in (4, 8))
    assert one.moment == several.moment == "loss"
    assert several.total - one.total == pytest.approx(one.states.gpu.gradients, abs=2)


def test_gradients_come_as_activations_of_layers_go():
    """Of a single micro batch: never all of both; that of the output embedding comes first."""
    request = ask(liger=LIGER, stage=2, micro_batch=16, global_batch=16)
    plain = replace(RECOMPUTING, stage=2, checkpointing=False)
    one, several = (gpu(replace(request, global_batch=batch), plain, 16) for batch in (16, 32))
    assert several.absent == 0 < one.absent <= one.states.gpu.gradients
    assert one.total < several.total


def test_dropout_of_attention_is_its_own():
    """OPT's probabilities are not dropped, T5's are; eager attention keeps what is."""
    found = {}
    for kind, sizes in (("opt", {"ffn_dim": 512}), ("opt", {"ffn_dim": 512, "attention_dropout": 0.1})):
        config = {"model_type": kind, "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "max_position_embeddings": 512, **sizes}  # fmt: skip
        model = describe(config)
        work = TokenBatch(micro_batch=2, length=256, attention="eager")
        found[model.attention_dropout] = activations(model, work).kept
    assert found[0.1] - found[0.0] == 2 * 4 * 2 * 256**2 * (1 + 2)
    assert T5.attention_dropout == T5.dropout == 0.1


def test_optimizer_over_lists_makes_all_roots_at_a_time():
    """The stock Trainer's adamw_torch; dsrun's is the fused one."""
    listed, fused = (gpu(ask(optimizer=name), RECOMPUTING, 1).states for name in ("adamw_torch", "adamw_torch_fused"))
    assert listed.step - fused.step == 4 * LLAMA.parameters
    assert gpu(ask(optimizer="adamw_torch", trainer="dsrun"), RECOMPUTING, 1).states.step == 0


@pytest.mark.parametrize(
    ("name", "stage", "more"),
    [
        ("adamw_bnb_8bit", 0, 2 * (4 - 1 - 4 / 256)),
        ("adamw_bnb_8bit", 2, 0),
        ("adamw_torch_8bit", 0, 0),
        ("lion_8bit", 0, 4 - 1 - 4 / 256),
    ],
)
def test_states_of_embeddings_in_fp32(name, stage, more):
    """bitsandbytes' in 8 bits, as the Trainer asks for; nowhere in ZeRO's flat shares, nor torchao's."""
    table = LLAMA.vocabulary * LLAMA.hidden
    usual = state_bytes(name, stage=stage) * LLAMA.parameters
    found = gpu(ask(optimizer=name, stage=stage), replace(RECOMPUTING, stage=stage), 1).states.gpu.optimizer
    assert found == pytest.approx(usual + more * table, rel=1e-6)


def test_muon_leaves_embeddings_and_vectors_to_adam():
    found = gpu(ask(optimizer="muon", stage=2), replace(RECOMPUTING, stage=2), 1).states.gpu.optimizer
    rest = sum(weight.elements for weight in LLAMA.tensors() if weight.kind != "linear")
    assert found == pytest.approx(4 * LLAMA.parameters + 4 * rest, rel=1e-6)


def test_peft_turns_what_is_not_quantised_into_fp32():
    """In scripts with the stock Trainer, not under TRL and dsrun."""
    found = {name: gpu(ask(trainer=name, lora=16, bits=4, weights=2), RECOMPUTING, 1) for name in ("hf", "trl")}
    rest = sum(weight.elements for weight in LLAMA.tensors() if weight.kind != "linear")
    assert found["hf"].states.gpu.parameters - found["trl"].states.gpu.parameters == 2 * rest


def test_pairs_of_dpo_take_two_rows():
    single, pairs = (ask(trainer="trl", rows=rows).work(4, stage=2, checkpointing=True) for rows in (1, 2))
    assert (single.micro_batch, pairs.micro_batch) == (4, 8)
    for trainer in ("dsrun", "trl"):
        reference = gpu(ask(trainer=trainer, rows=2, beside=LLAMA), RECOMPUTING, 4)
        alone = gpu(ask(trainer=trainer, rows=2), RECOMPUTING, 4)
        assert reference.states.gpu.parameters - alone.states.gpu.parameters == 2 * LLAMA.parameters
        assert reference.activations == alone.activations  # its logits are gone before the model's come


@pytest.mark.parametrize("trainer", ["dsrun", "hf", "trl"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_explained_parts_are_the_whole_peak(trainer, stage):
    request = ask(trainer=trainer, stage=stage, cluster=cluster("h100-80:4"), global_batch=16)
    row = plan(replace(request, preset="aggressive")).choice
    parts = [part for part in explain(request, row) if not part.name.startswith("saved")]
    assert sum(part.size for part in parts) == pytest.approx(row.gpu.total, rel=0.01)
    assert all(part.formula and part.source for part in parts)


def test_explained_copies_are_in_the_dtype_of_the_loss():
    """T5's loss stays in bf16 unless autocast computes it."""
    wide = replace(T5, vocabulary=400_000)
    for model, stage, dtype in ((wide, 2, "bf16"), (wide, 0, "fp32"), (LLAMA, 2, "fp32")):
        request = ask(model=model, stage=stage, source_length=8, checkpointing="on", preset="aggressive")
        found = {part.name: part.formula for part in explain(request, plan(request).choice)}
        assert f"in {dtype}:" in found["logits and loss"]


def test_each_part_of_liger_is_explained_by_what_it_saves():
    request = ask(liger=LIGER, stage=2, checkpointing="off")
    saved = {part.name: part.size for part in explain(request, plan(request).choice) if part.name.startswith("saved")}
    assert {name.split()[-1] for name in saved} == LIGER
    assert saved["saved by Liger's loss"] > 2**30
