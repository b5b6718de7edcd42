import pytest

from dsrun.errors import UsageError
from dsrun.recipe.recipe import ranges
from dsrun.recipe.resolve import resolve


@pytest.fixture
def notices(tmp_path):
    return lambda *argv: resolve(argv, tmp_path).notices


def test_missing_model_error_names_flag_and_demos(notices):
    with pytest.raises(UsageError) as caught:
        notices("--zero", "2")
    assert caught.value.message == "no model to train"
    assert "--model" in caught.value.fix
    assert "demo-t5" in caught.value.fix


def test_model_type_or_config_name_instead_of_model(notices):
    assert notices("--model_type", "gpt2") == notices("--config_name", "gpt2") == ()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--zero 4", "--zero: '4' is not one of 0, 1, 2, 3, auto"),
        ("--zero=-1", "--zero: '-1' is not one of 0, 1, 2, 3, auto"),
        ("--zero 2 --deepspeed ds.json", "--zero and --deepspeed both configure ZeRO"),
        ("--offload cpu --deepspeed ds.json", "--offload and --deepspeed both configure ZeRO"),
        ("--offload cpu --zero 0", "--offload cpu needs ZeRO"),
        ("--offload nvme --zero 2 --nvme-path /d", "--offload nvme needs --zero 3"),
        ("--offload nvme --zero 3", "--offload nvme needs a folder"),
        ("--zero 1 --fsdp", "--fsdp and ZeRO both shard the model ("),
        ("--fsdp", "--fsdp and ZeRO both shard the model, and --zero 2 is the default ("),
        (
            "--micro-batch-size 2 --per_device_train_batch_size 4",
            "--micro-batch-size 2 and --per_device_train_batch",
        ),
        (
            "--global-batch-tokens 4096 --global-batch-size 8",
            "--global-batch-size and --global-batch-tokens both set the global batch",
        ),
        ("--model-config n2", "--config-override: 'n2' is not KEY=VALUE"),
        ("--config-override =2", "--config-override: '=2' is not KEY=VALUE"),
        ("--config-override a..b=2", "--config-override: 'a..b=2' is not KEY=VALUE"),
        ("--zero 2 --set a=1 gradient_clipping=5", "--set a=1 gradient_clipping=5: stage"),
        ("--zero 2 --zenflow", "--zenflow splits the step"),
        ("--rope-scaling yarn", "--rope-scaling: 'yarn' is not TYPE:FACTOR"),
        ("--rope-scaling yarn:0.5", "--rope-scaling: 'yarn:0.5' is not TYPE:FACTOR"),
        ('--rope-scaling {"factor":2}', "--rope-scaling: the object names no rope_type"),
        ('--rope-scaling {"type":"yarn","factor":"4x"}', "--rope-scaling: factor '4x' is not a number"),
        ("--zero 0 --hpz 2", "--hpz configures DeepSpeed, and --zero 0 trains without it"),
        ("--zero 0 --set zero_optimization.stage=1", "--set configures DeepSpeed"),
        ("--optim muon --zero 0", "--optim muon is DeepSpeed's"),
        ("--optim muon --lr-for lm_head=1e-5", "--lr-for: --optim muon groups the parameters itself"),
        ("--lora 4 --lora-target-parameters p --dora", "--lora-target-parameters: peft has no --dora"),
        ("--lora 4 --lora-target-parameters p --lora-dropout 0.1", "--lora-target-parameters: peft has no --lora-dr"),
        ("--activation-offload --zero 3", "--activation-offload: without checkpoints of layers"),
        ("--activation-offload --torch_compile", "--activation-offload: what --torch_compile has compiled"),
        ("--streaming", "--streaming needs to know when to stop"),
        ("--streaming --do_train --do_eval", "--streaming needs to know when to stop"),
        ("--ignore_pad_token_for_loss false", "--ignore-pad-token-for-loss: padding in the loss"),
        ("--bf16 --fp16", "--bf16 and --fp16 exclude each other"),
        ("--task dpo", "--task dpo needs data with chosen and rejected answers"),
        ("--task dpo --train-file a.jsonl --predict_with_generate", "--predict_with_generate: with --task dpo nothing"),
        (
            "--task dpo --train-file a.jsonl --label_smoothing_factor 0.1",
            "--label_smoothing_factor smooths the targets of cross entropy",
        ),
        ("--task dpo --train-file a.jsonl --dpo-label-smoothing 0.5", "--dpo-label-smoothing: 0.5 is not from 0 to"),
        ("--task distill", "--task distill needs a model to learn from"),
        ("--task distill --teacher m --distill-loss jsd --distill-beta 1", "--distill-beta: 1.0 is not from 0.001 to"),
        ("--task distill --teacher m --long-context 64 --zero 2", "--long-context"),
        ("--task dpo --train-file a.jsonl --beta 0", "--dpo-beta: 0.0 is not at least 1e-06"),
        ("--quantization 4bit", "--quantization 4bit: quantised weights cannot be trained, only adapters on them"),
        ("--quantization 4bit --lora 4 --from-scratch", "--quantization 4bit: only trained weights can be quantised"),
        ("--quantization 4bit --lora 4 --zero auto", "--quantization 4bit: --zero auto counts the weights as they are"),
        ("--quantization 8bit --lora 4 --zero 3", "--quantization 8bit: ZeRO-3 cannot shard integers"),
        ("--quantization 4bit --lora 4 --zero 3 --offload cpu", "--quantization 4bit: --offload cpu would move the"),
        ("--quantization 4bit --lora 4 --zero 0 --fsdp", "--quantization 4bit: dsrun trains quantised models under"),
        ("--fp8 --fp16", "--fp8: what is not in FP8 is in bf16, and --fp16 true trains in another precision"),
        ("--fp8 --bf16 false", "--fp8: what is not in FP8 is in bf16, and --bf16 false trains in another precision"),
        ("--fp8 --zero 3", "--fp8: torchao keeps each gathered weight until the backward pass"),
        ("--fp8 --lora 4 --quantization 4bit", "--fp8 and --quantization: quantised weights are not multiplied in FP8"),
        ("--fp8 --fsdp --zero 0", "--fp8: dsrun trains in FP8 under ZeRO and DDP only"),
        ("--layer-lr-decay 1.5", "--layer-lr-decay: 1.5 is not from 0 to 1"),
        ("--lr-for lm_head", "--lr-for: 'lm_head' is not PATTERN=RATE"),
        ("--lr-for lm_head=0", "--lr-for: 'lm_head=0' is not PATTERN=RATE with a rate above 0"),
        ("--lr-for lm_head=1e-5 --optim lomo", "--lr-for: --optim lomo groups the parameters itself"),
        ("--layer-lr-decay 0.9 --fsdp --zero 0", "--layer-lr-decay: --fsdp makes one parameter of those"),
        ("--lora 8 --loraplus-lr-ratio 0.5", "--loraplus-lr-ratio: 0.5 is not at least 1"),
    ],
)
def test_invalid_flag_combinations_rejected(notices, argv, message):
    with pytest.raises(UsageError) as caught:
        notices("--model", "m", *argv.split())
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "argv",
    [
        "--zero 0",
        "--offload cpu",
        "--zero 1 --offload cpu",
        "--zero 3 --offload nvme --nvme-path /d",
        "--fsdp --zero 0",
        "--micro-batch-size 4 --per_device_train_batch_size 4",
        "--from-scratch --model-config n=2 name=a=b",
        "--config-override rope_parameters.factor=4 --rope-scaling yarn:4",
        "--zero 3 --hpz 2 --qwz --set zero_optimization.sub_group_size=1e8",
        "--optim muon --muon-lr 0.01",
        "--lora 4 --rslora --lora-target-parameters mlp.experts.down_proj",
        "--activation-offload --zero 3 --gradient_checkpointing",
        "--streaming --max_steps 10",
        "--streaming --do_eval",
        "--ignore_pad_token_for_loss true",
        "--bf16 --no-fp16",
        "--task causal-lm --predict_with_generate",
        "--predict_with_generate",
        "--lora 4 --lora_dropout 0.5",
        "--task dpo --train-file a.jsonl --dpo-beta 0.2 --dpo-label-smoothing 0.1",
    ],
)
def test_valid_flag_combinations_accepted(notices, argv):
    assert notices("--model", "m", *argv.split()) == ()


