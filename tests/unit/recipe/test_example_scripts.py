"""Command lines of the example scripts of Transformers run unchanged after `dsrun train`."""

import shlex

import pytest

from dsrun.recipe.compat.removed import vocabulary
from dsrun.recipe.resolve import resolve

# What follows the script's name in the READMEs of translation, summarization and language-modeling there.
TRANSLATION = {
    "marian": r"""
    --model_name_or_path Helsinki-NLP/opus-mt-en-ro \
    --do_train \
    --do_eval \
    --source_lang en \
    --target_lang ro \
    --dataset_name wmt16 \
    --dataset_config_name ro-en \
    --output_dir /tmp/tst-translation \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --overwrite_output_dir \
    --predict_with_generate
""",
    "t5": r"""
    --model_name_or_path t5-small \
    --do_train \
    --do_eval \
    --source_lang en \
    --target_lang ro \
    --source_prefix "translate English to Romanian: " \
    --dataset_name wmt16 \
    --dataset_config_name ro-en \
    --output_dir /tmp/tst-translation \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --overwrite_output_dir \
    --predict_with_generate
""",
    "mbart": r"""
    --model_name_or_path facebook/mbart-large-en-ro  \
    --do_train \
    --do_eval \
    --dataset_name wmt16 \
    --dataset_config_name ro-en \
    --source_lang en_XX \
    --target_lang ro_RO \
    --output_dir /tmp/tst-translation \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --overwrite_output_dir \
    --predict_with_generate
""",
    "own files": r"""
    --model_name_or_path t5-small \
    --do_train \
    --do_eval \
    --source_lang en \
    --target_lang ro \
    --source_prefix "translate English to Romanian: " \
    --dataset_name wmt16 \
    --dataset_config_name ro-en \
    --train_file path_to_jsonlines_file \
    --validation_file path_to_jsonlines_file \
    --output_dir /tmp/tst-translation \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --overwrite_output_dir \
    --predict_with_generate
""",
    "pre-processed": r"""
    --model_name_or_path t5-small \
    --do_train \
    --do_eval \
    --source_lang en \
    --target_lang de \
    --source_prefix "translate English to German: " \
    --dataset_name stas/wmt14-en-de-pre-processed \
    --output_dir /tmp/tst-translation \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --overwrite_output_dir \
    --predict_with_generate
""",
}
SUMMARIZATION = {
    "cnn": r"""
    --model_name_or_path t5-small \
    --do_train \
    --do_eval \
    --dataset_name cnn_dailymail \
    --dataset_config "3.0.0" \
    --source_prefix "summarize: " \
    --output_dir /tmp/tst-summarization \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --overwrite_output_dir \
    --predict_with_generate
""",
    "own files": r"""
    --model_name_or_path t5-small \
    --do_train \
    --do_eval \
    --train_file path_to_csv_or_jsonlines_file \
    --validation_file path_to_csv_or_jsonlines_file \
    --source_prefix "summarize: " \
    --output_dir /tmp/tst-summarization \
    --overwrite_output_dir \
    --per_device_train_batch_size=4 \
    --per_device_eval_batch_size=4 \
    --predict_with_generate \
    --text_column text_column_name \
    --summary_column summary_column_name \
""",
}
# The last one has a stray backslash within its line there, which no shell forgives.
CLM = {
    "gpt2": r"""
    --model_name_or_path gpt2 \
    --dataset_name wikitext \
    --dataset_config_name wikitext-2-raw-v1 \
    --per_device_train_batch_size 8 \
    --per_device_eval_batch_size 8 \
    --do_train \
    --do_eval \
    --output_dir /tmp/test-clm
""",
    "own files": r"""
    --model_name_or_path gpt2 \
    --train_file path_to_train_file \
    --validation_file path_to_validation_file \
    --per_device_train_batch_size 8 \
    --per_device_eval_batch_size 8 \
    --do_train \
    --do_eval \
    --output_dir /tmp/test-clm
""",
    "on the fly": r"""
    --model_type gpt2 --tokenizer_name gpt2 \
    --config_overrides="n_embd=1024,n_head=16,n_layer=48,n_positions=102" \
""",
}
ALL = [
    pytest.param(line, id=f"{script}: {name}")
    for script, lines in {"translation": TRANSLATION, "summarization": SUMMARIZATION, "clm": CLM}.items()
    for name, line in lines.items()
]
# Every argument that the three scripts declared themselves, in any release since 4.4.
DECLARED = tuple(
    word
    for line in (
        "model_name_or_path model_type config_overrides config_name tokenizer_name cache_dir",
        "use_fast_tokenizer model_revision use_auth_token token trust_remote_code torch_dtype dtype",
        "low_cpu_mem_usage resize_position_embeddings attn_implementation dataset_name dataset_config_name",
        "dataset_config train_file validation_file test_file source_lang target_lang lang text_column",
        "summary_column overwrite_cache preprocessing_num_workers max_source_length max_target_length",
        "val_max_target_length pad_to_max_length max_train_samples max_eval_samples max_val_samples",
        "max_predict_samples max_test_samples num_beams ignore_pad_token_for_loss source_prefix",
        "forced_bos_token streaming block_size validation_split_percentage keep_linebreaks",
    )
    for word in line.split()
)


@pytest.mark.parametrize("line", ALL)
def test_example_script_command_lines_resolve(line, tmp_path):
    """The command lines in the scripts' READMEs are understood."""
    argv = shlex.split(line.replace("\\\n", " "))
    recipe = resolve(argv, tmp_path)
    notices = ("--overwrite_output_dir is no longer a flag: taken as --resume never",)
    assert recipe.notices == (notices if "--overwrite_output_dir" in argv else ())
    flags = {word.partition("=")[0] for word in argv if word.startswith("--")}
    assert sum(recipe.given(name) for name in recipe.sources) == len(flags)


def test_example_script_command_line_values(tmp_path):
    argv = shlex.split(TRANSLATION["t5"].replace("\\\n", " "))
    recipe = resolve(argv, tmp_path)
    spec = recipe.spec
    assert (spec.model, spec.dataset, spec.dataset_config) == ("t5-small", "wmt16", "ro-en")
    assert (spec.source_lang, spec.target_lang) == ("en", "ro")
    assert spec.source_prefix == "translate English to Romanian: "
    assert (spec.output, spec.resume) == ("/tmp/tst-translation", "never")
    assert recipe.hf == {
        "do_train": True,
        "do_eval": True,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "predict_with_generate": True,
    }


def test_example_script_arguments_are_known():
    assert set(DECLARED) <= set(vocabulary())
