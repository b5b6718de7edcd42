"""`dsrun import`: files of other tools become run.yaml files that `dsrun train` takes."""

import json

import pytest

from dsrun.recipe.resolve import resolve

CHATS = [
    {"messages": [{"role": "user", "content": f"hello {n}"}, {"role": "assistant", "content": "yes"}]} for n in range(8)
]
PAIRS = [{"prompt": f"hello {n}", "chosen": "yes", "rejected": "no"} for n in range(8)]
AXOLOTL = """
base_model: demo-llama
load_in_8bit: false
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
datasets:
  - path: chats.jsonl
    type: chat_template
    message_property_mappings: {role: role, content: content}
chat_template: chatml
val_set_size: 0.1
sequence_len: 256
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 2
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
gradient_checkpointing: true
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 2
special_tokens:
deepspeed: deepspeed_configs/zero2.json
output_dir: out
"""
FACTORY = """
model_name_or_path: demo-llama
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: chats
template: chatml
cutoff_len: 256
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 2
output_dir: out
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
report_to: none
deepspeed: examples/deepspeed/ds_z3_config.json
"""
TRL = """
model_name_or_path: demo-llama
torch_dtype: bfloat16
dataset_name: pairs.jsonl
beta: 0.05
learning_rate: 5.0e-7
lr_scheduler_type: cosine
max_length: 256
max_prompt_length: 128
num_train_epochs: 1
optim: adamw_torch
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
seed: 42
warmup_ratio: 0.1
output_dir: out
"""
EXPECTED = {
    "axolotl": {"global_batch_tokens": 2048, "lora": 8, "learning_rate": 0.0002, "eval_steps": 0.125, "zero": "2"},
    "LLaMA-Factory": {"lora": 8, "gradient_accumulation_steps": 8, "warmup_steps": 0.1, "zero": "3"},
    "TRL": {"task": "dpo", "dpo_beta": 0.05, "gradient_accumulation_steps": 2, "weights_dtype": "bfloat16"},
}
FILES = {"axolotl": AXOLOTL, "LLaMA-Factory": FACTORY, "TRL": TRL}


@pytest.fixture(autouse=True)
def files(here):
    for name, rows in (("chats.jsonl", CHATS), ("pairs.jsonl", PAIRS)):
        (here / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "dataset_info.json").write_text(
        json.dumps(
            {"chats": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"}}}
        )
    )
    for name, text in FILES.items():
        (here / f"{name}.yml").write_text(text)
    return here


@pytest.mark.parametrize("tool", FILES)
def test_imported_file_is_taken_by_train(dsrun, files, tool):
    done = dsrun("import", f"{tool}.yml")
    assert done.returncode == 0, done.stderr
    (files / "run.yaml").write_text(done.stdout)
    tried = dsrun("train", "--config", "run.yaml", "--dry-run")
    assert tried.returncode == 0, tried.stderr
    recipe = resolve(["--config", "run.yaml"], files)
    assert {name: recipe.value(name) for name in EXPECTED[tool]} == EXPECTED[tool]


def test_every_key_without_counterpart_has_a_line_on_stderr(dsrun, files):
    (files / "LLaMA-Factory.yml").write_text(FACTORY + "use_unsloth: true\nbrand_new: 1\n")
    done = dsrun("import", "LLaMA-Factory.yml")
    assert done.returncode == 0
    named = [line.split(": ")[2] for line in done.stderr.splitlines() if line.startswith("note: LLaMA-Factory.yml:")]
    assert named == ["plot_loss", "use_unsloth", "brand_new"]
    assert "plot_loss" not in done.stdout


def test_all_reasons_are_named_and_nothing_is_written(dsrun, files):
    (files / "axolotl.yml").write_text(AXOLOTL + "rl: kto\ntrain_on_inputs: true\n")
    done = dsrun("import", "axolotl.yml", "--output", "run.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    errors = [line.split(": ")[1:3] for line in done.stderr.splitlines() if line.startswith("error: ")]
    last = len((AXOLOTL + "\n").splitlines())
    assert errors == [[f"axolotl.yml:{last}", "rl kto"], [f"axolotl.yml:{last + 1}", "train_on_inputs true"]]
    assert not (files / "run.yaml").exists()
    dropped = dsrun("import", "axolotl.yml", "--drop", "rl", "--drop", "train_on_inputs")
    assert dropped.returncode == 0, dropped.stderr


def test_output_is_not_overwritten_without_force(dsrun, files):
    (files / "run.yaml").write_text("mine")
    assert dsrun("import", "TRL.yml", "-o", "run.yaml").returncode == 2
    assert (files / "run.yaml").read_text() == "mine"
    assert dsrun("import", "TRL.yml", "-o", "run.yaml", "--force").returncode == 0
    assert (files / "run.yaml").read_text() == dsrun("import", "TRL.yml").stdout


def test_tool_in_doubt_is_named(dsrun, files):
    (files / "odd.yml").write_text("model_name_or_path: demo-llama\nlearning_rate: 1e-4\n")
    assert dsrun("import", "odd.yml").returncode == 2
    assert dsrun("import", "odd.yml", "--from", "trl").returncode == 0
    assert dsrun("import", "odd.yml", "--from", "llama-factory").returncode == 0


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "train: {model: m}\n"])
def test_what_is_no_file_of_a_tool(dsrun, files, text):
    (files / "odd.yml").write_text(text)
    done = dsrun("import", "odd.yml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: odd.yml")


def test_drop_of_a_key_that_is_not_there(dsrun):
    assert dsrun("import", "TRL.yml", "--drop", "rl").returncode == 2


def test_result_that_dsrun_refuses_is_refused(dsrun, files):
    (files / "axolotl.yml").write_text(AXOLOTL.replace("8bit: false", "8bit: true").replace("zero2", "zero3"))
    done = dsrun("import", "axolotl.yml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "8bit" in done.stderr
