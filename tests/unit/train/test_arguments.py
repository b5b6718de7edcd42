"""Flags of the stock Trainer that would fail late or do nothing are reported early."""

from __future__ import annotations

import errno

import pytest
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaConfig,
    MarianConfig,
    Seq2SeqTrainingArguments,
    T5Config,
)

from dsrun.errors import DsrunError, MissingError, UsageError
from dsrun.train.loop.arguments import _check_metric, as_usage_errors, check_arguments

TINY = {"vocab_size": 16, "pad_token_id": 0, "decoder_start_token_id": 0}
LLAMA = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
T5 = T5Config(**TINY, d_model=8, d_ff=8, d_kv=8, num_layers=1, num_heads=1)
MARIAN = MarianConfig(
    **TINY, d_model=8, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
    encoder_attention_heads=1, decoder_attention_heads=1,
)  # fmt: skip
STAGE_2 = {"zero_optimization": {"stage": 2}}


@pytest.fixture
def said(tmp_path):
    """What is said of training arguments, on a tiny Llama unless told otherwise."""

    def of(*, config=LLAMA, deepspeed=None, **flags):
        arguments = Seq2SeqTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **flags)
        auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        lines = []
        check_arguments(arguments, auto.from_config(config), deepspeed, notify=lines.append)
        return lines

    return of


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"optim": "adafactor", "deepspeed": STAGE_2},
        {"optim": "adagrad"},
        {"lr_scheduler_type": "polynomial"},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
        {
            "lr_scheduler_type": "warmup_stable_decay",
            "lr_scheduler_kwargs": {"num_decay_steps": 2},
            "max_steps": 9,
        },
        {"neftune_noise_alpha": 5.0},
        {"bf16_full_eval": True},
        {"bf16_full_eval": True, "bf16": True, "deepspeed": STAGE_2},
        {"neftune_noise_alpha": 5.0, "config": MARIAN},
        {"optim": "rmsprop", "optim_args": "alpha=0.9"},
    ],
)
def test_valid_trainer_arguments_accepted(said, flags):
    assert said(**flags) == []


def test_missing_liger_kernel_named(said, monkeypatch):
    monkeypatch.setattr("dsrun.train.loop.arguments.is_liger_kernel_available", lambda: False)
    with pytest.raises(MissingError, match="pip install liger-kernel"):
        said(use_liger_kernel=True)


@pytest.mark.parametrize("name", ["grokadamw", "galore_adamw", "adamw_anyprecision"])
def test_missing_optimizer_package_named(said, name):
    """No extra brings them; transformers tells of one by a ValueError, of the other by an ImportError."""
    with pytest.raises(MissingError, match=f"^--optim {name}: .*install"):
        said(optim=name, optim_target_modules=["q_proj"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"lr_scheduler_kwargs": {"mn_lr": 1}}, r"^--lr-scheduler-type linear: .*mn_lr"),
        (
            {"lr_scheduler_type": "warmup_stable_decay"},
            r"^--lr-scheduler-type warmup_stable_decay: .*num_decay_steps",
        ),
        ({"lr_scheduler_type": "polynomial", "learning_rate": 1e-8}, "smaller than initial lr"),
        ({"optim": "rmsprop", "optim_args": "alpha=much"}, "^--optim rmsprop: could not convert"),
        ({"fp16_full_eval": True, "deepspeed": STAGE_2}, "^--fp16_full_eval: with DeepSpeed"),
        ({"bf16_full_eval": True, "deepspeed": STAGE_2}, "^--bf16_full_eval: with DeepSpeed"),
        ({"neftune_noise_alpha": 5.0, "config": T5}, "no effect on t5 models"),
        ({"optim": "adagrad", "deepspeed": STAGE_2}, r"^--optim adagrad: ZeRO loses.*--zero 0"),
    ],
)
def test_invalid_trainer_arguments_rejected(said, flags, words):
    with pytest.raises(UsageError, match=words):
        said(**flags)


def test_ineffective_optim_args_named(said):
    """Options that the optimizer never sees are named."""
    assert said(optim="adamw_torch", optim_args="foo=1") == ["--optim-args foo=1 has no effect on --optim adamw_torch"]


def test_optimizer_of_deepspeed_json_not_checked(said):
    """What the JSON brings itself is not tried."""
    own = {**STAGE_2, "optimizer": {"type": "Adam"}, "scheduler": {"type": "WarmupLR"}}
    assert said(optim="grokadamw", lr_scheduler_type="warmup_stable_decay", deepspeed=own) == []


def test_errors_of_trainer_classes_get_exit_codes():
    """Errors of the Trainer's own classes get an exit code of their own."""
    with pytest.raises(MissingError, match=r"^here: pip install it at once$"), as_usage_errors("here"):
        raise ImportError("pip install it\nat once")
    with pytest.raises(UsageError, match=r"^here: no$"), as_usage_errors("here"):
        raise ValueError("no")
    with pytest.raises(UsageError, match=r"^here: ValueError$"), as_usage_errors("here"):
        raise ValueError
    with pytest.raises(MissingError, match=r"^here: the Hub .*refused"), as_usage_errors("here"):
        raise ConnectionRefusedError("refused")
    with pytest.raises(UsageError, match=r"^here: not a valid JSON file$"), as_usage_errors("here"):
        raise OSError("not a valid JSON file")
    with pytest.raises(OSError, match="full") as caught, as_usage_errors("here"):
        raise OSError(errno.ENOSPC, "the disk is full")
    assert not isinstance(caught.value, DsrunError)


@pytest.mark.parametrize(
    "metric", ["loss", "eval_perplexity", "bleu", "wiki_loss", "eval_en-ro_perplexity", "wiki_chrf"]
)
def test_metrics_of_sets_may_choose_the_best_checkpoint(metric):
    values = {"metric_for_best_model": metric, "predict_with_generate": True}
    _check_metric(values, ("perplexity",), (), ["wiki", "en-ro"])


@pytest.mark.parametrize("metric", ["wiki_loss", "chats_loss", "wiki_bleu"])
def test_metric_of_a_set_that_is_not_evaluated_refused(metric):
    """Of a set without validation data, of data that is not mixed, and a score where nothing is generated."""
    values = {"metric_for_best_model": metric, "predict_with_generate": False}
    sets = {"wiki_loss": [""], "chats_loss": ["wiki"], "wiki_bleu": ["wiki"]}[metric]
    with pytest.raises(UsageError, match=f"--metric-for-best-model {metric}: evaluation yields loss, perplexity"):
        _check_metric(values, ("perplexity",), (), sets)
