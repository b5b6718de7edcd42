"""`dsrun export`: Hugging Face folders from every kind of checkpoint, in bounded memory, and refused when in doubt."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from dsrun.cli.export import ENVIRONMENT
from dsrun.errors import ToolError, UsageError
from dsrun.train.checkpoint.weight_files import ExportWeight, write_file
from dsrun.train.checkpoint.zero_shards import ZeroCheckpoint
from dsrun.train.export import export_model as run
from dsrun.train.export import verify
from dsrun.train.export.export_model import ExportRequest
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, make_tokenizer, many_runs
from tests.zero_checkpoints import write_zero

pytestmark = pytest.mark.train

STAGES = {
    "llama-z3-bf16": ("llama", ["--zero", "3", "--bf16", "true"]),
    "llama-z2-bf16": ("llama", ["--zero", "2", "--bf16", "true"]),
    "t5-z3": ("t5", ["--zero", "3"]),
    "t5-z2-cpu": ("t5", ["--zero", "2", "--offload", "cpu"]),
    "t5-ddp": ("t5", ["--zero", "0"]),
    "llama-lora": ("llama", ["--zero", "3", "--lora", "4"]),
    "t5-lora": ("t5", ["--zero", "1", "--lora", "2", "--bf16", "true"]),
}


@pytest.fixture(scope="module")
def runs(tiny, pairs, tmp_path_factory):
    """Finished runs of two steps on two ranks, with a checkpoint at each."""
    root = tmp_path_factory.mktemp("export")
    shape = ["--train-file", pairs["train"], *SHORT, "--max-steps", "2", "--save-steps", "1"]
    argvs = [
        ["--model", tiny[model], *shape, *flags, "--output", str(root / name)]
        for name, (model, flags) in STAGES.items()
    ]
    many_runs(argvs, ranks=2, scratch=root)
    return root


def export(source, to, *, dtype=None, merge=False, limit=10**9, force=False, notify=lambda _: None):
    run.export(ExportRequest(Path(source), Path(to), dtype, merge, limit, force), notify=notify)
    return {name: value for file in sorted(Path(to).glob("*.safetensors")) for name, value in load_file(file).items()}


def saved(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", [name for name in STAGES if "lora" not in name])
def test_exported_weights_equal_checkpoint(runs, name, tmp_path):
    checkpoint = runs / name / "checkpoint-1"
    weights = export(checkpoint, tmp_path / "out")
    expected = saved(checkpoint)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in weights.items())
    auto = AutoModelForSeq2SeqLM if "t5" in name else AutoModelForCausalLM
    model = auto.from_pretrained(tmp_path / "out")
    assert model.dtype == (torch.bfloat16 if "bf16" in name else torch.float32)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("w1 w2")["input_ids"]
    assert not (tmp_path / "out" / "training_args.bin").exists()
    assert not (tmp_path / "out" / "zero_to_fp32.py").exists()


@pytest.mark.parametrize("name", ["llama-z3-bf16", "llama-z2-bf16"])
def test_export_fp32_takes_zero_master_weights(runs, name, tmp_path):
    """An fp32 export takes the master weights that ZeRO trains, not the rounded bf16 ones."""
    checkpoint = runs / name / "checkpoint-2"
    weights = export(checkpoint, tmp_path / "out", dtype="fp32")
    masters = ZeroCheckpoint(checkpoint)
    rounded = saved(checkpoint)
    assert weights.keys() == rounded.keys()
    for key, value in weights.items():
        assert torch.equal(value, masters.read(key))
        assert torch.equal(value.bfloat16(), rounded[key])
    assert any((value.bfloat16().float() != value).any() for value in weights.values())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_export_to_other_dtype_in_small_shards(runs, tmp_path):
    checkpoint = runs / "t5-z3" / "checkpoint-2"
    weights = export(checkpoint, tmp_path / "out", dtype="fp16", limit=30_000)
    expected = saved(checkpoint)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, expected[key].half()) for key, value in weights.items())
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 35_000 for file in files)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").dtype == torch.float16


@pytest.mark.parametrize("name", ["llama-z3-bf16", "t5-z3", "t5-z2-cpu"])
def test_export_from_zero_shards_alone(runs, name, tmp_path):
    """As saved by plain DeepSpeed without gathering: no model.safetensors, no manifest."""
    checkpoint = shutil.copytree(runs / name / "checkpoint-2", tmp_path / "checkpoint-2")
    expected = saved(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "manifest.json").unlink()
    said = []
    weights = export(checkpoint, tmp_path / "out", notify=said.append)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in weights.items())
    assert "ranks' shards" in said[0]


@pytest.mark.parametrize("placeholder", [lambda value: value.new_empty(0), lambda value: value.reshape(-1)[:7].clone()])
def test_export_rejects_zero3_empty_placeholder_weights(runs, tmp_path, placeholder):
    """Placeholders of ZeRO-3 are never exported: the shards are read instead, or the export is refused."""
    checkpoint = shutil.copytree(runs / "t5-z3" / "checkpoint-2", tmp_path / "checkpoint-2")
    expected = saved(checkpoint)
    empty = {name: placeholder(value) if value.dim() == 2 else value for name, value in expected.items()}
    save_file(empty, checkpoint / "model.safetensors", metadata={"format": "pt"})
    assert all(torch.equal(value, expected[key]) for key, value in export(checkpoint, tmp_path / "out").items())
    shutil.rmtree(checkpoint / "global_step2")
    (checkpoint / "latest").unlink()
    with pytest.raises(UsageError, match="zero3_empty_weights"):
        export(checkpoint, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "out"]


@pytest.mark.parametrize("name", ["llama-lora", "t5-lora"])
def test_export_lora_adapter_or_merged_model(runs, name, tmp_path):
    """A LoRA adapter is exported by itself or merged into its base model."""
    checkpoint = runs / name / "checkpoint-2"
    adapter = export(checkpoint, tmp_path / "adapter")
    expected = load_file(checkpoint / "adapter_model.safetensors")
    assert adapter.keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in adapter.items())
    from peft import PeftModel

    auto = AutoModelForSeq2SeqLM if "t5" in name else AutoModelForCausalLM
    base_name = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    before = auto.from_pretrained(base_name).state_dict()
    # In fp32 the merge takes the weights that ZeRO trains, so peft is given them too.
    export(checkpoint, tmp_path / "fp32", dtype="fp32")
    theirs = PeftModel.from_pretrained(auto.from_pretrained(base_name), str(tmp_path / "fp32"))
    expected = theirs.merge_and_unload().state_dict()
    merged = export(checkpoint, tmp_path / "merged", merge=True, dtype="fp32")
    assert any(not torch.equal(value, before[key]) for key, value in merged.items())
    assert all(torch.allclose(value, expected[key], atol=1e-6) for key, value in merged.items())
    auto.from_pretrained(tmp_path / "merged")


def test_merge_lora_without_adapter_is_refused(runs, tmp_path):
    with pytest.raises(UsageError, match="contains no LoRA adapter"):
        export(runs / "t5-z3" / "checkpoint-2", tmp_path / "out", merge=True)
    done = dsrun_export(runs / "t5-z3", "--to", tmp_path / "out", "--merge-lora")
    assert (done.returncode, done.stdout) == (2, ""), "a finished run's model is no merged one unless it had an adapter"
    assert "contains no LoRA adapter" in done.stderr
    assert not (tmp_path / "out").exists()


def test_export_into_nonempty_folder_needs_force(runs, tmp_path):
    """A folder that is not empty is replaced by --force alone."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    source = runs / "t5-ddp" / "model"
    with pytest.raises(UsageError, match="is not empty"):
        export(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    export(source, tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "mine").exists()


def test_export_verification_rejects_wrong_weights(runs, tmp_path):
    """The proof itself: a weight too few is found by loading, a wrong one by the forward pass."""
    out = tmp_path / "out"
    export(runs / "t5-z3" / "checkpoint-2", out)
    weights = saved(out)
    config = verify.read_config(out)
    expected = verify.logits_of_weights(config, weights, lambda model: model)
    found = verify.logits_of_export(out)
    assert verify.compare(found, expected, [torch.float32]) < 1e-5
    name = "decoder.block.1.layer.1.EncDecAttention.v.weight"
    swapped = {**weights, name: weights[name].T.contiguous()}
    save_file(swapped, out / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ToolError, match="does not compute what"):
        verify.compare(verify.logits_of_export(out), expected, [torch.float32])
    save_file(
        {key: value for key, value in weights.items() if key != name},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ToolError, match=f"missing keys: {name}"):
        verify.logits_of_export(out)


def test_safetensors_writer_roundtrip(tmp_path):
    """The safetensors library reads what was written, and a placeholder is never written."""
    values = {
        "a": torch.randn(3, 5).bfloat16(), "b": torch.arange(7), "c": torch.tensor(2.5), "d": torch.randn(4) > 0,
        "e": torch.randn(2, 3),
    }  # fmt: skip
    weights = [
        ExportWeight(name, value.dtype, tuple(value.shape), lambda value=value: value) for name, value in values.items()
    ]
    write_file(tmp_path / "x.safetensors", weights)
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == values.keys()
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in values.items())
    with pytest.raises(ToolError, match="a placeholder"):
        write_file(tmp_path / "y.safetensors", [ExportWeight("a", torch.float32, (2,), lambda: torch.empty(0))])


