"""What libraries say of themselves does not reach the terminal; all else does, as soon as it can."""

from __future__ import annotations

import pytest

from dsrun.system.terminal.log_format import NoiseFilter

SITE = "/env/lib/python3.11/site-packages"
NOISE = [
    f"W1127 13:59:34.451000 18041 {SITE}/torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1\n",
    "E1127 14:01:33.951000 19068 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n",
    f"W1127 13:55:58.296000 14964 {SITE}/torch/utils/_pytree.py:630] <enum 'KernelPreference'> is an Enum subclass\n",
    f"[rank1]:W1127 13:59:34.451000 18041 {SITE}/torch/distributed/distributed_c10d.py:5 no device id is given\n",
    "[W1127 13:59:34.451000123 NNPACK.cpp:57] Could not initialize NNPACK! Reason: Unsupported hardware.\n",
    "[rank0]:[W1127 13:59:34.451000123 ProcessGroupGloo.cpp:757] Warning: Unable to resolve hostname\n",
    "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n",
    f"Failed to load {SITE}/torchao/_C_mxfp8.so: Could not load this library\n",
    "[2026-11-27 13:59:34,451] [WARNING] [real_accelerator.py:209:get_accelerator] Setting accelerator to CPU.\n",
    f"{SITE}/torch/distributed/c10d_logger.py:83: FutureWarning: `all_gather_into_tensor` is deprecated.\n"
    "  return func(*args, **kwargs)\n",
]
WORDS = [
    "step 3 loss 0.5\n",
    "[rank1]: Traceback (most recent call last):\n",
    "[rank1]: RuntimeError: boom\n",
    "  indented\n",
    "Epoch 1:  10%|█         | 1/10\rEpoch 1:  20%|██        | 2/10\r",
    "[2026-11-27 13:59:34,451] [INFO] [logging.py:107:log_dist] [Rank 0] step=10\n",
    "/home/ada/train.py:3: UserWarning: the data is odd\n  warn()\n",
    f"{SITE}/torch/optim/lr_scheduler.py:1: UserWarning: Detected call of `lr_scheduler.step()` before\n",
    "[rank0]:[E1127 13:59:34.451000123 ProcessGroupNCCL.cpp:757] Watchdog caught collective operation timeout\n",
    "Enter a name [y/n]? ",
    "WER 0.3",
]


def filtered(text: str, size: int) -> str:
    data, noise = text.encode(), NoiseFilter()
    pieces = [noise.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return b"".join([*pieces, noise.end()]).decode()


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("line", NOISE)
def test_noise_is_left_out_however_it_is_cut(line, size):
    assert filtered(f"before\n{line}after\n", size) == "before\nafter\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("words", WORDS)
def test_words_of_programs_stay_however_they_are_cut(words, size):
    assert filtered(f"before\n{words}", size) == f"before\n{words}"
    assert filtered(f"{NOISE[0]}{words}", size) == words


@pytest.mark.parametrize(
    "words", ["Epoch 1:  10%|█", "loss 0.5", "a line\nand a half", "[12/100] compiling", "/data:  1%\r/data:  2%"]
)
def test_unfinished_line_is_shown_at_once(words):
    assert NoiseFilter().feed(words.encode()).decode() == words
