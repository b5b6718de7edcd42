"""The licences that a job asks for against those that the cluster has: `scontrol show licenses` and --licenses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from dsrun.findings.finding import Finding
from dsrun.messages import Message, suggestion
from dsrun.slurm.request import error


def check_licenses(text: str, known: Mapping[str, int]) -> Iterator[Finding]:
    """What `text`, as --licenses has it, asks for beyond `known`, the totals by name.

    SLURM's words for all of this are "Invalid license specification"; it tells upper from lower case, and a name
    includes its server. Of alternatives (`a|b`, since 24.11) one that is there is enough.
    """
    found = [list(_of_list(each, known)) for each in text.split("|")]
    if all(found):
        yield from found[0]


def _of_list(text: str, known: Mapping[str, int]) -> Iterator[Finding]:
    wanted: Counter[str] = Counter()
    for entry in re.split("[,;]", text):
        name, colon, count = entry.strip().partition(":")
        if not name or (colon and not re.fullmatch(r"[0-9]{1,9}", count)):
            yield error(
                "license_form",
                Message("{entry!r} is not a licence", entry=entry.strip()),
                Message("NAME or NAME:COUNT, with commas"),
                "--licenses",
            )
            return
        wanted[name] += int(count or 1)
    for name, count in wanted.items():
        if name not in known:
            yield error(
                "license_unknown",
                Message("there is no licence {name!r}", name=name),
                suggestion(name, known),
                "--licenses",
            )
        elif count > known[name]:
            yield error(
                "license_count",
                Message(
                    "the job wants {count} licences of {name}, and the cluster has {total}",
                    count=count,
                    name=name,
                    total=known[name],
                ),
                f"--licenses {name}:{known[name]}",
                "--licenses",
            )
