"""Counting on the meta device in a child process, and finding models on this machine."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict

import pytest

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.models.folder import cached_snapshot, find, hub_cache
from dsrun.models.headers import stored_weights
from dsrun.zero.memory.model.architecture import LayerWeight
from dsrun.zero.memory.model.count import count
from dsrun.zero.memory.model.widths import architecture_of
from dsrun.zero.memory.plan_request import cluster
from dsrun.zero.memory.strategy import active_parameters

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 64, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
CODEGEN = {"model_type": "codegen", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "rotary_dim": 8}


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return find(str(folder))


def test_parameter_count_meta_device_and_shapes_agree(tmp_path):
    found = write(tmp_path, LLAMA)
    meta, shapes = count(found, meta=True), count(found, meta=False)
    assert asdict(meta.architecture) == asdict(shapes.architecture)
    assert (meta.how, shapes.how) == ("transformers on the meta device", "the architecture's shapes")
    assert meta.findings == ()


def test_parameter_count_of_unlisted_model_family(tmp_path):
    """An unlisted family is counted with transformers only."""
    from transformers import CodeGenConfig, CodeGenForCausalLM

    found = write(tmp_path, CODEGEN)
    counted = count(found, meta=True)
    settings = {key: value for key, value in CODEGEN.items() if key != "model_type"}
    real = CodeGenForCausalLM(CodeGenConfig(**settings))
    assert counted.architecture.parameters == sum(p.numel() for p in real.parameters())
    assert counted.architecture.decoder.layers == 2
    with pytest.raises(MissingError, match="'codegen'"):
        count(found, meta=False)


def test_parameter_count_when_transformers_fails(tmp_path):
    """What transformers cannot build is an error, or a warning where the shapes are known."""
    with pytest.raises(ToolError, match=r"meta device failed: .*does not recognize this architecture"):
        count(write(tmp_path, {"model_type": "no-such-model"}), meta=True)
    broken = write(tmp_path, LLAMA | {"tie_word_embeddings": "no-such-thing"})
    counted = count(broken, meta=True)
    assert [each.code for each in counted.findings] == ["plan.meta-count"]
    assert "'tie_word_embeddings': TypeError: " in counted.findings[0].message
    assert counted.how == "the architecture's shapes"


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 4}'])
def test_invalid_model_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        find(str(tmp_path))


def test_model_folder_without_config(tmp_path):
    with pytest.raises(UsageError, match=r"contains no config\.json"):
        find(str(tmp_path))


def test_hub_cache_follows_environment():
    assert str(hub_cache({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"})) == "/a"
    assert str(hub_cache({"HF_HOME": "/b", "HOME": "/h"})) == "/b/hub"
    assert str(hub_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"})) == "/x/huggingface/hub"
    assert str(hub_cache({"HOME": "/h"})) == "/h/.cache/huggingface/hub"


def test_hub_snapshot_is_that_of_main(tmp_path):
    repository = tmp_path / "models--org--name"
    for commit in ("old", "new"):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("old\n")
    assert cached_snapshot("org/name", tmp_path).name == "old"
    (repository / "refs" / "main").unlink()
    assert cached_snapshot("org/name", tmp_path).name in ("old", "new")
    assert cached_snapshot("org/other", tmp_path) is None


def test_stored_tensors_from_safetensors_headers(tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(())}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert stored_weights(tmp_path).shapes == {"a": (3, 4), "b": (5,), "c": ()}
    (tmp_path / "two.safetensors").unlink()
    assert stored_weights(tmp_path) is None


def test_stored_tensors_without_computed_positions(tmp_path):
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=512, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(tmp_path)
    counted = count(find(str(tmp_path)), meta=False)
    assert [w.elements for w in counted.architecture.tensors() if w.kind == "frozen"] == 2 * [512 * 16]
    assert counted.findings == ()


def test_stored_tensors_damaged_header(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60))
    assert stored_weights(tmp_path) is None


@pytest.mark.parametrize("shape", [[3, "4"], [2.5], [-1], 3, [True]])
def test_stored_tensors_invalid_shape(tmp_path, shape):
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert stored_weights(tmp_path) is None


def test_stored_tensors_deeply_nested_index(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("[" * 100_000)
    assert stored_weights(tmp_path) is None


def test_cluster_from_gpu_spec():
    made = cluster("a100-80:8", nodes=4)
    assert (made.per_node, made.nodes, made.world, made.memory, made.has_nvlink) == (8, 4, 32, 80.0, True)
    assert cluster("l4").world == 1
    assert not cluster("a100-pcie-80:8").has_nvlink
    assert cluster("a100-80", memory=20).memory == 20.0
    assert cluster("h100:4").note
    assert not cluster("h100-80:4").note


def built(folder, config):
    """The generic architecture of what transformers builds, in this process."""
    from dsrun.train.model.zero_auto import counted

    write(folder, config)
    said = counted(str(folder))
    return architecture_of(
        said["config"], tuple(LayerWeight(name, tuple(shape), kind) for name, shape, kind in said["tensors"])
    )


def test_model_that_dsrun_does_not_train_is_counted_with_a_note(tmp_path):
    sides = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 64, "num_mel_bins": 8,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip
    made = count(write(tmp_path, {"model_type": "whisper", **sides}), meta=True)
    assert not made.trained
    assert [each.code for each in made.findings] == ["plan.not-trained"]
    assert "does not train whisper models" in made.findings[0].message
    # Its convolutions, and both sides' positions: 1500 and 448.
    assert made.architecture.parameters > 32 * (1500 + 448 + 3 * (8 + 32))
    assert made.architecture.seq2seq


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def test_model_config_defaults(tmp_path):
    # As Gemma 3's published configs do: neither heads nor vocabulary.
    text = {"model_type": "gemma3_text", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    found = write(tmp_path, {"model_type": "gemma3", "text_config": text, "vision_config": vision})
    model = count(found, meta=True).architecture
    assert (model.vocabulary, model.decoder.heads, model.decoder.queries) == (262_208, 8, 8 * 256)
    assert (model.hidden, model.decoder.layers, model.decoder.ffn) == (32, 2, 40)


def test_encoder_and_decoder_of_different_depth(tmp_path):
    sides = {
        "d_model": 32, "vocab_size": 64, "encoder_layers": 3, "decoder_layers": 1, "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    }  # fmt: skip
    bart = built(tmp_path, {"model_type": "blenderbot", **sides})
    assert [(each.layers, each.ffn, each.heads) for each in bart.stacks] == [(3, 40, 4), (1, 24, 2)]
    sides = {"d_model": 32, "d_ff": 40, "num_heads": 4, "num_layers": 1, "num_decoder_layers": 3}
    t5 = built(tmp_path, {"model_type": "longt5", **sides, "vocab_size": 64})
    assert [(each.layers, each.cross) for each in t5.stacks] == [(1, False), (3, True)]


@pytest.mark.parametrize(
    ("config", "layers", "heads"),
    [
        ({"model_type": "mpt", "d_model": 32, "n_heads": 2, "n_layers": 3, "vocab_size": 64}, 3, 2),
        ({"model_type": "trocr", "d_model": 32, "decoder_layers": 3, "decoder_attention_heads": 2}, 3, 2),
        ({"model_type": "nemotron_h", "hidden_size": 32, "layers_block_type": ["full_attention", "mlp"]}, 2, 32),
    ],
)  # fmt: skip
def test_model_config_alternative_key_names(tmp_path, config, layers, heads):
    model = built(tmp_path, config)
    assert (model.hidden, model.decoder.layers, model.decoder.heads) == (32, layers, heads)


def test_moe_active_parameters_from_config(tmp_path):
    config = SMALL | {
        "intermediate_size": 24,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "head_dim": 8,
    }
    model = built(tmp_path, {"model_type": "gpt_oss", **config})
    assert (model.decoder.experts, model.decoder.experts_per_token, model.decoder.ffn) == (8, 2, 48)
    matrices = [each.elements for each in model.tensors() if len(each.shape) == 3]
    others = [each.elements for each in model.tensors() if len(each.shape) < 3 and each.kind != "embedding"]
    assert sum(matrices) == 2 * 8 * 3 * 32 * 24
    assert active_parameters(model) == sum(others) + sum(matrices) // 4


def test_parameter_count_error_is_first_line_of_exception(tmp_path):
    with pytest.raises(ToolError, match="Unrecognized configuration class"):
        count(write(tmp_path, {"model_type": "clip"}), meta=True)
