"""The training arguments mean here what HfArgumentParser makes of them."""

import json

import pytest
from transformers import HfArgumentParser, Seq2SeqTrainingArguments

from dsrun.errors import UsageError
from dsrun.recipe.flags import ENGINE_OPTIMIZERS, hf_flags
from dsrun.recipe.parser import parse
from dsrun.recipe.resolve import resolve

SAMPLES = {"int": ["3"], "float": ["2.5e-1"], "str": ["word"], "list": ["a", "b"], "list|str": ["one"]}
COMPARED = [
    pytest.param(flag, id=flag.name)
    for flag in hf_flags().values()
    # Not the same on purpose: report_to is always a list here, a Path stays text, JSON is read at once.
    if flag.kind in (*SAMPLES, "bool") and flag.name not in ("trainer_debug", "report_to", "generation_config")
]


@pytest.fixture(scope="module")
def theirs():
    return HfArgumentParser(Seq2SeqTrainingArguments)


def both(theirs, flag, words):
    argv = [f"--{flag.key}", *words]
    ours = [each.value for each in parse(argv).given if each.name == flag.name]
    return ours, [getattr(theirs.parse_args(argv), flag.key)]


@pytest.mark.parametrize("flag", COMPARED)
def test_parsed_value_equals_hf_argument_parser(flag, theirs):
    """A value is, in type too, what HfArgumentParser makes of it."""
    words = ["True"] if flag.kind == "bool" else SAMPLES[flag.kind]
    ours, expected = both(
        theirs, flag, [each for each in flag.choices if each not in ENGINE_OPTIMIZERS][-1:] if flag.choices else words
    )
    assert ours == expected
    assert type(ours[0]) is type(expected[0])


def test_hf_argument_spellings_are_known(theirs):
    spellings = {option for action in theirs._actions for option in action.option_strings}
    assert len(spellings) > 200
    assert [option for option in sorted(spellings - {"-h", "--help"}) if not known(option)] == []


def known(option):
    try:
        parse([option, "{}"])
    except UsageError as error:  # the value may be wrong, the flag not
        return "unknown flag" not in error.message
    return True


def test_resolved_flags_make_training_arguments(tmp_path):
    (tmp_path / "accelerator.json").write_text(json.dumps({"split_batches": False}))
    (tmp_path / "run.yaml").write_text(
        "train:\n  model: m\n  lr_scheduler_kwargs: {min_lr_rate: 0.1}\n  learning_rate: 1e-4\n"
        "  debug: underflow_overflow\n"
    )
    line = (
        "--config run.yaml --lr_scheduler_type cosine_with_min_lr --warmup_ratio 0.1 --report_to none"
        " --use_cpu --include_num_input_tokens_seen all --evaluation_strategy epoch --save_strategy epoch"
        " --label_names labels --optim_target_modules all-linear --include_inputs_for_metrics"
        " --accelerator_config"
    )
    recipe = resolve([*line.split(), str(tmp_path / "accelerator.json")], tmp_path)
    arguments = Seq2SeqTrainingArguments(output_dir=str(tmp_path), **recipe.hf)
    assert arguments.learning_rate == 1e-4
    assert arguments.get_warmup_steps(1000) == 100
    assert arguments.eval_strategy == "epoch"
    assert arguments.lr_scheduler_kwargs == {"min_lr_rate": 0.1}
    assert arguments.report_to == []
    assert [option.value for option in arguments.debug] == ["underflow_overflow"]
    assert arguments.include_for_metrics == ["inputs"]
