"""Published files: other names, copies, single experts, other dtypes, and what is of no model at all."""

from __future__ import annotations

import json
import struct

import pytest

from dsrun.models.folder import find
from dsrun.zero.memory.model.count import count, describe
from dsrun.zero.memory.model.stored import stored_architecture
from tests.unit.zero.memory.tiny_models import DECODER, EXPERTS, FALCON, GPT2, LATENT, T5, plain, saved


def published(folder, config, change, dtype="BF16"):
    """A model whose files have the tensors of its family's shapes, as `change` makes them: their headers alone."""
    shapes = change({weight.name: weight.shape for weight in describe(config).tensors()})
    return count(written(folder, config, shapes, dtype), meta=False)


def written(folder, config, shapes, dtype="BF16"):
    """The folder of a model whose files have these matrices, and vectors in BF16."""
    tensors = {
        name: {"dtype": dtype if len(shape) > 1 else "BF16", "shape": shape, "data_offsets": [0, 0]}
        for name, shape in shapes.items()
    }
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (folder / "config.json").write_text(json.dumps(config))
    return find(str(folder))


_SPARSE = DECODER | {"model_type": "mixtral", "num_local_experts": 4, "tie_word_embeddings": False}
_DEEP = DECODER | LATENT | {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}


def _one_by_one(shapes):
    """Mixtral's own files: three matrices an expert."""
    kept = {name: shape for name, shape in shapes.items() if ".experts." not in name}
    for layer in range(2):
        for expert in range(4):
            path = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            kept |= {f"{path}.w1.weight": (96, 64), f"{path}.w2.weight": (64, 96), f"{path}.w3.weight": (96, 64)}
    return kept


def _without_prefix(shapes):
    """GPT-2's own files, which hold its causal masks too."""
    kept = {name.removeprefix("transformer."): shape for name, shape in shapes.items()}
    return kept | {f"h.{layer}.attn.bias": (1, 1, 48, 48) for layer in range(2)}


def _with(name, shape):
    return lambda shapes: {**shapes, name: shape}


PUBLISHED = {
    "names without a prefix, and masks": (GPT2 | {"model_type": "gpt2"}, _without_prefix),
    "a tied table twice": (FALCON | {"model_type": "falcon"}, _with("lm_head.weight", (160, 64))),
    "a copy of the table": (T5 | {"model_type": "t5"}, _with("decoder.embed_tokens.weight", (160, 64))),
    "experts one by one": (_SPARSE, _one_by_one),
    "a layer for further tokens": (_DEEP, _with("model.layers.3.eh_proj.weight", (64, 128))),
}


@pytest.mark.parametrize(("config", "change"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_files_are_counted_as_they_are_loaded(tmp_path, config, change):
    made = published(tmp_path, config, change)
    assert (made.how, made.findings) == ("the headers of the weights", ())
    assert plain(made.architecture) == plain(describe(config))


def test_weights_of_another_model_are_noted_and_the_config_counted(tmp_path):
    made = published(tmp_path, GPT2 | {"model_type": "gpt2"}, lambda shapes: shapes)
    config = json.loads((tmp_path / "config.json").read_text()) | {"n_layer": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    other = count(find(str(tmp_path)), meta=False)
    assert [each.code for each in other.findings] == ["plan.files-differ"]
    assert other.architecture.parameters == describe(config).parameters > made.architecture.parameters


def test_files_that_lack_weights_are_noted_and_the_config_counted(tmp_path):
    """`dsrun train` refuses them, or draws what is missing with --allow-missing-weights."""
    made = published(tmp_path, _DEEP, lambda shapes: dict(list(shapes.items())[:-3]))
    assert [each.code for each in made.findings] == ["plan.files-differ"]
    assert made.architecture.parameters == describe(_DEEP).parameters


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_weights_of_every_float_dtype_count(tmp_path, dtype):
    config = GPT2 | {"model_type": "gpt2"}
    assert published(tmp_path, config, lambda shapes: shapes, dtype).how == "the headers of the weights"


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8"])
def test_matrices_of_another_dtype_are_quantised(tmp_path, dtype):
    config = GPT2 | {"model_type": "gpt2"}
    made = published(tmp_path, config, lambda shapes: shapes, dtype)
    assert ([each.code for each in made.findings], made.how) == (["plan.quantized"], "the architecture's shapes")
    assert dtype in str(made.findings[0].message)
    assert made.architecture.parameters == describe(config).parameters


def test_tensor_that_is_stored_under_two_names_counts_once(tmp_path):
    from safetensors.torch import load_file, save_file

    model = saved(tmp_path, "Roberta", DECODER | {"is_decoder": True})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    table = tensors["roberta.embeddings.word_embeddings.weight"]
    again = {"lm_head.decoder.weight": table.clone(), "lm_head.decoder.bias": tensors["lm_head.bias"].clone()}
    save_file(tensors | again, file)
    counted = count(find(str(tmp_path)), meta=False)
    assert counted.architecture.parameters == sum(each.numel() for each in model.parameters())


_EXPERT = "model.layers.0.mlp.experts.{}.{}.weight"
_LONG = "9" * 5000
_DAMAGED = {
    "an expert of another width": {_EXPERT.format(3, "up_proj"): (8, 64)},
    "an expert too many": {_EXPERT.format(4, "up_proj"): (48, 64)},
    "an expert without sides": {_EXPERT.format(0, "w1"): ()},
    "a layer of 5000 digits": {f"model.layers.{_LONG}.mlp.down_proj.weight": (64, 96)},
    "a block of 5000 digits": {f"encoder.block.{_LONG}.wo.weight": (64, 96)},
}


@pytest.mark.parametrize("added", _DAMAGED.values(), ids=_DAMAGED)
@pytest.mark.parametrize("deep", [0, 1])
def test_names_and_shapes_of_no_model_tell_nothing(tmp_path, added, deep):
    config = DECODER | EXPERTS | {"model_type": "olmoe", "num_nextn_predict_layers": deep}
    layer = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (64, 64), "self_attn.o_proj": (64, 64)}
    shapes = {"model.embed_tokens.weight": (160, 64)}
    for number in (0, 1):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        for expert in range(4):
            path = f"model.layers.{number}.mlp.experts.{expert}"
            shapes |= {f"{path}.{name}.weight": (48, 64) for name in ("gate_proj", "up_proj")}
            shapes |= {f"{path}.down_proj.weight": (64, 48)}
    found = written(tmp_path, config, shapes | added)
    whole = written(tmp_path, config, shapes)
    assert stored_architecture(whole) is not None
    if "experts" in next(iter(added)):
        assert stored_architecture(found) is None
    else:
        assert stored_architecture(found).parameters >= stored_architecture(whole).parameters


def test_quantised_files_and_those_of_another_depth_tell_no_shapes(tmp_path):
    config = GPT2 | {"model_type": "gpt2"}
    shapes = {weight.name: weight.shape for weight in describe(config).tensors()}
    assert stored_architecture(written(tmp_path, config, shapes)) is not None
    assert stored_architecture(written(tmp_path, config | {"n_layer": 3}, shapes)) is None
    packed = config | {"quantization_config": {"quant_method": "gptq"}}
    assert stored_architecture(written(tmp_path, packed, shapes)) is None