def test_model_config_overrides_with_model_type(notices):
    assert notices("--model_type", "gpt2", "--config_overrides", "n_embd=8", "--model-config", "n_head=2") == ()


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("max_length", 1, 9_999_999),
        ("block_size", 1, 9_999_999),
        ("val_max_target_length", 1, 9_999_999),
        ("generation_max_length", 1, 9_999_999),
        ("global_batch_size", 1, None),
        ("micro_batch_size", 1, None),
        ("per_device_train_batch_size", 1, None),
        ("max_train_samples", 1, None),
        ("nproc", 1, None),
        ("lora", 1, None),
        ("master_port", 1, 65535),
        ("validation_split_percentage", 0, 99),
        ("learning_rate", 0, None),
        ("seed", 0, 2**32 - 1),
        ("data_seed", 0, None),
    ],
)
def test_flag_value_ranges(notices, name, low, high):
    argv = ("--model", "m", f"--{name}")
    assert notices(*argv, str(low)) == ()
    with pytest.raises(UsageError, match=f": -?{low - 1}(\\.0)? is not "):
        notices(*argv, str(low - 1))
    if high is not None:
        assert notices(*argv, str(high)) == ()
        with pytest.raises(UsageError, match=f": {high + 1} is not from {low} to {high}"):
            notices(*argv, str(high + 1))


