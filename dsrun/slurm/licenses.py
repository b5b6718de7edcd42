"""The licences that a job asks for against those that the cluster has: `scontrol show licenses` and --licenses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.messages import suggestion


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
            yield finding_of("slurm_license_form", where="--licenses", entry=entry.strip())
            return
        wanted[name] += int(count or 1)
    for name, count in wanted.items():
        if name not in known:
            yield finding_of("slurm_license_unknown", where="--licenses", name=name, fix=suggestion(name, known))
        elif count > known[name]:
            yield finding_of("slurm_license_count", where="--licenses", count=count, name=name, total=known[name])
