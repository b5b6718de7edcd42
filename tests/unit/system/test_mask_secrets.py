"""What is a secret, by its key or its form, and commands, settings and text without it."""

import pytest

from dsrun.system.terminal.secrets import (
    is_secret_flag,
    masked,
    masked_values,
    split_secrets,
    unmasked_values,
)

TOKEN = "hf_canaryCANARY0123456789"


@pytest.mark.parametrize(
    "flag", ["--token", "--hub_token", "--hub-token", "--push_to_hub_token", "--wandb-api-key", "--password", "-token"]
)
def test_flags_for_access_tokens(flag: str) -> None:
    assert is_secret_flag(flag)
    assert masked(["a", flag, TOKEN, "--x"]) == ["a", flag, "***", "--x"]
    assert masked([f"{flag}={TOKEN}"]) == [f"{flag}=***"]


@pytest.mark.parametrize(
    "flag", ["--pad-token", "--eos_token", "--max_new_tokens", "--tokenizer", "--special_tokens", "token", "--key"]
)
def test_flags_for_tokens_of_a_vocabulary(flag: str) -> None:
    assert not is_secret_flag(flag)
    assert masked([flag, "</s>"]) == [flag, "</s>"]


def test_masked_variables_values_and_inner_commands() -> None:
    """Assignments, what reads as a token anywhere, and the command inside an ssh command are masked, too."""
    assert masked(["HF_TOKEN=x", "TOKENIZERS_PARALLELISM=false"]) == ["HF_TOKEN=***", "TOKENIZERS_PARALLELISM=false"]
    assert masked(["--env=HF_TOKEN=x", "--env=A=b"]) == ["--env=HF_TOKEN=***", "--env=A=b"]
    assert masked([f"url={TOKEN}@hub"]) == ["url=***@hub"]
    assert masked(["https://me:word@host/x.csv", "s3://bucket/a:b@c"]) == [
        "https://***@host/x.csv",
        "s3://bucket/a:b@c",
    ]
    assert masked(["ssh", "n1", "cd /x && python a.py --hub_token secret"]) == [
        "ssh", "n1", "cd /x && python a.py --hub_token ***",
    ]  # fmt: skip


def test_masked_values_of_settings_and_back() -> None:
    """Keys within a JSON object, also one on a command line."""
    settings = {"comet": {"api_key": "sesame", "project": "p"}, "max_tokens": 3, "auth_token": None, "token": "t"}
    shown = {"comet": {"api_key": "***", "project": "p"}, "max_tokens": 3, "auth_token": None, "token": "***"}
    assert masked_values(settings) == shown
    assert unmasked_values(shown, settings) == settings
    assert unmasked_values(shown, {"token": "t"}) == {**shown, "token": "t"}
    text = '{"comet": {"api_key": "sesame"}, "a": 1}'
    hidden = '{"comet": {"api_key": "***"}, "a": 1}'
    assert masked(["--deepspeed", text, f"--deepspeed={text}", "{x}"]) == [
        "--deepspeed", hidden, f"--deepspeed={hidden}", "{x}",
    ]  # fmt: skip


def test_split_secrets_of_command() -> None:
    words = ["dsrun", "train", "--token", "a", "--model", "m", "--hub-token=b"]
    assert split_secrets(words) == (["dsrun", "train", "--model", "m"], {"token": "a", "hub_token": "b"})