@pytest.mark.parametrize("flags", ["num_train_epochs inf", "label_smoothing_factor 1", "adam_beta2 1.0"])
def test_values_that_fail_in_worker_out_of_range(notices, flags):
    """Values that would fail in the worker are out of range."""
    with pytest.raises(UsageError, match="is not from 0 to "):
        notices("--model", "m", *f"--{flags}".split())


@pytest.mark.parametrize("dropout", ["1", "-0.1"])
def test_lora_dropout_below_one(notices, dropout):
    with pytest.raises(UsageError, match=r"--lora-dropout: .* is not from 0 to below 1"):
        notices("--model", "m", "--lora", "4", "--lora_dropout", dropout)


def test_flag_defaults_within_ranges(tmp_path):
    recipe = resolve(["--model", "m"], tmp_path)
    for name, limits in ranges().items():
        assert recipe.value(name) is None or limits.holds(recipe.value(name)), name


@pytest.mark.parametrize(
    ("argv", "notice"),
    [
        ("--lora 4 --from-scratch", "--lora with --from-scratch leaves random weights under the adapters"),
        ("--lora_alpha 8", "--lora-alpha 8 has no effect without --lora RANK"),
        ("--dpo-beta 0.2", "--dpo-beta 0.2 has no effect without --task dpo"),
        ("--fp8", "--fp8 without --torch_compile: torchao's conversions then take longer than FP8 saves"),
        ("--loraplus-lr-ratio 16", "--loraplus-lr-ratio 16.0 has no effect without --lora RANK"),
        ("--lora-targets q v", "--lora-targets q v has no effect without --lora RANK"),
        (
            "--save-only-model",
            "--save_only_model: neither a restart nor --resume can go on from such checkpoints",
        ),
        (
            "--sortish-sampler",
            "--sortish_sampler has no effect: --train-sampling-strategy group_by_length puts samples of similar length"
            " together",
        ),
        ("--zero 2 --nvme-path /d", "--nvme-path has no effect without --offload nvme"),
    ],
)
def test_flag_notices(notices, argv, notice):
    assert notices("--model", "m", *argv.split()) == (notice,)


@pytest.mark.parametrize(("argv", "count"), [("", 1), ("--zero 3", 1), ("--zero 0", 0), ("--zero 0 --fsdp", 0)])
def test_adafactor_on_flat_shares_is_told(notices, argv, count):
    told = notices("--model", "m", "--optim", "adafactor", *argv.split())
    assert sum("--optim adafactor" in each for each in told) == count
