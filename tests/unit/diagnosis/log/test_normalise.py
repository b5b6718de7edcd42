"""A log comes out of every form as it went in, and a plain one stays as it is."""

import re
from pathlib import Path

import pytest

from dsrun.diagnosis.log.normalise import LogForm
from dsrun.diagnosis.log.reading import read_log
from tests.log_forms import FORMS, MUTILATIONS

CORPUS = Path(__file__).parents[3] / "data" / "causes"
# Without a frame nothing shows where these prefixes end, or that the level is not the message's own.
UNSURE = {"stern", "loguru", "logging", "cloudwatch", "azureml"}
# One space more may be the prefix's.
NARROW = {"trainer without a space", "torchrun tee", "mpirun", "sagemaker"}
# Logs whose own lines have a label, or are records.
LABELLED = {
    "own_code/exception-group.txt", "own_code/slurm-labelled-task-failed.txt", "own_code/structlog-json.txt",
    "own_code/torchrun-role-and-tee.txt", "connection_failed/curl-dns.txt",
}  # fmt: skip
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in <module>\n    main()\n'


def clean(*pieces: str) -> str:
    form = LogForm()
    return "".join(form.clean(piece.encode()).decode() for piece in pieces)


def logs() -> dict[str, str]:
    paths = sorted(CORPUS.glob("*/*.txt"))
    return {
        str(path.relative_to(CORPUS)): b"".join(data[:limit] for data, limit in read_log(path, path.name)).decode()
        for path in paths
    }


def lines_of(text: str, *, narrow: bool) -> list[str]:
    """Lines without spaces at their ends, which the forms cut off."""
    lines = [line.rstrip(" ") for line in text.removesuffix("\n").split("\n")]
    return [re.sub(r"^ (?=\S)", "", line) for line in lines] if narrow else lines


@pytest.mark.parametrize("name", FORMS)
def test_log_is_read_out_of_form(name: str) -> None:
    """Nearly every log: of lines that are all alike, and of a form in another one, nothing tells what is in front."""
    wrong = []
    for log, text in logs().items():
        wrapped = FORMS[name](text)
        cleaned = clean(wrapped)
        assert cleaned.count("\n") == wrapped.count("\n"), log
        # A second prefix, the log's own, may be left where it stands alone.
        found, plain, bare = (lines_of(each, narrow=name in NARROW) for each in (cleaned, text, clean(text)))
        whole = '  File "' in text or (name not in UNSURE and len(plain) > 2)
        if not (found in (plain, bare) if whole else found[-1].endswith(bare[-1].lstrip())):
            wrong.append(log)
    assert len(wrong) <= len(logs()) // (20 if name in NARROW else 70), wrong


def test_plain_log_stays_as_it_is() -> None:
    """Of a plain log only the labels of ranks, and times before all lines, are taken away."""
    for log, text in logs().items():
        if log in LABELLED:
            continue
        lines = (each.replace("\r", "").split("\n") for each in (text, clean(text)))
        for line, cleaned in zip(*lines, strict=True):
            assert line.endswith(cleaned), log
            assert re.fullmatch(r"|\[rank\d\]: ?|\[[-\d:,. ]+\] |[-\d]{10} [\d:]{8} ", line.removesuffix(cleaned)), log


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: first\nRuntimeError: second\nRuntimeError: third",
        "[ERROR] first\n[ERROR]   second\n[ERROR] third",
        "ERROR: first\nERROR: No matching distribution\nERROR:   third",
        "slurmstepd: error: first\nslurmstepd: error:   second\nslurmstepd: error: third",
        "node01:41:43 [0] NCCL INFO Channel 0\nnode01:41:43 [0] NCCL INFO Ring 0\nnode01:41:43 [0] NCCL INFO Trees",
        "{'loss': 2.3, 'epoch': 0.1}\n{'loss': 2.2, 'epoch': 0.2}\n{'eval_loss': 2.1, 'epoch': 0.2}",
        '{"loss": 2.3, "epoch": 0.1}\n{"loss": 2.2, "epoch": 0.2}\n{"eval_loss": 2.1, "epoch": 0.2}',
        "  0%|          | 0/4 [00:00<?, ?it/s]\n 25%|##        | 1/4 [00:01<00:03,  1.0it/s]\n 50%|#####     | 2/4",
        "| gpu | memory |\n|   0 |   40 GB |\n|   1 |      0 |",
        "0   12   a\n1    3   b\n2   41   c",
        "def main():\n    if x:\n        raise ValueError(x)\n    return 'Traceback (most recent call last)'",
        "x.cu(3): error: a\nx.cu(4): error: b\nx.cu(5): warning: c",
        "Epoch 1: train loss 2.3\nEpoch 1: eval loss 2.2\nEpoch 1: done",
        "sizes are [0, 1, 2] and [3, 4](5) <not a tag> & more `ValueError` of **x**",
        "2026-11-21 04:12:07 ERROR job failed\nTraceback (most recent call last):\nKeyError: 'x'",
    ],
)
def test_what_repeats_in_messages_stays(line: str) -> None:
    assert clean(f"{line}\n") == f"{line}\n"


def test_prefix_learned_from_one_piece_goes_from_the_next() -> None:
    first = "".join(f"gpu-a1/worker@{number}> {line}\n" for number, line in enumerate(TRACEBACK.splitlines()))
    assert clean(first, "gpu-a1/worker@7> KeyError: 'labels'\n") == f"{TRACEBACK}KeyError: 'labels'\n"


def test_mixed_ranks_keep_what_tells_them_apart() -> None:
    """Ranks within each other's tracebacks keep their labels, not what stands before those; else they go."""
    log = f"{TRACEBACK}KeyError: 'labels'\n"
    mixed = MUTILATIONS["interleaved"](log)
    assert clean(FORMS["kubectl prefix"](mixed)) == clean(mixed) == mixed
    assert clean("".join(FORMS["rank"](log).replace("rank1", rank) for rank in ("rank2", "rank5"))) == log * 2


def test_failed_record_has_its_level_and_traceback_in_one_line() -> None:
    record = '{"time": "12:00", "level": "%s", "message": "step \\"%s\\" done", %s}\n'
    log = record % ("info", 1, '"x": 1') + record % ("ERROR", 2, '"exc_info": "Traceback:\\nKeyError: 3\\n"')
    assert clean(log) == 'step "1" done\nERROR: step "2" done\rTraceback:\rKeyError: 3\n'


def test_own_records_of_dsrun_stay() -> None:
    log = '{"@timestamp": "2026-11-21T11:51:06Z", "log.level": "error", "message": "no", "service.name": "dsrun"}\n'
    assert clean(log) == log


def test_escaped_traceback_has_its_lines() -> None:
    line = f'worker said b"{TRACEBACK}KeyError: 3"'.replace("\n", "\\n")
    assert clean(f"{line}\n").split("\r") == [*f'worker said b"{TRACEBACK}'.splitlines(), 'KeyError: 3"\n']


@pytest.mark.parametrize("bar", [" 12%|#1  | 12/100 [00:03<00:21,  4.05it/s, loss=2.3]", "3it [01:00:03, 2.1s/it]"])
def test_message_behind_progress_bar_is_a_line(bar: str) -> None:
    assert clean(f"{bar}KeyError: 3\n{bar}\n") == f"{bar}\rKeyError: 3\n{bar}\n"


def test_exception_in_bold_is_a_line() -> None:
    assert clean("It says **OSError: no space** again.\n") == "It says \rOSError: no space again.\n"
