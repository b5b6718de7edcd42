"""A secret in every place where a user can write one is in no output, error or written file of any command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dsrun.runs.records import EventLog
from dsrun.system.terminal.secrets import masked, without_tokens

CANARY = "Canary4u7xq"
MODEL = ("--model", "demo-t5")
BLOCK = {"zero_optimization": {"stage": 1}, "comet": {"enabled": False, "api_key": CANARY}}
FILES = {
    "ds.json": json.dumps(BLOCK),
    "broken.json": f'{{"comet": {{"api_key": "{CANARY}"}},}}',
    "args.json": json.dumps({"model": "demo-t5", "hub_token": CANARY, "deepspeed": BLOCK}),
    "deep.yaml": f"train:\n  model: demo-t5\n  deepspeed: {json.dumps(BLOCK)}\n",
    "token.yaml": f"train:\n  model: demo-t5\n  token: {CANARY}\n  hub_token: {CANARY}\n",
    "url.yaml": f"train:\n  model: demo-t5\n  train_file: https://me:{CANARY}@example.org/a.jsonl\n",
    "notify.yaml": f"train:\n  model: demo-t5\n  notify: ['curl -u me:{CANARY} https://example.org']\n",
    "typo.yaml": f"train:\n  model: demo-t5\n  deepspeed: '{{comet: {{api_key: {CANARY}}}'\n",
    "unknown.yaml": f"train: {{model: demo-t5, api_key: {CANARY}}}\n",
    "unclosed.yaml": f"train:\n  deepspeed: {{comet: {{api_key: '{CANARY}'}}\n",
    "job.yaml": f"train: {{model: demo-t5}}\nslurm: {{env: [A_KEY={CANARY}]}}\nk8s: {{env: [A_SECRET={CANARY}]}}\n",
    "x.py": "",
    "hosts": "alpha slots=1\nbeta slots=1\n",
}
NOTIFY = (
    f"curl -u me:{CANARY} https://example.org",
    f"curl --user=me:{CANARY} https://example.org",
    f'curl -H "Authorization: Bearer {CANARY}" https://example.org',
    f"curl -H 'X-Api-Key: {CANARY}' https://example.org",
    f"curl 'https://example.org/a?b=c&key={CANARY}'",
    f'./tell.sh --password "{CANARY} {CANARY}"',
    f"https://example.org/a?sig={CANARY}",
    f"https://me:{CANARY}@example.org/a",
    f"hooks.slack.com/services/{CANARY}",
    f"example.org/a?token={CANARY}",
)
TRAININGS = {
    "token": (*MODEL, "--token", CANARY),
    "hub_token": (*MODEL, f"--hub_token={CANARY}"),
    "tokens that differ": (*MODEL, "--hub_token", CANARY, "--push_to_hub_token", f"{CANARY}2"),
    "deepspeed": (*MODEL, "--deepspeed", json.dumps(BLOCK)),
    "deepspeed=": (*MODEL, f"--deepspeed={json.dumps(BLOCK)}"),
    "deepspeed, not JSON": (*MODEL, "--deepspeed", FILES["broken.json"]),
    "deepspeed, not quoted": (*MODEL, "--deepspeed", f"{{comet: {{api_key: {CANARY}}}}}"),
    "deepspeed, Python": (*MODEL, "--deepspeed", str(BLOCK)),
    "deepspeed, a list": (*MODEL, "--accelerator_config", json.dumps([BLOCK])),
    "URL of data": (*MODEL, "--train-file", f"https://example.org/a.jsonl?X-Amz-Signature={CANARY}"),
    **{f"file {name}": (*MODEL, "--deepspeed", name) for name in ("ds.json", "broken.json")},
    "args.json": ("args.json",),
    **{name: ("--config", name) for name in FILES if name.endswith(".yaml")},
    **{f"notify {number}": (*MODEL, "--notify", text) for number, text in enumerate(NOTIFY)},
}
COMMANDS = {
    "train": ("train", "--dry-run", "true"),
    "explain": ("train", "--explain", "true"),
    "prepare": ("prepare", "--dry-run", "true"),
    "data": ("data", "--dry-run", "true"),
    "launch": ("launch", "--dry-run", "--output", "run", "--", "dsrun", "train"),
    "ssh": ("launch", "--dry-run", "--hostfile", "hosts", "--master-addr", "alpha", "--", "dsrun", "train"),
    "slurm": ("render-slurm", "-o", "job.sh", "--", "train"),
    "k8s": ("render-k8s", "--claim", "runs", "-o", "k8s.yaml", "--", "train"),
}
PROGRAMS = (
    ("--api-key", CANARY),
    (f"--wandb.token={CANARY}",),
    (f"trainer.api_key={CANARY}",),
    (f"WANDB_API_KEY={CANARY}",),
    ("--header", f"Authorization: Basic {CANARY}"),
    ("--data", f"https://example.org/a?token={CANARY}"),
    ("--options", json.dumps(BLOCK)),
    ("--options", f"{{api_key: {CANARY}}}"),
    ("--hook", f'sh -c "curl -u me:{CANARY} https://example.org"'),
    ("--hook", f'export WANDB_API_KEY="{CANARY}"; python t.py'),
    ("--hook", f"HF_TOKEN='{CANARY} {CANARY}' python t.py"),
    (f"DB_PASS=a b'{CANARY}",),
    (f"BASIC_AUTH={CANARY}",),
    (f"postgresql://me:pa@{CANARY}@db/x",),
    (f"https://{CANARY}{CANARY}@example.org",),
    (f"https://example.org/?pwd={CANARY}#access_token={CANARY}",),
    *((flag, CANARY) for flag in ("--oauth2-bearer", "--passphrase", "--pwd", "--gitlab-token", "--id_token", "--jwt")),
    ("--json", f"token: {CANARY}"),
    ("curl", "-b", f"session={CANARY}"),
    ("curl", "-H", f'apikey: {CANARY}"{CANARY}'),
    ("sshpass", "-p", CANARY),
    ("wandb", "login", f"{CANARY}{CANARY}"),
)
# As a shell takes them.
PLAIN = """
data.prompt_key=prompt data.label_key=y actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 data.text_key=content
model.image_token_index=32000 model.image_token=<image> token_dim=3 optimizer.token_lr=3 max_tokens=4 IMAGE_TOKEN=32000
--data https://h/x?code=en --url https://h/x?sort_key=name --url https://me@host.org/x git@github.com:me/x.git
--run-name sk-transformer-large-2024-01 --run-name hf_transformer_large_model_v2
--api-key-env OPENAI_API_KEY --credentials-file=/home/me/c.json --secretary bob --compass-dir x --passwise y
--prompt 'The cookie: crunchy' --prompt 'Cookie: crunchy' --prompt 'What is the token: a word?' --pad-token '</s>'
--token $HF_TOKEN HF_TOKEN=$MY 'HF_TOKEN=$(cat ~/.hf) python t.py' 'export WANDB_API_KEY="$KEY"; python t.py'
AWS_SHARED_CREDENTIALS_FILE=/path HF_TOKEN_PATH=x OPENAI_API_KEY_FILE=key.txt GOOGLE_APPLICATION_CREDENTIALS=/path
'docker run -u me:users img python -c http' -u me:users img python -c http SORT_KEY=len 'wandb login; python3 t.py'
PASS_AT_K=8 TWO_PASS=1 HF_HUB_DISABLE_IMPLICIT_TOKEN=1 OPENAI_API_KEY=EMPTY --api_key EMPTY --api-key dummy
KEY_VALUE_HEADS=8 REWARD_KEY=score DATA_KEY=text --use_wandb true --wandb_project 0123456789abcdef TOKEN_MEAN=1
TOKENIZERS_PARALLELISM=false MAX_TOKENS=4096 --use-auth-token true --decoder_start_token x --password-stdin x
"""
OPTIONS = (
    ("render-slurm", "--env", f"WANDB_API_KEY={CANARY}"),
    ("render-slurm", "--env", f"URL=https://me:{CANARY}@example.org"),
    ("render-slurm", "--sbatch", f"comment=https://me:{CANARY}@example.org"),
    ("render-slurm", "--time", f"https://me:{CANARY}@example.org"),
    ("render-k8s", "--env", f"WANDB_API_KEY={CANARY}"),
    ("render-k8s", "--env", f"HEADER=Authorization: Bearer {CANARY}"),
    ("render-k8s", "--secret", f"WANDB_API_KEY={CANARY}"),
    ("render-k8s", "--annotation", f"a=https://example.org/?key={CANARY}"),
)


@pytest.fixture
def leaks(dsrun, here, environ):
    """Call dsrun where all files and variables have the secret: whether it ran, and where the secret came out."""
    environ |= {
        "HF_TOKEN": CANARY, "WANDB_API_KEY": CANARY, "COMET_API_KEY": CANARY, "CHAT": f"https://example.org/{CANARY}",
        "https_proxy": f"http://me:{CANARY}@127.0.0.1:9", "HF_ENDPOINT": f"https://me:{CANARY}@127.0.0.1:9",
    }  # fmt: skip
    for name, text in FILES.items():
        (here / name).write_text(text)

    def call(*args: str) -> tuple[int, list[str]]:
        done = dsrun(*args)
        said = [line for line in (done.stdout + done.stderr).splitlines() if CANARY in line]
        assert "Traceback" not in done.stderr
        return done.returncode, said + [
            str(path) for path in _written(here) if CANARY in path.read_text("utf-8", "replace")
        ]

    return call


def _written(here: Path) -> list[Path]:
    """Every file but the user's own."""
    return [path for path in here.rglob("*") if path.is_file() and path.name not in FILES]


