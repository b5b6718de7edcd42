"""What only a GPU can run: `make test-gpu`. Elsewhere every test is skipped, with the reason."""

from __future__ import annotations

import pytest

from dsrun.machine.gpus import visible_gpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent.name == "gpu"]
    for item in here:
        item.add_marker(pytest.mark.gpu)
    if not visible_gpus():
        for item in here:
            item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU (nvidia-smi -L)"))


@pytest.fixture(scope="session")
def gpus():
    return visible_gpus()


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A Llama with heads of 64, which flash attention takes, and data for it: model and file."""
    return _model_and_data(tmp_path_factory.mktemp("llama"), seq2seq=False)


@pytest.fixture(scope="session")
def t5(tmp_path_factory):
    return _model_and_data(tmp_path_factory.mktemp("t5"), seq2seq=True)


def _model_and_data(folder, *, seq2seq):
    from bench.ladder.data import LLAMA, T5, make_data, make_model

    make_data(folder / "train.jsonl", seq2seq=seq2seq, samples=512)
    return make_model(folder / "model", T5 if seq2seq else LLAMA), folder / "train.jsonl"
