import codecs
import textwrap

import pytest

from dsrun.errors import UsageError
from dsrun.recipe.resolve import resolve
from dsrun.recipe.runfile import read_run_file


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "run.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return {each.name: (each.value, each.source) for each in read_run_file(path, "run.yaml")}

    return read


@pytest.fixture
def complaint(read):
    def complaint(text):
        with pytest.raises(UsageError) as caught:
            read(text)
        return str(caught.value)

    return complaint


def test_run_file_sections_and_line_numbers(read):
    assert read(
        """\
        # a comment
        train:
          model_name_or_path: t5-large
          global-batch-size: 64

          bf16: true
        zero: {stage: 3, offload: cpu}
        launch:
          nproc: 8
          max_restarts: 3
        slurm: {nodes: 4, anything: [goes]}
        """
    ) == {
        "model": ("t5-large", "run.yaml:3"),
        "global_batch_size": (64, "run.yaml:4"),
        "bf16": (True, "run.yaml:6"),
        "zero": ("3", "run.yaml:7"),
        "offload": ("cpu", "run.yaml:7"),
        "nproc": (8, "run.yaml:9"),
        "max_restarts": (3, "run.yaml:10"),
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("source_lang: no", "source_lang", "no"),
        ("eval_strategy: no", "eval_strategy", "no"),
        ("dataset_config: 3.0", "dataset_config", "3.0"),
        ("run_name: 0123", "run_name", "0123"),
        ("model_revision: 1e4", "model_revision", "1e4"),
        ("learning_rate: 1e-4", "learning_rate", 1e-4),
        ("max_steps: 1e3", "max_steps", 1000),
        ("do_train: yes", "do_train", True),
        ("do_train: off", "do_train", False),
        ("report_to: wandb", "report_to", ["wandb"]),
        ("report_to: [wandb, tensorboard]", "report_to", ["wandb", "tensorboard"]),
        ("lora_targets: [q_proj, no]", "lora_targets", ["q_proj", "no"]),
        (
            "model_config: {n_layer: 2, tie: no, rope: {a: 1}}",
            "config_override",
            ["n_layer=2", "tie=no", 'rope={"a": 1}'],
        ),
        ("model_config: [n_layer=2]", "config_override", ["n_layer=2"]),
        ("deepspeed: ds.json", "deepspeed", "ds.json"),
        ("lr_scheduler_kwargs: {min_lr: 1e-5, n: 2}", "lr_scheduler_kwargs", {"min_lr": 1e-5, "n": 2}),
        ("lr_scheduler_kwargs: '{\"n\": 2}'", "lr_scheduler_kwargs", {"n": 2}),
        ("source_prefix: 'translate: '", "source_prefix", "translate: "),
        ("debug: underflow_overflow", "trainer_debug", "underflow_overflow"),
        ("evaluation_strategy: epoch", "evaluation_strategy", "epoch"),
    ],
)
def test_run_file_value_types(read, line, name, value):
    """Values mean what they look like."""
    assert read(f"train:\n  {line}\n") == {name: (value, "run.yaml:2")}


def test_run_file_inline_deepspeed_config(read):
    found = read(
        """\
        train:
          deepspeed:
            zero_optimization: {stage: 2, overlap_comm: false}
            optimizer:
              params: {eps: 1e-8, betas: [0.9, 0.999]}
        """
    )
    assert found["deepspeed"][0] == {
        "zero_optimization": {"stage": 2, "overlap_comm": False},
        "optimizer": {"params": {"eps": 1e-8, "betas": [0.9, 0.999]}},
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "train:\n", "train:\n  model:\n  zero: null\nslurm:\n"])
def test_run_file_empty_values(read, text):
    assert read(text) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trian:\n  model: x\n", "run.yaml:1: unknown section trian (did you mean train?)"),
        ("model: x\n", "run.yaml:1: unknown section model (model belongs under train:)"),
        ("qqq: x\n", "run.yaml:1: unknown section qqq (known: train, zero, data, launch, slurm, k8s)"),
        ("train:\n  modle: x\n", "run.yaml:2: unknown key train.modle (did you mean model?)"),
        ("zero:\n  stgae: 2\n", "run.yaml:2: unknown key zero.stgae (did you mean stage?)"),
        (
            "launch:\n  model: x\n",
            "run.yaml:2: unknown key launch.model (known: nproc, nproc_per_node, master_port,",
        ),
        ("train:\n  qqqqq: x\n", "run.yaml:2: unknown key train.qqqqq (docs/train.md lists all flags)"),
        ("train:\n  zero: two\n", "run.yaml:2: train.zero: 'two' is not one of 0, 1, 2, 3, auto"),
        ("launch:\n  max_restarts: x\n", "run.yaml:2: launch.max_restarts: 'x' is not a whole number"),
        ("train:\n  max_length: [1, 2]\n", "run.yaml:2: train.max_length: a list is not a valid value"),
        ("train:\n  model: {a: 1}\n", "run.yaml:2: train.model: a mapping is not a valid value; it takes text"),
        ("train:\n  offload: gpu\n", "run.yaml:2: train.offload: 'gpu' is not one of none, cpu, nvme"),
        ("train:\n  seed:\n", "run.yaml:2: train.seed: '' is not a whole number"),
        ("train:\n  zero: 2\n  zero: 3\n", "run.yaml:3: zero is given twice, first in line 2"),
        (
            "train:\n  max-length: 2\n  max_length: 2\n",
            "run.yaml:3: max_length is given twice, first in line 2",
        ),
        ("train: {}\ntrain: {}\n", "run.yaml:2: train is given twice, first in line 1"),
        ("train:\n  deepspeed:\n    a: 1\n    a: 2\n", "run.yaml:4: a is given twice, first in line 3"),
        ("train:\n  model: [x\n", "run.yaml:3:1: not YAML: "),
        ("train:\n  model: x: y\n", "run.yaml:2:11: not YAML: mapping values are not allowed here"),
        ("train: [a]\n", "run.yaml:1: train: does not hold `key: value` lines"),
        ("just words\n", "run.yaml:1: the file does not hold `key: value` lines"),
        ("train:\n  ? [a]\n  : b\n", "run.yaml:2: a key must be one word"),
        ("train:\n  config: b.yaml\n", "run.yaml:2: train.config: a run file cannot name another"),
        ("train:\n  deepspeed: {a: !!python/name:os.system x}\n", "run.yaml:2:18: not YAML: "),
        ("a: 1\n---\nb: 2\n", "run.yaml:2:1: not YAML: but found another document"),
    ],
)
def test_run_file_errors_name_file_and_line(complaint, text, message):
    assert complaint(text).startswith(message)


