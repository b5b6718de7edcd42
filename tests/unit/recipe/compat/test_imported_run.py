"""What files of other tools come to: the same data, batch, rates and schedule."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.compat.imported_run import ImportedRun, import_run
from dsrun.recipe.compat.removed import tables
from dsrun.recipe.flags import SECRETS

AXOLOTL: dict[str, Any] = {"base_model": "m", "datasets": [{"path": "a.jsonl", "type": "chat_template"}]}
FACTORY: dict[str, Any] = {"model_name_or_path": "m", "stage": "sft", "dataset": "a"}
TRL: dict[str, Any] = {"model_name_or_path": "m", "dataset_name": "a.jsonl"}
BASES = {"axolotl": AXOLOTL, "LLaMA-Factory": FACTORY, "TRL": TRL}
LORA = {"adapter": "lora", "lora_r": 8}
QLORA = LORA | {"adapter": "qlora", "load_in_4bit": True}
BATCH = {"micro_batch_size": 2, "gradient_accumulation_steps": 4}
TEXT = {"path": "a.txt", "type": "completion"}
MIXED = {"datasets": [{"id": "o/x", "config": "c", "split": "train"}], "test_split_size": 0.1}
FRAMED = {"field_instruction": "q", "format": "[I] {instruction}"}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    info = {
        "a": {"file_name": "a.json"},
        "b": {"file_name": "b.json", "formatting": "sharegpt", "columns": {"messages": "talk", "tools": "tools"}},
        "asked": {"file_name": "c.json", "columns": {"prompt": "ask", "response": "say"}},
        "three": {"file_name": "d.json", "columns": {"prompt": "instruction", "query": "input", "response": "output"}},
        "odd": {"file_name": "e.json", "columns": {"prompt": "ask", "query": "more", "response": "say"}},
        "seen": {"hf_hub_url": "o/seen", "columns": {"messages": "messages", "images": "images"}},
        "hub": {"hf_hub_url": "o/hub", "ms_hub_url": "o/ms", "subset": "en", "split": "train[:100]"},
        "pairs": {"file_name": "p.json", "ranking": True, "columns": {"chosen": "chosen", "rejected": "rejected"}},
    }
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(info))


def imported(tool: str, gpus: int = 1, /, **changes: Any) -> ImportedRun:
    return import_run(ImportedRun(tool, BASES[tool] | changes, Path(), tool, "f.yml: "), gpus)


@pytest.mark.parametrize(
    ("tool", "given", "expected"),
    [
        # axolotl's defaults are not Transformers'
        ("axolotl", {}, {
            "max_length": 512, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1,
            "num_train_epochs": 1,
            "lr_scheduler_type": "cosine", "optim": "adamw_torch_fused", "warmup_steps": 0.03, "save_strategy": "epoch",
            "validation_split_percentage": 0, "keep": 4, "train_file": ["a.jsonl"], "lora": None, "bf16": None,
        }),
        ("axolotl", {"warmup_ratio": 0.1, "val_set_size": 0.05, "evals_per_epoch": 4, "num_epochs": 2}, {
            "warmup_steps": 0.1, "validation_split_percentage": 5, "eval_strategy": "steps", "eval_steps": 0.125,
        }),
        ("axolotl", {"evals_per_epoch": 4}, {"eval_strategy": None}),
        ("axolotl", {"saves_per_epoch": 2}, {"save_strategy": "steps", "save_steps": 0.5}),
        ("axolotl", {"saves_per_epoch": 1}, {"save_strategy": "epoch", "save_steps": None}),
        ("axolotl", {"max_steps": 10}, {"max_steps": 10, "num_train_epochs": None}),
        ("axolotl", {"micro_batch_size": 2, "gradient_accumulation_steps": 8}, {
            "micro_batch_size": 2, "gradient_accumulation_steps": 8, "per_device_train_batch_size": None,
            "global_batch_tokens": None,
        }),
        # a batch of packed rows is one of tokens
        ("axolotl", {"sample_packing": True, "sequence_len": 1024} | BATCH, {
            "global_batch_tokens": 8192, "micro_batch_size": None, "gradient_accumulation_steps": None, "packing": None,
        }),
        ("axolotl", {"sample_packing": True, "datasets": [TEXT], "micro_batch_size": 2}, {
            "global_batch_tokens": None, "micro_batch_size": 2,
        }),
        # adapters
        ("axolotl", LORA, {"lora": 8, "lora_targets": ["q_proj", "v_proj"], "quantization": None}),
        ("axolotl", LORA | {"lora_target_linear": True}, {"lora_targets": ["all-linear"]}),
        ("axolotl", {"lora_r": 8, "lora_alpha": 16}, {"lora": None, "lora_alpha": None}),
        ("axolotl", QLORA, {"quantization": "4bit"}),
        ("axolotl", LORA | {"load_in_8bit": True, "peft_use_dora": True}, {"quantization": "8bit", "dora": True}),
        ("axolotl", QLORA | {"fsdp": ["full_shard"], "fsdp_config": {"fsdp_offload_params": True}}, {
            "zero": "3", "offload": "optimizer",
        }),
        # ZeRO
        ("axolotl", {"deepspeed": "deepspeed_configs/zero2.json"}, {"zero": "2", "offload": None}),
        ("axolotl", {"deepspeed": "deepspeed_configs/zero3_bf16_cpuoffload_all.json"}, {"zero": "3", "offload": "cpu"}),
        ("LLaMA-Factory", {"deepspeed": "examples/deepspeed/ds_z0_config.json"}, {"zero": "0"}),
        ("axolotl", {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": False}}, {"zero": "2"}),
        # whatever the order of the keys
        ("axolotl", LORA | {"lora_target_linear": True, "lora_target_modules": ["q_proj"]}, {
            "lora_targets": ["all-linear"],
        }),
        ("axolotl", {"cosine_min_lr_ratio": 0.1, "lr_scheduler": "cosine"}, {
            "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        }),
        *((tool, given, {"warmup_steps": 0.1}) for tool in ("TRL", "LLaMA-Factory") for given in (
            {"warmup_ratio": 0.1, "warmup_steps": 0}, {"warmup_steps": 0, "warmup_ratio": 0.1},
        )),
        ("axolotl", {"warmup_steps": 0}, {"warmup_steps": 0}),
        # evaluation needs data
        ("axolotl", {"eval_steps": 50, "val_set_size": 0}, {"eval_steps": None, "eval_strategy": None}),
        ("axolotl", {"eval_steps": 50, "val_set_size": 0.1}, {"eval_steps": 50}),
        ("axolotl", {"test_datasets": [{"path": "o/x", "split": "test"}], "eval_steps": 50}, {"eval_steps": 50}),
        # kernels, precision, schedules
        ("axolotl", {"bf16": "auto", "liger_rope": True, "flash_attention": True}, {
            "bf16": None, "use_liger_kernel": True, "attn_implementation": "flash_attention_2",
        }),
        ("axolotl", {"bf16": False, "xformers_attention": True, "tf32": False}, {
            "bf16": False, "attn_implementation": "sdpa", "tf32": False,
        }),
        ("axolotl", {"gradient_checkpointing": "offload"}, {"gradient_checkpointing": True}),
        ("axolotl", {"lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}, {
            "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        }),
        ("axolotl", {"lr_groups": [{"name": "x", "modules": ["q", "k"], "lr": 1e-4}]}, {
            "lr_for": ["*q*=0.0001", "*k*=0.0001"],
        }),
        ("axolotl", {"context_parallel_size": 2, "sequence_len": 4096}, {
            "sequence_parallel": 2, "long_context": 4096, "max_length": None,
        }),
        ("axolotl", {"hub_model_id": "me/m"}, {"push_to_hub": True, "hub_private_repo": True, "hub_model_id": "me/m"}),
        ("axolotl", {"rl": "dpo", "rl_beta": 0.2}, {"task": "dpo", "dpo_beta": 0.2}),
        ("TRL", {"loss_type": "apo_zero", "beta": 0.1}, {"task": "dpo", "dpo_loss": "apo_zero", "dpo_beta": 0.1}),
        ("axolotl", {"rl": "ipo"}, {"task": "dpo", "dpo_loss": "ipo"}),
        ("axolotl", {"rl": "dpo", "dpo_loss_type": ["hinge"], "dpo_loss_weights": [1.0]}, {"dpo_loss": "hinge"}),
        ("TRL", {"loss_type": ["ipo"]}, {"task": "dpo", "dpo_loss": "ipo", "learning_rate": 1e-6}),
        ("TRL", {"loss_type": "chunked_nll"}, {"task": None, "dpo_loss": None}),
        ("TRL", {"label_smoothing": 0.1}, {
            "task": "dpo", "dpo_label_smoothing": 0.1, "label_smoothing_factor": None,
        }),
        ("axolotl", {"overrides_of_model_config": {"rope_scaling": {"factor": 4}}}, {
            "config_override": ['rope_scaling={"factor": 4}'],
        }),
        ("axolotl", {"datasets": [{"path": "o/d", "trust_remote_code": True}]}, {"trust_remote_code": None}),
        ("axolotl", {"gradient_checkpointing": "unsloth"}, {"activation_offload": True}),
        ("LLaMA-Factory", {"buffer_size": 128}, {"dataloader_num_workers": None}),
        ("axolotl", {"activation_offloading": "legacy"}, {"activation_offload": True}),
        ("axolotl", {"trl": {"beta": 0.3}, "rl": "dpo"}, {"dpo_beta": 0.3}),
        ("axolotl", {"overwrite_output_dir": True, "evaluation_strategy": "no"}, {
            "resume": "never", "eval_strategy": "no",
        }),
        # LLaMA-Factory
        ("LLaMA-Factory", {}, {
            "lora": 8, "max_length": 2048, "bf16": False, "gradient_checkpointing": True, "apply_chat_template": True,
            "validation_split_percentage": 0, "train_file": ["data/a.json"], "lora_targets": None,
        }),
        ("LLaMA-Factory", {"finetuning_type": "full", "lora_rank": 8}, {"lora": None}),
        ("LLaMA-Factory", {"lora_target": "q_proj,v_proj", "additional_target": "lm_head"}, {
            "lora_targets": ["q_proj", "v_proj"], "lora_modules_to_save": ["lm_head"],
        }),
        ("LLaMA-Factory", {"stage": "pt"}, {"apply_chat_template": False}),
        ("LLaMA-Factory", {"stage": "dpo", "dataset": "pairs", "pref_beta": 0.2}, {"task": "dpo", "dpo_beta": 0.2}),
        ("LLaMA-Factory", {"disable_gradient_checkpointing": True}, {"gradient_checkpointing": False}),
        ("LLaMA-Factory", {"quantization_bit": 4, "quantization_method": "bnb"}, {"quantization": "4bit"}),
        ("LLaMA-Factory", {"max_samples": 100, "val_size": 0.1, "warmup_ratio": 0.1}, {
            "max_train_samples": 100, "validation_split_percentage": 10, "warmup_steps": 0.1,
        }),
        ("LLaMA-Factory", {"flash_attn": "fa2", "pure_bf16": True}, {
            "attn_implementation": "flash_attention_2", "bf16": True, "weights_dtype": "bfloat16",
            "bf16_master_weights": True,
        }),
        ("LLaMA-Factory", {"dataset": "asked"}, {"text_column": "ask", "summary_column": "say", "source_prefix": None}),
        ("LLaMA-Factory", {"dataset": "three"}, {"text_column": None, "summary_column": None}),
        ("LLaMA-Factory", {"dataset": "hub"}, {"dataset": "o/hub", "dataset_config": "en", "max_train_samples": 100}),
        ("LLaMA-Factory", {"eval_dataset": "b"}, {"validation_file": ["data/b.json"], "train_file": ["data/a.json"]}),
        ("LLaMA-Factory", {"dataset": "a, b", "mix_strategy": "interleave_over", "interleave_probs": "0.7,0.3"}, {
            "mix": {"sets": {
                "a": {"train_file": ["data/a.json"], "weight": 0.7},
                "b": {"train_file": ["data/b.json"], "text_column": "talk", "weight": 0.3},
            }},
            "train_file": None,
        }),
        # TRL
        ("TRL", {}, {
            "max_length": 1024, "learning_rate": 2e-5, "gradient_checkpointing": True, "lora": None, "task": None,
        }),
        ("TRL", {"beta": 0.05}, {"task": "dpo", "dpo_beta": 0.05, "learning_rate": 1e-6}),
        ("TRL", {"use_peft": True}, {
            "lora": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_targets": ["q_proj", "v_proj"],
        }),
        ("TRL", {"max_seq_length": 2048, "torch_dtype": "bfloat16", "do_eval": True}, {
            "max_length": 2048, "weights_dtype": "bfloat16", "do_eval": None,
        }),
        ("TRL", {"packing": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}, {
            "global_batch_tokens": 6144,
        }),
        ("TRL", {"dataset_mixture": MIXED}, {
            "dataset": "o/x", "dataset_config": "c", "validation_split_percentage": 10,
        }),
    ],
)  # fmt: skip
def test_values_of_an_imported_file(tool, given, expected):
    found = imported(tool, **given)
    assert found.refused == []
    assert {name: found.values.get(name) for name in expected} == expected


@pytest.mark.parametrize(("degree", "ranks"), [(1, 8), (4, 2), (16, 1)])
def test_packed_batch_counts_the_gpus_with_rows_of_their_own(degree, ranks):
    found = imported("axolotl", 8, sample_packing=True, context_parallel_size=degree)
    assert found.values["global_batch_tokens"] == ranks * 512


@pytest.mark.parametrize("key", sorted(SECRETS))
@pytest.mark.parametrize("tool", BASES)
def test_secret_is_left_out_with_a_note(tool, key):
    found = imported(tool, **{key: "hf_secret"})
    assert "hf_secret" not in str([found.values, found.notes, found.refused])
    assert [line for line in found.notes if key in line]


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("axolotl", {"train_on_inputs": True}),
        ("axolotl", {"micro_batch_size": 2, "batch_size": 8}),
        ("axolotl", {"rl": "kto"}),
        ("axolotl", {"adapter": "llama-adapter"}),
        ("axolotl", {"optimizer": "came_pytorch"}),
        ("axolotl", {"lr_scheduler": "rex"}),
        ("axolotl", {"shuffle_merged_datasets": False}),
        ("axolotl", {"tokens": ["<x>"]}),
        ("axolotl", {"unfrozen_parameters": ["lm_head"]}),
        ("axolotl", {"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}),
        ("axolotl", {"model_type": "AutoModelForSequenceClassification"}),
        ("axolotl", {"processor_type": "AutoProcessor"}),
        ("axolotl", {"val_set_size": 2000}),
        ("axolotl", {"chat_template": "{% for m in messages %}{% endfor %}"}),
        ("axolotl", {"datasets": [{"path": "o/d", "type": "alpaca", "split": "train[:20%]"}]}),
        ("axolotl", {"datasets": [{"path": "o/d", "type": "alpaca", "data_files": ["x.json"]}]}),
        ("axolotl", {"datasets": [{"path": "a.jsonl", "type": "input_output"}]}),
        ("axolotl", {"datasets": [{"path": "s3://b/a.jsonl", "type": "alpaca"}]}),
        ("axolotl", {"datasets": [{"path": "a.jsonl", "type": FRAMED}]}),
        ("axolotl", {"datasets": [{"path": "a.jsonl", "roles_to_train": ["user"]}]}),
        ("axolotl", {"deepspeed": "mine.json"}),
        ("axolotl", {"resume_from_checkpoint": "out/checkpoint-1"}),
        ("LLaMA-Factory", {"stage": "ppo"}),
        ("LLaMA-Factory", {"stage": "kto"}),
        ("LLaMA-Factory", {"finetuning_type": "oft"}),
        ("LLaMA-Factory", {"shift_attn": True}),
        ("LLaMA-Factory", {"use_galore": True}),
        ("LLaMA-Factory", {"pissa_init": True}),
        ("LLaMA-Factory", {"mask_history": True}),
        ("LLaMA-Factory", {"train_on_prompt": True}),
        ("LLaMA-Factory", {"dataset": "nowhere"}),
        ("LLaMA-Factory", {"dataset": "odd"}),
        ("LLaMA-Factory", {"dataset": "seen"}),
        ("LLaMA-Factory", {"dataset_dir": "elsewhere"}),
        ("LLaMA-Factory", {"quantization_bit": 2}),
        ("TRL", {"completion_only_loss": False}),
        ("TRL", {"assistant_only_loss": False}),
        ("TRL", {"dataset_train_split": "all"}),
        ("TRL", {"reward_funcs": ["x"]}),
        ("TRL", {"dataset_train_split": "train_sft"}),
        ("TRL", {"dataset_splits": ["train_prefs", "test_prefs"]}),
        ("TRL", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
        ("TRL", {"discopop_tau": 0.2, "loss_type": "discopop"}),
        ("TRL", {"max_length": None}),
        ("TRL", {"use_peft": True, "lora_target_modules": ".*(q|v)_proj"}),
        ("axolotl", LORA | {"lora_target_modules": r"model.layers.[\d]+.mlp.(up|down)_proj"}),
        ("LLaMA-Factory", {"lora_target": ".*(q|v)_proj"}),
    ],
)  # fmt: skip
def test_meaning_that_would_change_is_refused(tool, given):
    found = imported(tool, **given)
    assert found.refused
    assert imported(tool).refused == []


@pytest.mark.parametrize(
    ("tool", "given", "key"),
    [
        ("LLaMA-Factory", {"use_unsloth": True}, "use_unsloth"),
        ("axolotl", {"lora_mlp_kernel": True}, "lora_mlp_kernel"),
        ("axolotl", {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}, "plugins"),
        ("axolotl", {"datasets": [{"path": "a.jsonl", "type": "alpaca"}]}, "datasets[0].type"),
        ("axolotl", {"datasets": [TEXT]}, "datasets[0].type"),
        ("axolotl", {"special_tokens": {"pad_token": "<pad>"}}, "special_tokens.pad_token"),
        ("axolotl", {"chat_template": "llama3"}, "chat_template"),
        ("axolotl", {"evals_per_epoch": 4}, "evals_per_epoch"),
        ("axolotl", {"eval_strategy": "steps"}, "eval_strategy"),
        ("LLaMA-Factory", {"template": "qwen3"}, "template"),
        ("TRL", {"chat_template_path": "t.jinja"}, "assistant_only_loss"),
    ],
)
def test_key_without_a_counterpart_is_named(tool, given, key):
    found = imported(tool, **given)
    assert found.refused == []
    assert len([line for line in found.notes if key in line]) == 1


@pytest.mark.parametrize("key", ["load_in_4bit", "train_on_inputs", "strict", "lora_mlp_kernel", "relora", "plugins"])
def test_what_is_off_says_nothing(key):
    before = imported("axolotl")
    for value in (False, None, []):
        after = imported("axolotl", **{key: value})
        assert (after.values, after.notes, after.refused) == (before.values, before.notes, before.refused)


def test_all_reasons_at_once_with_their_lines():
    config = AXOLOTL | {"rl": "kto", "train_on_inputs": True}
    run = ImportedRun("axolotl", config, Path(), "axolotl", "f.yml:", {"rl": 7, "train_on_inputs": 9})
    starts = [line.split(": ")[0] for line in import_run(run, 1).refused]
    assert starts == ["f.yml:7", "f.yml:9"]


def test_validation_data_of_a_mixture_is_a_set_of_its_own():
    sets = [{"path": "a.jsonl"}, {"path": "b.jsonl"}]
    found = imported("axolotl", datasets=sets, test_datasets=[{"path": "c.jsonl"}]).values["mix"]["sets"]
    assert found == {
        "a": {"train_file": ["a.jsonl"]},
        "b": {"train_file": ["b.jsonl"]},
        "validation": {"validation_file": ["c.jsonl"]},
    }


def test_deepspeed_file_that_is_there_is_taken(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    assert imported("axolotl", deepspeed="mine.json").values["deepspeed"] == "mine.json"


def test_reason_in_the_list_of_data_names_no_key_of_the_file():
    """--drop takes keys of the file alone."""
    (line,) = imported("LLaMA-Factory", dataset="seen").refused
    assert "--drop" not in line


@pytest.mark.parametrize("text", ['{"a":', "[1]", "\xff"])
def test_list_of_data_that_is_none(text, tmp_path):
    (tmp_path / "data/dataset_info.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"data/dataset_info\.json"):
        imported("LLaMA-Factory")


@pytest.mark.parametrize("value", [-1, "text", [1, None], {"a": 1}, [[{}]], {"path": 3, "datasets": 1}])
@pytest.mark.parametrize("tool", BASES)
def test_odd_value_of_any_key_is_no_crash(tool, value, tmp_path):
    for key in tables()[tool]:
        imported(tool, **{key.replace("*", "x"): value})
