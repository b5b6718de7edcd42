"""What is refused about a model and its data before any library is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsrun.errors import UsageError
from dsrun.models.families import is_trained
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.recipe_spec import TrainSpec

LLAMA = {"model_type": "llama"}
T5 = {"model_type": "t5", "is_encoder_decoder": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}


@pytest.fixture
def check(tmp_path):
    """Check a model with this config.json and tokenizer, and rows of this kind."""

    def run(config, row=None, tokenizer=None, **spec):
        model = tmp_path / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        (model / "model.safetensors").write_bytes(b"x")
        (model / "tokenizer_config.json").write_text(json.dumps(tokenizer or {}))
        file = tmp_path / "rows.jsonl"
        file.write_text(json.dumps(row or {"text": "a", "source": "b", "target": "c"}) + "\n")
        check_inputs(Recipe(TrainSpec(model=str(model), train_file=[str(file)], **spec), hf={}, sources={}))

    return run


@pytest.mark.parametrize("kind", ["whisper", "llava", "vit", "qwen2_audio"])
def test_model_of_other_things_than_text_refused(kind, check):
    with pytest.raises(
        UsageError, match=f"is a {kind} model, which is neither a causal LM nor a seq2seq model of text"
    ):
        check({"model_type": kind})


def test_model_with_code_of_its_own_is_not_judged(check):
    check({"model_type": "llava", "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}})


@pytest.mark.parametrize("kind", ["llama", "t5", "marian", "gemma3", "a-model-of-next-year"])
def test_text_models_pass(kind, check):
    check({"model_type": kind})


def test_model_that_reads_both_ways_refused(check):
    with pytest.raises(UsageError, match="is a bert model, which reads text in both directions"):
        check({"model_type": "bert"})


def test_bert_as_decoder_passes(check):
    check({"model_type": "bert", "is_decoder": True})


def test_conversations_for_encoder_decoder_refused(check):
    with pytest.raises(UsageError, match="conversations, which a seq2seq model cannot learn"):
        check(T5, CHAT)


def test_conversations_beside_pairs_pass(check):
    check(T5, {**CHAT, "source": "a", "target": "b"})


def test_conversations_without_template_refused(check):
    with pytest.raises(UsageError, match=r"the tokenizer in .* has no chat template .*--chat-template FILE"):
        check(LLAMA, CHAT)


@pytest.mark.parametrize("row", [CHAT, {"data": [CHAT]}], ids=["lines", "document"])
def test_first_row_found_in_lines_and_documents(row, check):
    with pytest.raises(UsageError, match="has no chat template"):
        check(LLAMA, row)


def test_template_of_tokenizer_or_flag_passes(check, tmp_path):
    check(LLAMA, CHAT, {"chat_template": "x"})
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "model" / "chat_template.jinja").write_text("x")
    spec = TrainSpec(model=str(tmp_path / "model"), train_file=[str(tmp_path / "rows.jsonl")])
    check_inputs(Recipe(spec, hf={}, sources={}))


def test_one_file_for_two_splits_passes(check, tmp_path):
    check(LLAMA, validation_file=[str(tmp_path / "rows.jsonl")])


def test_encoder_decoder_for_preferences_refused(check):
    with pytest.raises(UsageError, match=r"--task dpo: .* is a t5 model, and DPO trains causal language models"):
        check(T5, {"prompt": "p", "chosen": "a", "rejected": "b"}, task="dpo")


def test_preferences_of_messages_without_template_refused(check):
    with pytest.raises(UsageError, match=r"contains conversations, but the tokenizer in .* has no chat template"):
        check(LLAMA, {"chosen": CHAT["messages"], "rejected": CHAT["messages"]}, task="dpo")


def test_chat_template_flag_passes(check):
    check(LLAMA, CHAT, chat_template="chatml")


def test_missing_chat_template_file_named(check):
    with pytest.raises(UsageError, match=r"--chat-template nosuch\.jinja: No such file"):
        check(LLAMA, chat_template="nosuch.jinja")


@pytest.mark.train
def test_harvested_model_types_are_those_of_transformers():
    """Also by the rule of the training process, for one of each kind."""
    done = subprocess.run([sys.executable, "tools/harvest_other_models.py", "--check"], check=False)
    assert done.returncode == 0, "python tools/harvest_other_models.py writes dsrun/models/other_models.json"


@pytest.mark.parametrize(
    ("teacher", "says"),
    [
        ("../nowhere", "does not exist"), ("model/config.json", "is a file"), ("bare", "no weights"),
        ("adapter", "contains a LoRA adapter"), ("no name at all", "neither a folder nor a name on the Hub"),
        ("demo-llama", "a demo begins untrained"), ("empty", "contains no config.json"),
    ],
)  # fmt: skip
def test_teacher_is_checked_as_the_model_is(teacher, says, check, tmp_path, monkeypatch):
    """Before any library is loaded, in the name of its flag."""
    monkeypatch.chdir(tmp_path)
    for name, file in (("bare", "config.json"), ("adapter", "adapter_config.json"), ("empty", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(json.dumps(LLAMA))
    named = teacher if teacher == "no name at all" or teacher.startswith("demo-") else f"./{teacher}"
    with pytest.raises(UsageError, match=rf"--teacher {named}.*{says}"):
        check(LLAMA, task="distill", teacher=named)


def test_teacher_of_the_hub_and_one_of_this_machine_accepted(check, tmp_path):
    check(LLAMA, task="distill", teacher="org/teacher")
    (tmp_path / "model").rename(tmp_path / "teacher")
    check(LLAMA, task="distill", teacher=str(tmp_path / "teacher"))


@pytest.mark.parametrize("kind", ["mllama", "emu3"])
def test_models_that_nobody_could_load_again_are_refused(kind):
    """Their class is saved under the config of a part, of which AutoModelForCausalLM knows no class."""
    assert not is_trained({"model_type": kind, "text_config": {"model_type": f"{kind}_text_model"}})
