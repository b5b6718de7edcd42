import json

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.flags import all_flags
from dsrun.recipe.parser import parse, read_json


def values(*argv):
    return {each.name: each.value for each in parse(argv).given}


def complaint(*argv):
    with pytest.raises(UsageError) as caught:
        parse(argv)
    return str(caught.value)


def test_parse_returns_only_flags_of_command_line():
    assert values() == {}
    assert values("--zero", "2") == {"zero": "2"}


@pytest.mark.parametrize(
    "spelling", ["--dataset-config", "--dataset_config", "--dataset_config_name", "--dataset-config-name"]
)
def test_flag_spelling_hyphens_underscores_aliases(spelling):
    """Hyphens, underscores and aliases name the same flag."""
    assert values(spelling, "ro-en") == {"dataset_config": "ro-en"}


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--do_train"], True),
        (["--do-train", "True"], True),
        (["--do_train=1"], True),
        (["--do_train", "false"], False),
        (["--do_train", "N"], False),
        (["--no_do_train"], False),
        (["--no-do-train"], False),
        (["--do_train", "--no-do-train"], False),
    ],
)
def test_boolean_flags(argv, value):
    found = parse(argv).given
    assert found[-1].name == "do_train"
    assert found[-1].value is value


def test_boolean_flag_without_default():
    assert values("--tf32", "--gradient_checkpointing") == {"tf32": True, "gradient_checkpointing": True}


@pytest.mark.parametrize(
    "flag", [flag for flag in all_flags().values() if flag.kind == "bool"], ids=lambda flag: flag.name
)
def test_every_boolean_flag_can_be_negated(flag):
    """Every boolean flag has its opposite, --no_…."""
    assert values(f"--no_{flag.name}") == {flag.name: False}


@pytest.mark.parametrize("number", ["-1", "-0.5", "-.5", "-1e-4", "-1.5E+3", "3e-5"])
def test_float_values(number):
    assert values("--weight_decay", number, "--bf16") == {"weight_decay": float(number), "bf16": True}
    assert values(f"--weight_decay={number}") == {"weight_decay": float(number)}


@pytest.mark.parametrize(("text", "number"), [("1000", 1000), ("1_000", 1000), ("1e3", 1000), ("-1", -1)])
def test_integer_values(text, number):
    assert values("--max_steps", text) == {"max_steps": number}


def test_values_with_equals_sign_spaces_or_empty():
    assert values("--source_prefix=translate a=b: ") == {"source_prefix": "translate a=b: "}
    assert values("--source_prefix", "--x y") == {"source_prefix": "--x y"}
    assert values("--source_prefix", "") == {"source_prefix": ""}
    assert values("--source_prefix=-x") == {"source_prefix": "-x"}


def test_list_values():
    assert values("--report_to", "wandb", "tensorboard", "--bf16")["report_to"] == ["wandb", "tensorboard"]
    assert values("--report_to", "none")["report_to"] == ["none"]
    assert values("--lora-targets", "q", "v")["lora_targets"] == ["q", "v"]


def test_list_or_string_flag_values():
    """One word stays a string, several are a list."""
    assert values("--optim_target_modules", "all-linear") == {"optim_target_modules": "all-linear"}
    assert values("--optim_target_modules", "a", "b") == {"optim_target_modules": ["a", "b"]}


def test_json_and_path_values():
    assert values("--lr_scheduler_kwargs", '{"a": 1}') == {"lr_scheduler_kwargs": {"a": 1}}
    assert values("--deepspeed", "ds.json") == {"deepspeed": "ds.json"}
    assert values("--deepspeed", '{"fp16": {}}') == {"deepspeed": {"fp16": {}}}


def test_boolean_or_string_flag_values():
    assert values("--fsdp") == {"fsdp": True}
    assert values("--fsdp", "full_shard auto_wrap") == {"fsdp": "full_shard auto_wrap"}
    assert values("--include_num_input_tokens_seen", "no") == {"include_num_input_tokens_seen": "no"}


def test_debug_flag_or_trainer_debug_option():
    """--debug is dsrun's own unless it names a debug option of the Trainer."""
    assert values("--debug") == {"debug": True}
    assert values("--debug", "false") == {"debug": False}
    assert values("--debug", "underflow_overflow") == {"trainer_debug": "underflow_overflow"}


