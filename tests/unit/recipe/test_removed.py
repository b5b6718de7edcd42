import pytest

from dsrun.errors import UsageError
from dsrun.recipe.compat.removed import removed_flags, translate, vocabulary
from dsrun.recipe.flags import by_spelling
from dsrun.recipe.parser import parse

# Arguments of Seq2SeqTrainingArguments 4.57 and before, and of older example scripts, that 5.23 does not
# have.
GONE = tuple(
    word
    for line in (
        "overwrite_output_dir evaluation_strategy evaluate_during_training warmup_ratio logging_dir",
        "group_by_length no_cuda use_mps_device xpu_backend per_gpu_train_batch_size per_gpu_eval_batch_size",
        "adafactor fp16_backend half_precision_backend fp16_opt_level save_safetensors",
        "include_inputs_for_metrics include_tokens_per_second push_to_hub_token push_to_hub_model_id",
        "push_to_hub_organization use_auth_token low_cpu_mem_usage use_legacy_prediction_loop ray_scope",
        "torchdynamo jit_mode_eval use_ipex past_index tpu_num_cores tpu_metrics_debug mp_parameters",
        "sharded_ddp fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap dispatch_batches split_batches",
        "max_val_samples max_test_samples eval_beams src_lang tgt_lang train_data_file eval_data_file",
    )
    for word in line.split()
)


def now(*argv):
    """(flag, value) of today for an old command line, or None, with the notice."""
    given = parse(argv).given
    current, notice = translate(given[0], {each.name for each in given})
    return (current and (current.name, current.value)), notice


def test_removed_flag_table_complete():
    """Every removed flag has a row, and every row is tested here."""
    assert sorted(removed_flags()) == sorted(GONE)


def test_removed_flags_hide_no_current_flag():
    assert not set(removed_flags()) & set(by_spelling())
    assert set(vocabulary()) == set(removed_flags()) | set(by_spelling())


def test_removed_flags_translate_to_current_flags():
    targets = [case.becomes for row in removed_flags().values() for case in row.cases if case.becomes]
    assert set(targets) <= set(by_spelling())


@pytest.mark.parametrize(
    ("argv", "flag", "value"),
    [
        (["--overwrite_output_dir"], "resume", "never"),
        (["--evaluation_strategy", "epoch"], "eval_strategy", "epoch"),
        (["--evaluate_during_training"], "eval_strategy", "steps"),
        (["--warmup_ratio", "0.06"], "warmup_steps", 0.06),
        (["--warmup_ratio", "0"], "warmup_steps", 0.0),
        (["--logging_dir", "tb"], "tensorboard_dir", "tb"),
        (["--group_by_length"], "train_sampling_strategy", "group_by_length"),
        (["--no_cuda"], "use_cpu", True),
        (["--no-cuda", "true"], "use_cpu", True),
        (["--xpu_backend", "gloo"], "ddp_backend", "gloo"),
        (["--per_gpu_train_batch_size", "4"], "per_device_train_batch_size", 4),
        (["--per_gpu_eval_batch_size", "4"], "per_device_eval_batch_size", 4),
        (["--adafactor"], "optim", "adafactor"),
        (["--include_inputs_for_metrics"], "include_for_metrics", ["inputs"]),
        (["--push_to_hub_token", "t"], "hub_token", "t"),
        (["--push_to_hub_model_id", "a/b"], "hub_model_id", "a/b"),
        (["--use_auth_token", "secret"], "token", "secret"),
        (["--torchdynamo", "inductor"], "torch_compile_backend", "inductor"),
        (["--max_val_samples", "5"], "max_eval_samples", 5),
        (["--max_test_samples", "5"], "max_predict_samples", 5),
        (["--eval_beams", "5"], "num_beams", 5),
        (["--src_lang", "en"], "source_lang", "en"),
        (["--tgt_lang", "ro"], "target_lang", "ro"),
        (["--train_data_file", "a.txt"], "train_file", "a.txt"),
        (["--eval_data_file", "b.txt"], "validation_file", "b.txt"),
    ],
)
def test_removed_flag_translations(argv, flag, value):
    current, notice = now(*argv)
    assert current == (flag, value)
    assert notice.startswith(f"{argv[0]} is no longer a flag: taken as {by_spelling()[flag].shown}")


