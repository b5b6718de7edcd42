"""The quota of this user, and on Lustre of the group, on the file system of the run folder."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsrun.doctor.host.storage import NO_INODES, run_folder
from dsrun.doctor.job.memory_plan import needs
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.conditions import findings_where, first_where
from dsrun.findings.finding import Finding

GIB = 2**30
KIB = 1024

# A row of quota(1) and `lfs quota`: used blocks of 1 KiB, soft and hard limit, time of grace, and the same of files. A
# star marks what is above its soft limit, brackets a number that lfs could not ask all servers for.
_NUMBER = r"\[?(\d+)\]?(\*)?"
_ROW = re.compile(rf"(\S+)\s+{_NUMBER}\s+(\d+)\s+(\d+)\s+(\S+)\s+{_NUMBER}\s+(\d+)\s+(\d+)")


class DiskQuota(NamedTuple):
    """What is used and allowed, in bytes and files; 0 is no limit."""

    used: int
    soft: int
    hard: int
    files: int
    files_soft: int
    files_hard: int

    @property
    def limit(self) -> int:
        return self.hard or self.soft

    @property
    def files_limit(self) -> int:
        return self.files_hard or self.files_soft


def parse_quota(text: str) -> list[DiskQuota]:
    """The rows of quota(1) or `lfs quota`; a long name stands on a line of its own before its numbers."""
    found = []
    for match in _ROW.finditer(text):
        blocks, _, soft, hard, _, files, _, files_soft, files_hard = match.groups()[1:]
        used, least, most = int(blocks) * KIB, int(soft) * KIB, int(hard) * KIB
        found.append(DiskQuota(used, least, most, int(files), int(files_soft), int(files_hard)))
    return [each for each in found if each.limit or each.files_limit]


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = run_folder(target)
    mount = machine.mount(folder)
    if mount is None:
        return
    point = str(mount.point)
    texts = [_output(machine, command) for command in _commands(machine, mount.kind, point)]
    found = [quota for text in texts for quota in parse_quota(text)]
    planned = needs(machine, target)
    names = {"point": point, "wanted": planned.checkpoint + planned.model if planned else 0, "NO_INODES": NO_INODES}
    problems = [each for quota in found for each in findings_where(__file__, "quota", quota=quota, **names)]
    yield from problems
    if found and not problems:
        left = min((each.limit - each.used for each in found if each.limit), default=None)
        yield from first_where(__file__, "within", point=point, left=left)


def _commands(machine: MachineFacts, kind: str, point: str) -> list[list[str]]:
    if kind != "lustre":
        return [["quota", "--no-wrap", "--raw-grace", "--filesystem-list", point]]
    names = {option: (machine.answer("id", f"{option}n") or "").strip() for option in ("-u", "-g")}
    return [["lfs", "quota", "-q", option, name, point] for option, name in names.items()]


def _output(machine: MachineFacts, command: Sequence[str]) -> str:
    """The output; quota(1) fails where a limit is exceeded, and prints it all the same."""
    try:
        return machine.run(command).stdout
    except DsrunError:
        return ""