@pytest.mark.parametrize(("word", "meaning"), [("True", "auto"), ("false", "never"), ("out/ckpt", "out/ckpt")])
def test_resume_from_checkpoint_takes_booleans(word, meaning):
    assert values("--resume_from_checkpoint", word) == {"resume": meaning}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--modle", "x"], "unknown flag --modle (did you mean --model?)"),
        (["--do_trian"], "unknown flag --do_trian (did you mean --do_train?)"),
        (["--max-lenght=3"], "unknown flag --max-lenght (did you mean --max-length?)"),
        (["--learning-rat", "1"], "unknown flag --learning-rat (did you mean --learning-rate?)"),
        (
            ["--modle", "x", "--qqqqqqqq", "--zeero=2"],
            "unknown flags --modle (did you mean --model?), --qqqqqqqq, --zeero (did you mean --zero?)"
            " (`dsrun train --help` lists all flags)",
        ),
        (
            ["--overwrite_output_dri"],
            "unknown flag --overwrite_output_dri (did you mean --overwrite_output_dir?)",
        ),
        (["--qqqqqqqq"], "unknown flag --qqqqqqqq (`dsrun train --help` lists all flags)"),
        (["-m", "x"], "unknown flag -m (`dsrun train --help` lists all flags)"),
        (["--no-model"], "unknown flag --no-model (did you mean --model?)"),
        (["--zero", "two"], "--zero: 'two' is not one of 0, 1, 2, 3, auto"),
        (["--max_steps", "8.5"], "--max_steps: '8.5' is not a whole number"),
        (["--learning_rate", "nan"], "--learning_rate: 'nan' is not a number"),
        (["--bf16", "maybe"], "--bf16: 'maybe' is not true or false"),
        (["--offload", "gpu"], "--offload: 'gpu' is not one of none, cpu, nvme, optimizer"),
        (["--optim", "adamw_troch"], "--optim: 'adamw_troch' is not known; did you mean adamw_torch?"),
        (
            ["--lr_scheduler_kwargs", "[1]"],
            "--lr_scheduler_kwargs: '[1]' is not a JSON object like '{\"key\": 1}'",
        ),
        (["--model"], "--model: a value is missing (it takes text)"),
        (["--model-name-or-path", "--zero", "2"], "--model-name-or-path: a value is missing (it takes text)"),
        (["--report_to"], "--report_to: a value is missing (it takes one or more words)"),
        (["--no-bf16=1"], "--no-bf16 takes no value (write --no-bf16 alone)"),
        (
            ["--source_prefix", "translate", "English"],
            "'English' belongs to no flag (write --flag value; a value with spaces needs quotes)",
        ),
    ],
)
def test_parser_error_messages(argv, message, capsys):
    assert complaint(*argv) == message
    assert capsys.readouterr() == ("", "")


def test_invalid_json_value_error_names_column():
    assert complaint("--lr_scheduler_kwargs", '{"a":}').startswith(
        "--lr_scheduler_kwargs: not valid JSON: Expecting value at column 6"
    )


def test_leading_double_dash_ignored():
    assert values("--", "--zero", "2") == {"zero": "2"}


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("--label_smoothing", "label_smoothing_factor"),
        ("--learning", "learning_rate"),
        ("--num_train", "num_train_epochs"),
        ("--max_grad", "max_grad_norm"),
    ],
)
def test_abbreviations_of_transformers_flags(typed, whole):
    """HfArgumentParser takes the beginning of a flag for it, and posted command lines rely on that."""
    assert values(typed, "1") == values(f"--{whole}", "1")
    assert values(f"{typed}=1") == values(f"--{whole}", "1")


@pytest.mark.parametrize("typed", ["--zer", "--save", "--max", "--do", "--label_smoo"])
def test_other_abbreviations_rejected(typed):
    """Of dsrun's own flags, of several, and within a word."""
    assert f"unknown flag {typed} " in complaint(typed, "2")


def test_abbreviation_is_named_with_its_flag():
    assert complaint("--label_smoothing", "much").startswith("--label_smoothing (taken as --label_smoothing_factor): ")


def test_max_seq_length_is_the_block():
    assert values("--max_seq_length", "64") == values("--block-size", "64")


def test_repeated_flag_keeps_both_values():
    found = parse(["--model", "a", "--model_name_or_path", "b"]).given
    assert [(each.spelling, each.value, each.where) for each in found] == [
        ("model", "a", "--model"),
        ("model_name_or_path", "b", "--model_name_or_path"),
    ]


def test_args_json_as_positional_argument():
    """One word that belongs to no flag is a JSON file; a second one is an error."""
    assert parse(["args.json"]).json_file == "args.json"
    assert parse(["--zero", "2", "args.json"]).json_file == "args.json"
    assert "'b.json' belongs to no flag" in complaint("--zero", "2", "b.json", "c.json")


def test_args_json_values(tmp_path):
    path = tmp_path / "args.json"
    content = {
        "model-name-or-path": "t5-small",
        "do_train": True,
        "learning_rate": 1e-4,
        "max_steps": "10",
        "report_to": ["wandb"],
        "deepspeed": {"fp16": {"enabled": False}},
        "run_name": None,
        "model_config": {"n_layer": 2, "tied": False},
        "warmup_ratio": 0.1,
    }
    path.write_text(json.dumps(content))
    assert {each.name: each.value for each in read_json(path, "args.json")} == {
        "model": "t5-small",
        "do_train": True,
        "learning_rate": 1e-4,
        "max_steps": 10,
        "report_to": ["wandb"],
        "deepspeed": {"fp16": {"enabled": False}},
        "config_override": ["n_layer=2", "tied=false"],
        "warmup_ratio": 0.1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "args.json: not JSON: "),
        ("[" * 100_000, "args.json: not JSON: nested too deeply"),
        ("[]", "args.json: not a JSON object"),
        ('{"modle": 1}', "args.json: modle: unknown flag (did you mean model?)"),
        ('{"nproc": "x"}', "args.json: nproc: 'x' is not a whole number"),
        ('{"nproc": [2]}', "args.json: nproc: a list is not a valid value; it takes a whole number"),
        ('{"nproc": {}}', "args.json: nproc: a mapping is not a valid value; it takes a whole number"),
        ('{"nproc": true}', "args.json: nproc: 'true' is not a whole number"),
        ('{"zero": 4}', "args.json: zero: '4' is not one of 0, 1, 2, 3, auto"),
    ],
)
def test_args_json_error_messages(tmp_path, text, message):
    path = tmp_path / "args.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_json(path, "args.json")
    assert str(caught.value).startswith(message)


def test_args_json_missing(tmp_path):
    with pytest.raises(UsageError, match=r"args\.json: cannot be read: No such file"):
        read_json(tmp_path / "args.json", "args.json")