def test_run_file_missing_or_binary(tmp_path):
    path = tmp_path / "run.yaml"
    with pytest.raises(UsageError, match=r"run\.yaml: cannot be read: No such file or directory"):
        read_run_file(path, "run.yaml")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"run\.yaml:1: not text in UTF-8"):
        read_run_file(path, "run.yaml")


def test_run_file_removed_flags_translated(tmp_path):
    (tmp_path / "run.yaml").write_text("train:\n  model: x\n  warmup_ratio: 0.1\n")
    recipe = resolve(["--config", "run.yaml"], tmp_path)
    assert recipe.hf == {"warmup_steps": 0.1}
    assert recipe.sources["warmup_steps"] == "run.yaml:3"
    assert recipe.notices == ("run.yaml:3: train.warmup_ratio is no longer a flag: taken as --warmup_steps 0.1",)


def test_run_file_launch_section_max_restarts(tmp_path):
    """Restarts of the launch section are an option of training."""
    (tmp_path / "run.yaml").write_text("train: {model: x}\nlaunch: {max_restarts: 5, hang_timeout: 30}\n")
    recipe = resolve(["--config", "run.yaml"], tmp_path)
    assert (recipe.spec.max_restarts, recipe.spec.hang_timeout) == (5, 30.0)
    (tmp_path / "run.yaml").write_text("train: {model: x}\nlaunch: {max_restarts: -1}\n")
    with pytest.raises(UsageError, match=r"run\.yaml:2: max_restarts: -1 is not at least 0"):
        resolve(["--config", "run.yaml"], tmp_path)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("  source_prefix: translate: it", "source_prefix", "translate: it"),
        ("  train_file: *.jsonl", "train_file", ["*.jsonl"]),
        ("  model: @mine", "model", "@mine"),
        ("  model: `mine`", "model", "`mine`"),
    ],
)
def test_run_file_names_the_quotes_that_a_value_needs(tmp_path, line, key, value):
    """And the line that it names is read."""
    path = tmp_path / "run.yaml"
    path.write_text(f"train:\n{line}\n")
    with pytest.raises(UsageError, match=r"^run\.yaml:2:\d+: not YAML: ") as refused:
        read_run_file(path, "run.yaml")
    path.write_text(f"train:\n  {str(refused.value.fix).removeprefix('quote the value: ')}\n")
    (given,) = read_run_file(path, "run.yaml")
    assert (given.name, given.value) == (key, value)


@pytest.mark.parametrize("text", ["train:\n\tmodel: x\n", "train:\n  model: x\n \t zero: 2\n"])
def test_run_file_with_tabs_wants_spaces(complaint, text):
    assert complaint(text).endswith("not YAML: a tab before a key (indent with spaces)")


@pytest.mark.parametrize("text", ["train: x\n  zero: 2\n", "train:\n  model: x\n   zero: 2\n"])
def test_run_file_with_ragged_keys_does_not_want_quotes(complaint, text):
    assert "quote" not in complaint(text)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_run_file_of_another_encoding(tmp_path, encoding):
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (tmp_path / "run.yaml").write_bytes(mark + "train: {source_prefix: Übersetze}\n".encode(encoding))
    (given,) = read_run_file(tmp_path / "run.yaml", "run.yaml")
    assert given.value == "Übersetze"


def test_run_file_in_latin1_names_the_line(tmp_path):
    (tmp_path / "run.yaml").write_bytes("train:\n  model: Ü\n".encode("latin1"))
    with pytest.raises(UsageError, match=r"run\.yaml:2: not text in UTF-8 \(save it as UTF-8\)"):
        read_run_file(tmp_path / "run.yaml", "run.yaml")


def test_run_file_zero_in_short(tmp_path):
    (tmp_path / "run.yaml").write_text("train: {model: x}\nzero: 3\n")
    recipe = resolve(["--config", "run.yaml"], tmp_path)
    assert (recipe.spec.zero, recipe.sources["zero"]) == ("3", "run.yaml:2")