@pytest.mark.parametrize(
    "argv",
    [
        ["--overwrite_output_dir", "false"],
        ["--evaluate_during_training", "false"],
        ["--group_by_length", "false"],
        ["--no_cuda", "false"],
        ["--use_mps_device"],
        ["--adafactor", "false"],
        ["--fp16_backend", "auto"],
        ["--half_precision_backend", "cpu_amp"],
        ["--fp16_opt_level", "O1"],
        ["--save_safetensors"],
        ["--include_inputs_for_metrics", "false"],
        ["--include_tokens_per_second"],
        ["--use_auth_token"],
        ["--use_auth_token", "False"],
        ["--low_cpu_mem_usage"],
        ["--use_legacy_prediction_loop"],
        ["--ray_scope", "last"],
        ["--jit_mode_eval", "false"],
        ["--use_ipex"],
        ["--past_index", "-1"],
        ["--tpu_metrics_debug", "false"],
        ["--mp_parameters", ""],
    ],
)
def test_removed_flag_without_effect_ignored_with_notice(argv):
    current, notice = now(*argv)
    assert current is None
    assert notice.startswith(f"{argv[0]} is no longer a flag: ignored, ")


@pytest.mark.parametrize(
    ("argv", "replacement"),
    [
        (["--warmup_ratio", "1.0"], "--warmup_steps N"),
        (["--warmup_ratio", "-0.1"], "--warmup_steps N"),
        (["--fp16_backend", "apex"], "--bf16"),
        (["--half_precision_backend", "apex"], "--bf16"),
        (["--save_safetensors", "false"], "drop it"),
        (["--push_to_hub_organization", "acme"], "--hub_model_id ORGANISATION/NAME"),
        (["--jit_mode_eval"], "--torch_compile"),
        (["--past_index", "2"], "drop it"),
        (["--tpu_num_cores", "8"], "--nproc"),
        (["--tpu_metrics_debug"], "drop it"),
        (["--mp_parameters", "partitions=2"], "--zero 3"),
        (["--sharded_ddp", "simple"], "--zero 2"),
        (["--fsdp_min_num_params", "100"], "--fsdp_config '{\"min_num_params\": N}'"),
        (["--fsdp_transformer_layer_cls_to_wrap", "T5Block"], "--fsdp_config"),
        (["--dispatch_batches"], "--accelerator_config '{\"dispatch_batches\": true}'"),
        (["--split_batches"], "--accelerator_config '{\"split_batches\": true}'"),
    ],
)
def test_removed_flag_without_equivalent_rejected(argv, replacement):
    """The error names what to write instead."""
    with pytest.raises(UsageError) as caught:
        now(*argv)
    assert caught.value.message.startswith(f"{argv[0]} is no longer a flag: ")
    assert replacement in caught.value.fix


def test_current_flag_wins_over_removed_flag():
    """A flag itself wins over a weak translation into it."""
    assert now("--warmup_ratio", "0.1", "--warmup_steps", "50") == (
        None,
        "--warmup_ratio is no longer a flag: gives way to --warmup_steps",
    )
    assert now("--overwrite_output_dir", "--resume_from_checkpoint", "ckpt")[0] is None


def test_removed_flag_value_validated_by_new_flag():
    with pytest.raises(UsageError, match="--evaluation_strategy: 'never' is not one of no, steps, epoch"):
        now("--evaluation_strategy", "never")


def test_removed_flag_notice_hides_secret():
    assert "hunter2" not in now("--push_to_hub_token", "hunter2")[1]


def test_current_flags_not_translated():
    assert now("--zero", "2") == (("zero", "2"), None)
