"""`dsrun plan` as a process, without torch."""

from __future__ import annotations

import json
import shlex
import struct

import pytest

from dsrun.recipe.resolve import resolve
from dsrun.zero.memory.model.count import describe

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
LLAMA_405B = LLAMA_8B | {
    "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
}  # fmt: skip
T5 = {
    "model_type": "t5",
    "d_model": 1024,
    "d_ff": 4096,
    "num_layers": 24,
    "num_heads": 16,
    "vocab_size": 32128,
}


@pytest.fixture
def model(tmp_path):
    """Write a config.json; returns its folder."""

    def write(config, name="model"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return write


@pytest.fixture
def plan(dsrun):
    def call(*args):
        return dsrun("plan", "--count", "shapes", *args)

    return call


def as_json(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_plan_table_choice_and_commands(plan, model):
    folder = model(LLAMA_8B)
    done = plan("--model", folder, "--gpus", "a100-80:8", "--max-length", "2048", "--global-batch-size", "64")
    assert done.returncode == 0
    assert "8,030,261,248 parameters" in done.stdout
    assert len(done.stdout.split("\n\n")[2].splitlines()) == 2 + 10
    assert f"dsrun config --zero 3 --precision bf16 --preset balanced --model {folder} > ds.json" in done.stdout
    assert done.stdout.split("\n\n")[1].startswith("recommended: ZeRO-3, ")
    assert done.stderr == ""


def test_plan_with_all_shows_every_strategy(plan, model):
    done = plan("--model", model(T5), "--gpus", "a100-80:8", "--all")
    assert done.returncode == 0
    assert len(done.stdout.split("\n\n")[2].splitlines()) == 2 + 18


def test_plan_json(plan, model):
    arguments = ("--model", model(LLAMA_8B), "--gpus", "a100-80:8", "--format", "json")
    made = as_json(plan(*arguments))
    assert made["version"] == 1
    assert made["model"] | {"name": ""} == {
        "name": "", "type": "llama", "parameters": 8_030_261_248, "trainable": 8_030_261_248,
        "counted_by": "the architecture's shapes",
    }  # fmt: skip
    assert made["cluster"]["gpu_memory"] == 80 * 2**30
    chosen = made["strategies"][made["choice"]]
    assert chosen["verdict"] == "fits"
    assert chosen["gpu_total"] <= made["asked"]["budget"]
    # Each strategy once: four stages, the places DeepSpeed has for each, recomputing or not.
    assert len({(row["stage"], row["offload"], row["checkpointing"]) for row in made["strategies"]}) == 18
    assert as_json(plan(*arguments)) == made


def test_plan_train_command_is_accepted_by_train(plan, model):
    for config, lengths in ((LLAMA_8B, ["--max-length", "512"]), (T5, ["--max-target-length", "64"])):
        for extra in ([], ["--lora", "8"], ["--gradient-checkpointing", "on"], ["--precision", "fp32"]):
            made = as_json(plan("--model", model(config), "--gpus", "h200:2", "--format", "json", *lengths, *extra))
            train = shlex.split(made["commands"][-1])
            assert train[:2] == ["dsrun", "train"]
            chosen = made["strategies"][made["choice"]]
            recipe = resolve(train[2:], None)
            assert recipe.spec.micro_batch_size == chosen["micro_batch"]
            assert bool(recipe.hf.get("gradient_checkpointing")) == chosen["checkpointing"]
            assert recipe.spec.lora == (8 if "--lora" in extra else None)


def test_plan_config_command_is_accepted_by_config(plan, model, dsrun):
    for gpus, extra in (("a100-80:8", []), ("l4:8", ["--host-memory", "600"]), ("a100-80:2", [])):
        made = as_json(plan("--model", model(LLAMA_8B), "--gpus", gpus, "--format", "json", *extra))
        config = shlex.split(made["commands"][0].removesuffix(" > ds.json"))
        done = dsrun(*config[1:])
        assert done.returncode == 0, done.stderr
        chosen = made["strategies"][made["choice"]]
        assert json.loads(done.stdout)["zero_optimization"]["stage"] == chosen["stage"]


@pytest.mark.parametrize(("preset", "share"), [("conservative", 0.5), ("balanced", 0.65), ("aggressive", 0.9)])
def test_plan_presets_are_shares_of_gpu_memory(plan, model, preset, share):
    made = as_json(plan("--model", model(T5), "--gpus", "l4:2", "--preset", preset, "--format", "json"))
    assert made["asked"]["budget"] == int(share * 24 * 2**30)
    fitting = [row for row in made["strategies"] if row["verdict"] == "fits"]
    assert fitting
    assert all(row["gpu_total"] <= share * 24 * 2**30 for row in fitting)


def test_plan_405b_over_512_gpus(dsrun, model):
    arguments = ("--model", model(LLAMA_405B), "--gpus", "h100-80:8", "--nodes", "64", "--max-length", "4096")
    done = dsrun("plan", "--count", "shapes", "--format", "json", *arguments, python=("-X", "importtime"))
    made = as_json(done)
    assert made["strategies"][made["choice"]]["stage"] == 3
    assert not {"torch", "numpy", "transformers"} & {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }


def test_plan_nothing_fits_lists_what_would(plan, model):
    """What the plan says would fit does fit."""
    args = ("--model", model(LLAMA_8B), "--gpus", "l4:2", "--host-memory", "64", "--format", "json")

    def verdict(*more):
        made = json.loads(plan(*args, *more).stdout)
        return None if made["choice"] is None else made["strategies"][made["choice"]]["verdict"]

    done = plan(*args, "--max-length", "32768")
    assert done.returncode == 3
    made = json.loads(done.stdout)
    assert (made["choice"], made["commands"]) == (None, [])
    advice = "\n".join(made["would_fit"])
    tokens = int(advice.partition("samples of at most ")[2].partition(" ")[0])
    assert verdict("--max-length", str(tokens)) == "fits"
    assert verdict("--max-length", str(tokens + 64)) != "fits"
    size = int(advice.partition("GPUs of ")[2].partition(" ")[0])
    assert verdict("--max-length", "32768", "--gpu-memory", str(size)) == "fits"
    assert verdict("--max-length", "32768", "--gpu-memory", str(size - 1)) != "fits"


def test_plan_seq2seq_lengths(plan, model):
    folder = model(T5)
    made = as_json(
        plan(
            "--model",
            folder,
            "--gpus",
            "l4",
            "--max-length",
            "256",
            "--max-target-length",
            "64",
            "--format",
            "json",
        )
    )
    assert (made["asked"]["source_length"], made["asked"]["length"]) == (256, 64)


def test_plan_max_target_length_without_encoder(plan, model):
    """A side that a decoder-only model does not have is named."""
    args = ("--gpus", "a100-80:8", "--max-target-length", "64")
    assert "no --max-target-length" in plan("--model", model(LLAMA_8B), *args).stderr
    assert "no --max-" not in plan("--model", model(T5, "t5"), *args).stderr


@pytest.mark.parametrize("flag", ["--max-source-length", "--max-target-length", "--max-length"])
def test_plan_max_length_beyond_positions(plan, model, flag):
    bart = {"model_type": "bart", "max_position_embeddings": 128, "encoder_layers": 1, "decoder_layers": 1}
    assert plan("--model", model(bart), "--gpus", "l4", flag, "128").returncode == 0
    done = plan("--model", model(bart), "--gpus", "l4", flag, "129")
    assert done.returncode == 2
    assert f"{flag} 129: bart has positions for 128 tokens" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "a100-80:0"), "0 GPUs in a node"),
        (("--gpus", "a100-80:-2"), "-2 GPUs in a node"),
        (("--gpus", ":4"), "names no GPU"),
        (("--gpus", "warp9000:4"), "no GPU called 'warp9000' is known"),
        (("--gpus", "l4", "--max-length", str(10**12)), "--max-length 1000000000000"),
        (("--gpus", "l4", "--max-length", "0"), "--max-length 0"),
        (("--gpus", "l4", "--nodes", "0"), "--nodes 0"),
        (("--gpus", "l4", "--gpu-memory", "-1"), "--gpu-memory -1"),
        (("--gpus", "l4", "--host-memory", "0"), "--host-memory 0"),
        (("--gpus", "l4", "--lora", "0"), "--lora 0"),
        (("--gpus", "l4:4", "--global-batch-size", "6"), "does not divide by 4"),
    ],
)
def test_plan_usage_errors_are_one_line(plan, model, arguments, message):
    done = plan("--model", model(LLAMA_8B), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_plan_unknown_gpu_with_gpu_memory(plan, model):
    made = as_json(plan("--model", model(T5), "--gpus", "warp9000:4", "--gpu-memory", "48", "--format", "json"))
    assert made["cluster"]["gpu_memory"] == 48 * 2**30


def test_plan_ambiguous_gpu_memory_size_gives_note(plan, model):
    """A GPU name for several memory sizes takes one and says so."""
    done = plan("--model", model(T5), "--gpus", "a100:2", "--format", "json")
    assert as_json(done)["cluster"]["gpu_memory"] == 40 * 2**30
    assert "with 40 GiB; there are some with 80 GiB" in done.stderr


def test_plan_precision_for_t5_and_v100(plan, model):
    """fp16 is refused for T5, and bf16 not taken on a V100."""
    done = plan("--model", model(T5), "--gpus", "v100", "--precision", "fp16")
    assert done.returncode == 2
    assert "overflow in fp16" in done.stderr
    volta = ("--gpus", "v100-32", "--format", "json")
    assert as_json(plan("--model", model(T5), *volta))["asked"]["precision"] == "fp32"
    assert as_json(plan("--model", model(LLAMA_8B), *volta, "--lora", "4"))["asked"]["precision"] == "fp16"


def test_plan_hub_model_from_cache(plan, tmp_path, environ):
    """A Hub model is read from the cache, or is missing."""
    environ["HF_HOME"] = str(tmp_path)
    missing = plan("--model", "org/none", "--gpus", "l4")
    assert missing.returncode == 4
    assert "only a local folder or a Hub model already in the cache" in missing.stderr
    repository = tmp_path / "hub" / "models--org--some"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps(T5))
    made = as_json(plan("--model", "org/some", "--gpus", "l4", "--format", "json"))
    assert made["model"]["parameters"] == describe(T5).parameters


