"""What is a secret, by its key or its form, and commands, settings and text without it."""

import time

import pytest

from dsrun.system.terminal.secrets import (
    is_secret_flag,
    is_secret_variable,
    masked,
    masked_values,
    split_secrets,
    unmasked_values,
    without_tokens,
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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("curl -u me:sesame https://x", "curl -u me:*** https://x"),
        ("curl -ume:sesame https://x", "curl -ume:*** https://x"),
        ("curl -H 'Authorization: Basic sesame' x", "curl -H 'Authorization: Basic ***' x"),
        ('curl -H "X-Api-Key: sesame" x', 'curl -H "X-Api-Key: ***" x'),
        ("curl 'https://x/?a=b&key=sesame#c'", "curl 'https://x/?a=b&key=***#c'"),
        ('not JSON: \'{"a": {"api_key": "sesame"},}\'', 'not JSON: \'{"a": {"api_key": "***"},}\''),
        ("not JSON: '{a: {password: sesame}'", "not JSON: '{a: {password: ***}'"),
        ('{"token": 12, "a": 3}', '{"token": "***", "a": 3}'),
        ("GET https:/me:sesame@x/a", "GET https:/***@x/a"),
        ("GET https:/me:se@same@x/a", "GET https:/***@x/a"),
        ("python t.py --token sesame1 --x", "python t.py --token *** --x"),
        ("HF_TOKEN=sesame1 a.api_key='sesame b' x", "HF_TOKEN=*** a.api_key='***' x"),
        ("curl -d token=sesame1 x", "curl -d token=*** x"),
        ("rank 0 ended with exit code 1: token = sesame12", "rank 0 ended with exit code 1: token = ***"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = ***"),
        ("os.environ['HF_TOKEN'] = 'sesame'", "os.environ['HF_TOKEN'] = '***'"),
        ("key AKIAIOSFODNN7EXAMPLE", "key ***"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "***"),
        ("dckr_pat_abcdefghijklmnopqrst xapp-1-A123-456-abcdefghijk", "*** ***"),
        ("POST https://api.telegram.org/bot12:sesame/sendMessage failed", "POST https://api.telegram.org/*** failed"),
        ("https://a.webhook.office.com/webhookb2/1@2/b/c", "https://a.webhook.office.com/webhookb2/***"),
        ("https://open.feishu.cn/open-apis/bot/v2/hook/1-2", "https://open.feishu.cn/open-apis/bot/v2/hook/***"),
        ("docker login -u me -p sesame x; docker run -p 8:8 x", "docker login -u me -p *** x; docker run -p 8:8 x"),
    ],
)
def test_forms_of_secrets_in_text(line: str, shown: str) -> None:
    assert without_tokens(line) == shown
    assert without_tokens(shown) == shown


@pytest.mark.parametrize(
    "line",
    [
        "docker run -u me:users x",
        "curl -u me:$PASSWORD https://x",
        'curl -H "Authorization: Bearer $TOKEN" https://x',
        "--hub-token: is empty",
        "write --secret API_KEY=SECRET:KEY",
        '{"token": null, "has_secret": true, "api_key": ""}',
        "unexpected token: x",
        "if token == eos_token_12: a token = the next word, api_key = $KEY",
        "hub_token: unknown",
        "write HF_TOKEN=VALUE or HF_TOKEN=hub:token, and remove --token from it",
    ],
)
def test_text_without_a_secret_stays(line: str) -> None:
    assert without_tokens(line) == line


def test_settings_of_a_vocabulary_stay() -> None:
    words = ["pad_token_id=3", "model.eos_token=</s>", "max_tokens=4", "sep_token=x"]
    assert masked(words) == words
    assert masked(["trainer.api_key=x", "+wandb.token=x", "WANDB_API_KEY=x"]) == [
        "trainer.api_key=***", "+wandb.token=***", "WANDB_API_KEY=***",
    ]  # fmt: skip


def test_split_secrets_of_command() -> None:
    words = ["dsrun", "train", "--token", "a", "--model", "m", "--hub-token=b"]
    assert split_secrets(words) == (["dsrun", "train", "--model", "m"], {"token": "a", "hub_token": "b"})


@pytest.mark.parametrize(
    "part", ["--.-", ":/a:", "sk-", "token : ", "a b ", '{"a":', "-u ", "https://a-", "X-", "docker login ", "token = "]
)
def test_time_of_long_text_is_linear(part: str) -> None:
    """A minute where it is quadratic."""
    begun = time.process_time()
    without_tokens(part * (160_000 // len(part)))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("word", ["a\xa0b", "a\x0bb", "'a b'", "a\\ b"])
def test_word_of_one_word_is_no_command(word: str) -> None:
    assert masked([word]) == [word]


def test_inner_command_keeps_its_other_words() -> None:
    assert masked(["bash", "-c", "python train.py --token a --data a"])[2] == "python train.py --token *** --data a"


def test_variables_in_what_others_can_read() -> None:
    """What refuses them looks at the value, too: a switch, a number and a placeholder are no secret."""
    fine = {
        "PASS_AT_K": "8",
        "TWO_PASS": "12",
        "OPENAI_API_KEY": "EMPTY",
        "REWARD_KEY": "score",
        "A_TOKEN": "true",
        "B_TOKEN": "/x",
    }
    assert [name for name, value in fine.items() if is_secret_variable(name, value)] == []
    told = {
        "DB_PASS": "word",
        "OPENAI_API_KEY": "word",
        "HF_TOKEN": "$MY",
        "wandb_api_key": "7a",
        "AWS_SECRET_ACCESS_KEY": "/aB3" + "x" * 36,
    }
    assert [name for name, value in told.items() if not is_secret_variable(name, value)] == []


@pytest.mark.parametrize("words", ["--use_wandb {}", "--wandb_key {}", "wandb login --relogin {}", "--ms_token x{}"])
def test_keys_of_trackers(words: str) -> None:
    key = "0123456789abcdef" * 2 + "01234567"
    assert key not in " ".join(masked(words.format(key).split()))
    assert key not in without_tokens(words.format(key))


@pytest.mark.parametrize(
    "line",
    [
        "docker login -u me -p {} registry", "podman login -p{} registry", "sshpass -p {} ssh host",
        "wandb login --relogin {}", "python t.py wandb.key={}", "python t.py --wandb.key {}",
        "AWS_SECRET_ACCESS_KEY={} x", "curl -u me:{} x",
    ],
)  # fmt: skip
def test_word_and_line_lose_the_same(line: str) -> None:
    """A command as words, and the same one as a word of another."""
    key = "/ab/Cd9fGhIjKlMnOpQrStUvWxYz0123456789+/"
    hidden = line.format("***")
    if "wandb login" in line:
        key = "0123456789abcdef" * 2 + "01234567"
    assert masked(line.format(key).split()) == hidden.split()
    assert masked([line.format(key)]) == [hidden]


def test_path_and_field_are_no_keys() -> None:
    words = ["HF_TOKEN=/home/me/secrets/token/file", "data.key=text", "sort.key=x", "docker", "run", "-p", "8080:80"]
    assert masked(words) == words