@pytest.mark.parametrize("place", TRAININGS)
def test_secret_of_training_comes_out_nowhere(leaks, place):
    found = {name: leaks(*command, *TRAININGS[place]) for name, command in COMMANDS.items()}
    assert {name: said for name, (_, said) in found.items() if said} == {}
    assert {code for code, _ in found.values()} <= {0, 2, 4}


@pytest.mark.parametrize("words", PROGRAMS, ids=str)
def test_secret_of_program_comes_out_nowhere(leaks, words):
    """Shown, it is masked; a job with it is refused."""
    commands = {name: command[: command.index("--") + 1] for name, command in COMMANDS.items() if "--" in command}
    found = {name: leaks(*command, "python", "x.py", *words) for name, command in commands.items()}
    assert {name: said for name, (_, said) in found.items() if said} == {}
    assert {name: code for name, (code, _) in found.items()} == {"launch": 0, "ssh": 0, "slurm": 2, "k8s": 2}


def test_what_is_no_secret_is_shown_and_runs(dsrun, here):
    """A job is refused for its first secret; each word is shown as it is."""
    words = shlex.split(PLAIN)
    shown = masked(words)
    assert [word for word, told in zip(words, shown, strict=True) if word != told] == []
    assert [line for line in PLAIN.splitlines() if without_tokens(line) != line] == []
    done = dsrun("render-slurm", "-o", "job.sh", "--", "python", "x.py", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("args", OPTIONS, ids=str)
def test_secret_in_option_of_job_is_refused_unseen(leaks, args):
    assert leaks(*args, "--", "python", "x.py") == (2, [])


def test_secret_of_run_is_not_recorded(leaks, here):
    """What a run of any program writes about itself."""
    with EventLog(here / "events.jsonl") as events:
        events.write("failure", message=f"GET https://me:{CANARY}@example.org")
    code, said = leaks("launch", "--output", "run", "--nproc", "1", "--", "python", "x.py", "--api-key", CANARY)
    assert (code, said) == (0, [])
    assert any((here / "run").iterdir())


@pytest.mark.parametrize("name", ["ds.json", "broken.json"])
def test_secret_of_checked_file_is_not_shown(leaks, name):
    assert leaks("config", "check", name)[1] == []