def dsrun_export(*args):
    argv = [sys.executable, "-m", "dsrun", "export", *map(str, args)]
    return HEAVY.run(argv, capture_output=True, text=True)


def test_export_of_run_takes_newest_verified_checkpoint(runs, tmp_path):
    """Of a run, the newest checkpoint that verifies is exported; a damaged one is passed over."""
    run = shutil.copytree(runs / "t5-z3", tmp_path / "run")
    (run / "FINISHED").unlink()
    file = next((run / "checkpoint-2" / "global_step2").glob("*_optim_states.pt"))
    file.write_bytes(file.read_bytes()[:-1])
    done = dsrun_export(run, "--to", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n"), done.stderr
    skipped, unfinished, begun = [line for line in done.stderr.splitlines() if "…" not in line]
    assert "skipped checkpoint-2: global_step2/" in skipped
    assert "exporting checkpoint-1" in unfinished
    assert begun == f"exporting {run / 'checkpoint-1'} to {tmp_path / 'out'}"
    expected = saved(run / "checkpoint-1")
    assert all(torch.equal(value, expected[key]) for key, value in saved(tmp_path / "out").items())
    done = dsrun_export(run / "checkpoint-2", "--to", tmp_path / "other")
    assert (done.returncode, done.stdout) == (3, "")
    assert file.name in done.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.exhaustive
def test_export_peak_memory_is_bounded_by_shard_size(tmp_path):
    """A ZeRO-3 checkpoint of 300 MB against one of a few kB: the difference in peak memory is below 1.5 shards."""

    def peak(name, **size):
        config = LlamaConfig(vocab_size=64, num_attention_heads=4, max_position_embeddings=64, **size)
        model = LlamaForCausalLM(config)
        folder = tmp_path / name
        write_zero(folder, [dict(model.named_parameters())], stage=3, ranks=2, states=())
        config.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        total = sum(parameter.nbytes for parameter in model.parameters())
        del model
        request = {
            "source": str(folder), "to": str(tmp_path / f"{name}-out"), "dtype": "bf16", "merge_lora": False,
            "limit": SHARD, "force": False,
        }  # fmt: skip
        # Not ru_maxrss: it begins with the memory of this process, from which the child is forked.
        code = (
            "import sys; from pathlib import Path; from dsrun.train.export.export_model import ExportRequest, export\n"
            "export(ExportRequest.from_json(sys.argv[1]), notify=print); print(Path('/proc/self/status').read_text())"
        )
        argv = [sys.executable, "-c", code, json.dumps(request)]
        env = {**os.environ, **ENVIRONMENT}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert (tmp_path / f"{name}-out").is_dir(), done.stderr
        return int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) * 1024, total

    small, _ = peak("small", hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    large, total = peak("large", hidden_size=768, intermediate_size=3072, num_hidden_layers=8)
    assert total > 2.5 * SHARD
    assert large - small < 1.5 * SHARD
    assert len(list((tmp_path / "large-out").glob("*.safetensors"))) > 1


SHARD = 100 * 10**6