def test_plan_weights_that_differ_from_config(plan, model, tmp_path):
    folder = model(T5)
    header = json.dumps({"a": {"dtype": "F32", "shape": [10, 10], "data_offsets": [0, 400]}}).encode()
    (tmp_path / "model" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    done = plan("--model", folder, "--gpus", "l4", "--format", "json")
    assert [each["code"] for each in as_json(done)["findings"]] == ["plan.files-differ"]
    assert "hold 100 elements" in done.stderr


def test_plan_prints_from_scratch_without_weights(plan, model, tmp_path):
    """A folder with a config alone can be planned for; loading weights from it would be refused."""
    folder = model(T5)
    assert "--from-scratch" in plan("--model", folder, "--gpus", "a100-80:1").stdout
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert "--from-scratch" not in plan("--model", folder, "--gpus", "a100-80:1").stdout


def test_long_row_takes_no_padding_mask(plan, model):
    """One row of 128k tokens fits, whatever the attention; flash attention is named in the command."""
    flags = (
        "--gpus",
        "h200:8",
        "--max-length",
        "131072",
        "--micro-batch-size",
        "1",
        "--zero",
        "3",
        "--use-liger-kernel",
    )
    folder = model(LLAMA_8B | {"max_position_embeddings": 131072})
    sdpa, flash = (as_json(plan("--model", folder, *flags, "--attention", each, "--format", "json"))
                   for each in ("sdpa", "flash"))  # fmt: skip
    assert [row["gpu_total"] for row in sdpa["strategies"]] == [row["gpu_total"] for row in flash["strategies"]]
    assert (flash["asked"]["attention"], flash["asked"]["packed"]) == ("flash", False)
    assert "--attn-implementation flash_attention_2" in flash["commands"][-1]


def test_plan_with_teacher(plan, model):
    """It is counted, and the commands that follow train with it."""
    teacher, student = model(LLAMA_8B, "teacher"), model(LLAMA_8B | {"num_hidden_layers": 2}, "student")
    common = ("--model", student, "--gpus", "a100-80:8", "--max-length", "1024", "--format", "json")
    alone, beside = as_json(plan(*common)), as_json(plan(*common, "--teacher", teacher))
    assert beside["choice"] != alone["choice"]
    done = plan(*common[:-2], "--teacher", teacher)
    assert f"--task distill --teacher {shlex.quote(teacher)}" in done.stdout


@pytest.mark.parametrize(
    ("more", "named"),
    [(["--calibrate"], "--calibrate"), (["--sequence-parallel", "2"], "--sequence-parallel"), ([], "--teacher")],
)
def test_plan_refuses_of_a_teacher_what_train_would(plan, model, more, named):
    """Else the commands that it prints would be refused."""
    teacher = model(LLAMA_8B, "teacher") if more else model(T5, "teacher")
    done = plan("--model", model(LLAMA_8B), "--teacher", teacher, "--gpus", "a100-80:8", *more)
    assert done.returncode == 2
    assert named in done.stderr


def test_plan_takes_no_demo_for_a_teacher(plan, model):
    assert plan("--model", model(LLAMA_8B), "--teacher", "demo-llama", "--gpus", "a100-80:8").returncode == 2


def test_plan_without_gpus_gives_smallest_machines(plan, model):
    """Here is no GPU. What is printed for a machine fits it."""
    found = as_json(plan("--model", model(LLAMA_8B), "--max-length", "2048", "--format", "json"))["smallest"]
    assert {each["train"] for each in found} == {"full", "full + cpu", "LoRA", "QLoRA"}
    assert next(each["gpus"] for each in found if each["train"] == "QLoRA") == "GeForce RTX 4090"
    one = next(each for each in found if each["train"] == "LoRA")
    gpus = f"{one['gpus']}:{one['count'] // one['nodes']}"
    again = ("--lora", "16", "--zero", one["flags"]["zero"], "--max-length", "2048", "--format", "json")
    made = as_json(plan("--model", model(LLAMA_8B), "--gpus", gpus, *again))
    assert any(row["gpu_total"] == one["gpu_bytes"] for row in made["strategies"])
    assert "--quantization 4bit" in plan("--model", model(LLAMA_8B)).stdout


def test_plan_without_model_gives_largest_models(plan):
    found = as_json(plan("--gpus", "h100-80:8", "--format", "json"))["largest"]
    assert {each["train"]: each["model"] for each in found}["full"] == "Qwen2.5-14B"
    assert "Qwen2.5-14B" in plan("--gpus", "h100-80:8").stdout


def test_plan_gives_longest_rows(plan, model):
    made = as_json(plan("--model", model(LLAMA_8B), "--gpus", "h100-80:8", "--format", "json"))
    assert made["longest"]["QLoRA"] > made["longest"]["full"] > 2048


@pytest.mark.parametrize(
    "arguments", [(), ("--gpus", "h100-80:8", "--calibrate"), ("--gpus", "h100-80:8", "--deepspeed", "ds.json")]
)
def test_plan_without_model_and_gpus_is_refused(plan, arguments):
    done = plan(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--model" in done.stderr


def test_plan_of_a_config_needs_gpus(plan, model):
    done = plan("--model", model(LLAMA_8B), "--deepspeed", "ds.json")
    assert done.returncode == 2
    assert "--gpus" in done.stderr


def test_plan_quantization_needs_lora(plan, model):
    done = plan("--model", model(LLAMA_8B), "--gpus", "h100:1", "--quantization", "4bit")
    assert done.returncode == 2
    assert "--lora" in done.stderr


def test_plan_for_the_stock_trainer(plan, model):
    """More for its loss, its arguments in place of `dsrun train`, and with --explain each part's formula and source."""
    asked = (
        "--model",
        model(LLAMA_8B),
        "--gpus",
        "h100-80:8",
        "--zero",
        "3",
        "--micro-batch-size",
        "1",
        "--max-length",
        "8192",
    )
    ours, theirs = (
        as_json(plan(*asked, "--trainer", name, "--explain", "--format", "json")) for name in ("dsrun", "hf")
    )
    sizes = [{part["name"]: part["size"] for part in made["explain"]} for made in (ours, theirs)]
    assert sizes[1]["logits and loss"] == 12 * 8192 * LLAMA_8B["vocab_size"] > sizes[0].get("logits and loss", 0)
    assert ours["arguments"] is None
    assert theirs["arguments"].startswith("TrainingArguments(deepspeed='ds.json', bf16=True")
    assert [line.split()[1] for line in theirs["commands"]] == ["config"]
    assert all(part["source"] for part in theirs["explain"])


@pytest.mark.parametrize(
    ("kind", "args", "named"),
    [
        ("llama", ("--trainer", "hf", "--task", "dpo"), "--trainer hf"),
        ("llama", ("--trainer", "trl", "--calibrate"), "--calibrate"),
        ("t5", ("--trainer", "trl"), "--trainer trl"),
        ("t5", ("--task", "dpo"), "--task dpo"),
    ],
)
def test_plan_of_other_trainers_refuses(plan, model, kind, args, named):
    done = plan("--model", model(T5 if kind == "t5" else LLAMA_8B), "--gpus", "h100-80:1", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr


def test_plan_quote_needs_one_amount(plan, tmp_path):
    """Of a run that has logged its steps; price and hours agree."""
    rows = [{"time": f"2026-11-28T00:00:{at:02}.000Z", "elapsed": at, "step": at, "loss": 1.0, "tokens": 500 * at}
            for at in range(1, 11)]  # fmt: skip
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run" / "events.jsonl").write_text("")
    (tmp_path / "run" / "run.json").write_text('{"world_size": 1, "gpus": ["NVIDIA H200"]}')
    quote = ("--quote", str(tmp_path / "run"))
    made = as_json(plan(*quote, "--tokens", "18M", "--price", "2", "--format", "json"))
    assert (made["tokens"], made["hours"], made["cost"]) == (18_000_000, pytest.approx(10), pytest.approx(20))
    for amounts in ((), ("--epochs", "3"), ("--tokens", "1B", "--epochs", "3")):
        assert plan(*quote, *amounts).returncode == 2


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("train", "--model", "m"), "--measure"),
        (("--measure", "60s", "--tokens", "1B"), "train"),
        (("--measure", "60s", "--tokens", "1B", "--", "python", "x.py"), "python"),
        (("--measure", "60s", "--", "train", "--model", "m"), "--tokens"),
        (("--measure", "60s", "--tokens", "1B", "--quote", "run", "--", "train", "--model", "m"), "--quote"),
        (("--measure", "60", "--tokens", "1B", "--", "train", "--model", "m"), "60s"),
        (("--measure", "60s", "--tokens", "1B", "--lora", "8", "--", "train", "--model", "m"), "after --"),
        (("--quote", "run", "--tokens", "1B", "--gpus", "h100:8"), "--price"),
        (("--measure", "60s", "--tokens", "many", "--", "train", "--model", "m"), "--tokens"),
    ],
)
def test_plan_measure_refuses_what_names_no_training(plan, args, named):
    """Before any training is begun."""
    done = plan(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
