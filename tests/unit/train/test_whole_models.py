"""Checkpoints of images and text, trained as text, and put back together."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from dsrun.errors import ToolError
from dsrun.models.headers import read_header
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.export.export_model import ExportRequest, export
from dsrun.train.export.final import check_copies, class_of, completed, put_together, write_whole
from dsrun.train.model.build_model import build
from dsrun.train.model.load import decide_task, load_config
from dsrun.train.model.text_part import TextKeys

pytestmark = pytest.mark.train

SINGLE = "model.safetensors"
ROWS = 64
TEXT = {
    "vocab_size": ROWS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 1,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
QWEN_TEXT = TEXT | {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16, "patch_size": 8,
    "num_position_embeddings": 16,
}  # fmt: skip
KINDS = {
    "gemma3": (TEXT, VISION),
    "gemma4": (
        TEXT | {"hidden_size_per_layer_input": 4, "global_head_dim": 8, "vocab_size_per_layer_input": ROWS},
        VISION,
    ),
    "qwen3_5": (QWEN_TEXT, QWEN_VISION),
    "qwen3_5_moe": (QWEN_TEXT, QWEN_VISION),
    "mistral3": (TEXT | {"model_type": "ministral3"}, VISION),
    "llava": (TEXT | {"model_type": "llama"}, VISION),
    "llama4": (TEXT | {"num_local_experts": 2, "intermediate_size_mlp": 32}, VISION),
    "internvl": (TEXT | {"model_type": "qwen2"}, VISION | {"image_size": [16, 16], "patch_size": [8, 8]}),
}


def make_whole(folder, kind, **options):
    torch.manual_seed(0)
    text, vision = KINDS[kind]
    model = AutoModelForImageTextToText.from_config(
        CONFIG_MAPPING[kind](text_config=dict(text), vision_config=dict(vision))
    )
    model.save_pretrained(folder, **options)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Own"}')
    return folder


def loaded(folder, **options):
    spec = TrainSpec(model=str(folder), weights_dtype="auto", **options)
    config, notes = load_config(spec), []
    return build(spec, config, decide_task(config, "auto", spec.model), notify=notes.append), notes


def tune(model, rows=0):
    """Changes all of its weights, as training does, and adds rows to its embedding."""
    if rows:
        model.resize_token_embeddings(ROWS + rows)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each), alpha=0.05)
    return model.eval()


def weights(folder):
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def logits(model):
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        return model.eval()(input_ids=ids, use_cache=False).logits.float()


def put_back(model, base, text, to):
    model.save_pretrained(text)
    write_whole(text, base, model.whole.keys, to, beat=lambda: None)
    return to


@pytest.mark.parametrize("kind", KINDS)
def test_tuned_text_model_is_put_back(kind, tmp_path):
    base = make_whole(tmp_path / "base", kind, max_shard_size="20KB")
    model, (said,) = loaded(base)
    whole_class = class_of(base)
    assert said.count(whole_class.__name__) == 2
    assert f"{len(model.whole.others)} tensors" in said
    before = whole_class.from_pretrained(base)
    # What is trained is what the whole model computes of text.
    assert torch.allclose(logits(model), logits(before), atol=1e-5)
    tune(model, rows=6)
    to = put_back(model, base, tmp_path / "text", tmp_path / "whole")
    old, new = weights(base), weights(to)
    assert new.keys() == old.keys()
    buffers = {model.whole.keys.stored(name) for name, _ in model.named_buffers()} & old.keys()
    assert {name for name in old if torch.equal(old[name], new[name])} == {*model.whole.others, *buffers}
    assert {name for name in old if old[name].shape != new[name].shape} <= {
        name for name in old if name.endswith(("embed_tokens.weight", "lm_head.weight", "per_layer.weight"))
    }
    made, info = whole_class.from_pretrained(to, output_loading_info=True)
    assert not any(info.values())
    assert torch.allclose(logits(made), logits(model), atol=1e-5)
    config, original = (json.loads((each / "config.json").read_text()) for each in (to, base))
    assert (config["architectures"], config["model_type"]) == (original["architectures"], kind)
    assert config["vision_config"] == original["vision_config"]
    rows = {name: ROWS + 6 for name in original["text_config"] if name.startswith("vocab_size")}
    assert config["text_config"] == original["text_config"] | rows
    assert (to / "preprocessor_config.json").is_file()


def test_text_only_is_said_and_loads(tmp_path):
    base = make_whole(tmp_path / "base", "gemma3")
    model, (said,) = loaded(base, text_only=True)
    assert (said.count("Gemma3ForConditionalGeneration"), said.count("Gemma3ForCausalLM")) == (1, 1)
    tune(model).save_pretrained(tmp_path / "text")
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(logits(again), logits(model))


def test_place_of_the_text_model_is_beside_which_most_tensors_are():
    """Layers that predict tokens after the next have an embedding of their own, and are no part of it."""
    own = ["model.embed_tokens.weight", "model.layers.0.q.weight", "model.layers.1.q.weight", "lm_head.weight"]
    there = [name.replace("model.", "model.language_model.") for name in own]
    stored = [*there, "mtp.embed_tokens.weight", "mtp.layers.0.q.weight", "model.visual.embed.weight"]
    keys = TextKeys.between(own, stored, {"lm_head.": "lm_head.weight", "model.": "model.embed_tokens.weight"})
    assert [keys.stored(name) for name in own] == there
    assert [name for name in stored if keys.own(name) is None] == stored[len(there) :]


def test_tensor_without_a_place_and_changed_copy_are_refused(tmp_path):
    base = make_whole(tmp_path / "base", "gemma3")
    model, _ = loaded(base)
    to = put_back(tune(model), base, tmp_path / "text", tmp_path / "whole")
    from dsrun.train.checkpoint.weight_files import stored_weights

    tuned = stored_weights(tmp_path / "text", SINGLE)
    _, copied = put_together(tuned, base, model.whole.keys)
    check_copies(copied, to)
    name = next(iter(copied))
    copied[name] = copied[sorted(copied)[-1]]
    with pytest.raises(ToolError, match="disk is failing"):
        check_copies(copied, to)
    with pytest.raises(ToolError, match="which was trained"):
        put_together(tuned, base, TextKeys([("model.", "elsewhere.")]))


def test_final_model_without_its_base_is_the_text_model_and_can_be_completed(tmp_path):
    base = make_whole(tmp_path / "base", "qwen3_5")
    model, _ = loaded(base)
    partial, said = tmp_path / "model.partial", []
    tune(model).save_pretrained(partial)
    shutil.move(base, tmp_path / "gone")
    assert completed(model.whole, partial, notify=said.append, beat=lambda: None) == partial
    (sentence,) = said
    assert f"dsrun export {tmp_path / 'model'} --base {base} --to" in sentence
    shutil.move(tmp_path / "gone", base)
    request = ExportRequest(partial, tmp_path / "out", None, False, 10**9, False, base)
    export(request, notify=said.append)
    assert read_header(tmp_path / "out" / SINGLE).keys() == read_header(base / SINGLE).keys()
    assert torch.allclose(
        logits(class_of(tmp_path / "out").from_pretrained(tmp_path / "out")), logits(model), atol=1e-5
    )
    # And of the whole the text model again.
    export(
        ExportRequest(tmp_path / "out", tmp_path / "text", None, False, 10**9, False, None, True), notify=said.append
    )
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "text")), logits(model))
