"""A site's own words for its GPUs, in its gpus.toml."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def words(environ, tmp_path):
    """Writes the user's file."""

    def write(text: str) -> None:
        file = tmp_path / "config/dsrun/gpus.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    environ["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return write


def test_site_word_is_a_gpu_everywhere(dsrun, words):
    assert "no GPU called 'big'" in dsrun("build-wheel", "--dry-run", "--arch", "big").stderr
    words('[gpus]\nBig = "H100 SXM5 80GB"\nsmall = "T4"\n')
    found = json.loads(dsrun("gpus", "--gres", "gpu:big:4,gpu:small:2", "--format", "json").stdout)
    assert '"9.0"' in json.dumps(found)
    assert '"7.5"' in json.dumps(found)
    assert dsrun("gpus", "big").returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gpus\n", "gpus.toml: Expected"),
        ("[gpu]\n", "gpus.toml: it has another form"),
        ("[gpus]\nbig = 9.0\n", "gpus.toml: it has another form"),
        ('[gpus]\nbig = "H1000"\n', "gpus.toml: big is 'H1000', which is not the name of one kind of GPU"),
    ],
)
def test_site_words_that_cannot_be_used(dsrun, words, text, message):
    words(text)
    done = dsrun("build-wheel", "--dry-run", "--arch", "big")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
