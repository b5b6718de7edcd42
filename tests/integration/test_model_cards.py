"""Finished runs leave a card whose example works."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest
from huggingface_hub import ModelCard

from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, many_runs

pytestmark = pytest.mark.train


def test_cards_of_runs_and_their_examples(tiny, pairs, tmp_path, monkeypatch):
    """A LoRA run and a seq2seq run: the cards' code runs where the run lies. A second start keeps an edited card."""
    data = ["--train-file", pairs["train"], "--validation-file", pairs["validation"], *SHORT, "--max-steps", "2"]
    lora = ["--model", tiny["llama"], "--lora", "4", *data, "--save-steps", "2", "--output", str(tmp_path / "chat")]
    whole = ["--model", tiny["t5"], *data, "--zero", "3", "--save-strategy", "no", "--output", str(tmp_path / "t5")]
    many_runs([lora, whole], ranks=2, scratch=tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in ("chat/adapter", "chat/model", "t5/model"):
        card = ModelCard.load(tmp_path / folder / "README.md")
        assert {each.dataset_split for each in card.data.eval_results} == {"validation"}
        assert tiny["llama"].rpartition("/")[0] not in str(card)
        code = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, folder, "exec"), {})
        assert out.getvalue().endswith("\n")
    exported = [sys.executable, "-m", "dsrun", "export", "chat", "--to", "exported"]
    assert HEAVY.run(exported, cwd=tmp_path, capture_output=True, text=True).returncode == 0
    assert (tmp_path / "exported/README.md").read_bytes() == (tmp_path / "chat/adapter/README.md").read_bytes()
    edited = tmp_path / "chat" / "adapter" / "README.md"
    edited.write_text(edited.read_text() + "It is good at greetings.\n")
    (tmp_path / "chat" / "model" / "README.md").unlink()
    many_runs([lora], ranks=2, scratch=tmp_path)
    assert edited.read_text().endswith("It is good at greetings.\n")
    assert (tmp_path / "chat" / "model" / "README.md").exists()
