"""Counting on the meta device in a child process, and finding models on this machine."""

from __future__ import annotations

import json
import struct

import pytest

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.zero.memory.configs import cached_snapshot, find, hub_cache, stored_tensors
from dsrun.zero.memory.count import count
from dsrun.zero.memory.gpus_arg import cluster

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 64, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
BLOOM = {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return find(str(folder))


def test_meta_device_and_shapes_agree(tmp_path):
    found = write(tmp_path, LLAMA)
    meta, shapes = count(found, meta=True), count(found, meta=False)
    assert meta.architecture == shapes.architecture
    assert (meta.how, shapes.how) == ("transformers on the meta device", "the architecture's shapes")
    assert meta.findings == ()


def test_an_unlisted_family_is_counted_with_transformers_only(tmp_path):
    from transformers import BloomConfig, BloomForCausalLM

    found = write(tmp_path, BLOOM)
    counted = count(found, meta=True)
    settings = {key: value for key, value in BLOOM.items() if key != "model_type"}
    real = BloomForCausalLM(BloomConfig(**settings))
    assert counted.architecture.parameters == sum(p.numel() for p in real.parameters())
    assert counted.architecture.decoder.layers == 2
    with pytest.raises(MissingError, match="'bloom'"):
        count(found, meta=False)


def test_what_transformers_cannot_build_is_an_error_or_a_warning(tmp_path):
    with pytest.raises(ToolError, match="meta device failed"):
        count(write(tmp_path, {"model_type": "no-such-model"}), meta=True)
    broken = write(tmp_path, LLAMA | {"hidden_act": "no-such-activation"})
    counted = count(broken, meta=True)
    assert [each.code for each in counted.findings] == ["plan.meta-count"]
    assert counted.how == "the architecture's shapes"


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": 4}'])
def test_a_file_that_is_no_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        find(str(tmp_path))


def test_a_folder_without_config(tmp_path):
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        find(str(tmp_path))


def test_cache_folder_follows_the_hubs_variables():
    assert str(hub_cache({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"})) == "/a"
    assert str(hub_cache({"HF_HOME": "/b", "HOME": "/h"})) == "/b/hub"
    assert str(hub_cache({"XDG_CACHE_HOME": "/x", "HOME": "/h"})) == "/x/huggingface/hub"
    assert str(hub_cache({"HOME": "/h"})) == "/h/.cache/huggingface/hub"


def test_snapshot_is_the_one_of_main(tmp_path):
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


def test_stored_tensors_are_read_from_real_headers(tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "one.safetensors")
    save_file({"c": torch.zeros(())}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert stored_tensors(tmp_path) == {"a": 12, "b": 5, "c": 1}
    (tmp_path / "two.safetensors").unlink()
    assert stored_tensors(tmp_path) is None


def test_files_may_leave_computed_positions_out(tmp_path):
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=512, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(tmp_path)
    counted = count(find(str(tmp_path)), meta=False)
    assert counted.architecture.frozen == 2 * 512 * 16
    assert counted.findings == ()


def test_a_damaged_header_is_no_count(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60))
    assert stored_tensors(tmp_path) is None


def test_clusters():
    made = cluster("a100-80:8", nodes=4)
    assert (made.per_node, made.nodes, made.world, made.memory, made.has_nvlink) == (8, 4, 32, 80.0, True)
    assert cluster("l4").world == 1
    assert not cluster("a100-pcie-80:8").has_nvlink
    assert cluster("a100-80", memory=20).memory == 20.0
    assert cluster("h100:4").note
    assert not cluster("h100-80:4").note
