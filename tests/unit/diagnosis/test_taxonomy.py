"""The general causes of errors that no rule knows."""

import re
from pathlib import Path

import pytest

from dsrun.datafiles import toml_beside
from dsrun.diagnosis import taxonomy
from dsrun.diagnosis.rules import causes
from dsrun.diagnosis.taxonomy import LoggedError, general_cause, owner_of
from dsrun.messages import PLACEHOLDER

LIST = Path(__file__).parents[2] / "data" / "causes" / "errors.txt"
ERRORS = [
    tuple(map(str.strip, f"{line} ".split("|", 3)))
    for line in LIST.read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", "torch"),
        ("/usr/local/lib/python3.10/dist-packages/six.py", "six"),
        ("C:\\Users\\a\\miniconda3\\envs\\x\\Lib\\site-packages\\trl\\trainer.py", "trl"),
        ("C:\\Users\\a\\miniconda3\\envs\\x\\Lib\\subprocess.py", "python"),
        ("/usr/lib/python3.10/json/decoder.py", "python"),
        ("<frozen runpy>", "python"),
        ("/env/lib/python3.12/site-packages/fused.cpython-312-x86_64-linux-gnu.so", "fused"),
        ("/opt/pytorch/pytorch/torch/_ops.py", "torch"),
        ("/home/a/DeepSpeed/deepspeed/runtime/engine.py", "deepspeed"),
        ("/data/LLaMA-Factory-main/src/llamafactory/launcher.py", "llamafactory"),
        ("src/llamafactory/train/tuner.py", "llamafactory"),
        ("/workspace/axolotl/src/axolotl/train.py", "axolotl"),
        ("/ms-swift/swift/llm/train.py", "swift"),
        ("/w/Megatron-LM/megatron/training/arguments.py", "megatron"),
        ("/root/.cache/huggingface/modules/transformers_modules/m/modeling_m.py", "transformers_modules"),
        ("/home/a/swift/train.py", "script"),
        ("/home/a/DeepSpeedExamples/training/train.py", "script"),
        ("/home/a/project/src/data.py", "script"),
        ("/tmp/ipykernel_3/12.py", "script"),
        ("<stdin>", "script"),
        ("<string>", ""),
        ("/usr/local/bin/torchrun", ""),
        ("/tmp/pip-install-a1b2/ops_0c3f/setup.py", "pip"),
        ("<pip-setuptools-caller>", "pip"),
        ("/tmp/torchinductor_a/xy/cxy.py", "torch"),
        ("unsloth_compiled_cache/UnslothTrainer.py", "unsloth_compiled_cache"),
    ],
)
def test_owner_of_frame_file(path: str, owner: str) -> None:
    """A frame's file belongs to the package, the standard library or the user's script."""
    assert owner_of(path) == owner


@pytest.mark.parametrize(("code", "name", "owner", "message"), ERRORS)
def test_general_cause_of_error(code: str, name: str, owner: str, message: str) -> None:
    """Each error of the list has its general cause."""
    found = general_cause(LoggedError(type=name, message=message, owner=owner))
    assert found is not None
    assert found.cause.code == code


def test_every_taxonomy_row_says_what_can_be_filled() -> None:
    """The rows name causes that there are, and their texts only what can be filled in."""
    names = {"message", "type", "owner", "where", "packages"}
    for row in toml_beside(taxonomy.__file__)["row"]:
        assert not row["cause"] or row["cause"] in causes()
        groups = re.compile(row.get("message", "")).groupindex
        for text in (row.get("means", ""), row.get("fix", "")):
            assert {found[1] for found in PLACEHOLDER.finditer(text)} <= names | set(groups), text


def test_general_cause_quotes_message_place_and_packages() -> None:
    """Meaning and fix name the message, the script's line, and the packages as pip calls them."""
    frames = (
        'File "/home/u/train.py", line 12, in <module>',
        'File "/env/lib/python3.11/site-packages/trl/trainer.py", line 3, in fit',
    )
    read = general_cause(
        LoggedError(type="AttributeError", message="module 'yaml' has no attribute 'read'", frames=frames)
    )
    assert read is not None
    assert "pip show PyYAML trl" in read.fix
    missing = general_cause(
        LoggedError(type="builtins.KeyError", message="'lables'", owner="script", frames=frames[:1])
    )
    assert missing is not None
    assert "/home/u/train.py:12" in missing.means
    assert "'lables'" in missing.means


def test_general_cause_shortens_long_message() -> None:
    """Of a long message only its beginning is quoted."""
    found = general_cause(LoggedError(type="ValueError", message="x" * 1000, owner="script"))
    assert found is not None
    assert "x" * 150 in found.means
    assert "x" * 200 not in found.means


def test_attribute_that_a_module_lacks_is_of_its_caller() -> None:
    """torch.nn.Module.__getattr__ raises for whoever asked."""
    inside = "/env/lib/python3.11/site-packages/torch/nn/modules/module.py:1965"
    message = "'DistributedDataParallel' object has no attribute 'config'"
    for caller, code in (
        ("/home/u/train.py:4", "own_code"),
        ("/env/lib/python3.11/site-packages/trl/trainer.py:3", "library_versions"),
    ):
        found = general_cause(
            LoggedError(type="AttributeError", message=message, owner="torch", frames=(caller, inside))
        )
        assert found is not None
        assert found.cause.code == code


def test_failed_child_process_has_no_general_cause() -> None:
    """That a process has failed says nothing of why."""
    message = "Command '['python', 'train.py']' returned non-zero exit status 1."
    assert general_cause(LoggedError(type="subprocess.CalledProcessError", message=message, owner="accelerate")) is None
