"""Every log of the corpus in every form and mutilation keeps its cause, or is unknown with the line that decides."""

import html
from collections.abc import Iterator
from functools import cache
from zlib import crc32

import pytest

from dsrun.diagnosis.diagnose import NO_END, NONE, RunVerdict, of_logs
from dsrun.diagnosis.log.reading import read_log
from dsrun.diagnosis.rules import causes
from tests.log_forms import FORMS, MUTILATIONS, Form
from tests.unit.diagnosis.test_classify import ALSO, CORPUS, LINES, LOGS

# Each log meets one form in so many in each mutilation, others in another one.
SHARE = 79
CUT = ("first half", "last three lines")


def whole(text: str) -> str:
    return text


@cache
def logs() -> dict[str, str]:
    paths = {str(path): CORPUS / path for path in LOGS}
    return {
        name: b"".join(data[:limit] for data, limit in read_log(path, name)).decode() for name, path in paths.items()
    }


@cache
def decisive_lines() -> dict[str, str]:
    """The line that decides by log: as listed, else what the log itself is judged by."""
    return {name: LINES.get(name) or verdict_of(text).evidence.strip("…")[:60] for name, text in logs().items()}


def verdict_of(text: str) -> RunVerdict:
    return of_logs({"log": text.encode()})


def cases(mutilation: str) -> Iterator[tuple[str, str, str]]:
    """Logs by name with the form they are in and what became of them."""
    mutilate: Form = MUTILATIONS.get(mutilation, whole)
    turn = [*MUTILATIONS, "whole"].index(mutilation)
    for at, (form, wrap) in enumerate(FORMS.items()):
        for name, text in logs().items():
            healthy = name.startswith(f"{NONE}/")
            # A part of a healthy log may lack what shows that it is.
            if (crc32(name.encode()) + at + turn) % SHARE or (healthy and mutilation in CUT):
                continue
            if (mutilated := mutilate(text)).strip():
                yield name, form, wrap(mutilated)


def in_plain(text: str) -> str:
    return html.unescape(html.unescape(text)).replace("\\", "").replace("[rank0]: ", "").replace("[rank1]: ", "")


def kept(name: str, mutilated: str, text: str, verdict: RunVerdict) -> bool:
    """Whether a verdict on a part of a log is right.

    An exception without its frames is no longer known to be of the script or of a library, so that a general cause is
    right, too, by the same line; of half a build that it is one of a package. A level of INFO in front of each line
    says that none of them is a failure.
    """
    cause, wanted = causes()[verdict.cause.code], name.partition("/")[0]
    if wanted == NONE:
        return cause.code in (NONE, NO_END)
    if wanted in (cause.code, cause.within_cause) or cause.code in ALSO.get(name, ()):
        return True
    if cause.code == NO_END and all("INFO" in line for line in text.splitlines()):
        return True
    decisive = in_plain(decisive_lines()[name])
    if decisive not in in_plain(mutilated):
        return True  # what decides is not there
    shown = (verdict.evidence, *(line.text for line in verdict.excerpt))
    told = any(decisive in in_plain(text) for text in shown)
    return told and (cause.code == "unknown" or cause.general)


@pytest.mark.parametrize("mutilation", ["whole", *MUTILATIONS])
def test_log_keeps_its_cause_in_all_forms(mutilation: str) -> None:
    wrong = []
    for name, form, text in cases(mutilation):
        verdict = verdict_of(text)
        if not kept(name, MUTILATIONS.get(mutilation, whole)(logs()[name]), text, verdict):
            wrong.append((name, form, verdict.cause.code, verdict.evidence))
    assert not wrong, f"{len(wrong)}: {wrong[:20]}"
