"""Folders of finished wheels: what is in them, and an index by which pip finds the right one (PEP 503)."""

import html
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from dsrun.errors import UsageError
from dsrun.system.files import replacing, sha256_of
from dsrun.wheel.verify.archive import WheelName, open_wheel
from dsrun.wheel.verify.contents import BuildNote, build_note, built_from

ALL = "simple"
"""The index of all wheels; the others are named after torch and accelerator: torch2.13-cu130."""
_MARK = "<!-- by dsrun wheel index -->"
_PAGE = """\
<!DOCTYPE html>
{mark}
<html><head><meta name="pypi:repository-version" content="1.0"><title>{title}</title></head><body>
{links}
</body></html>
"""


@dataclass(frozen=True, kw_only=True)
class WheelFile(WheelName):
    """A wheel in a folder: its file and name, what DeepSpeed's build recorded and what dsrun did (None: another's)."""

    path: Path
    requires_python: str
    note: BuildNote
    inputs: dict[str, Any] | None

    @property
    def group(self) -> str | None:
        """The torch and accelerator it is for ("torch2.13-cu130", "torch2.13-cpu"); None for another package's."""
        if not self.note.torch or not self.note.accelerator:
            return None
        device = "cpu" if self.note.accelerator == "cpu" else f"cu{(self.note.cuda or '').replace('.', '')}"
        return f"torch{self.note.torch}-{device}"

    def as_dict(self) -> dict[str, Any]:
        ops = list(self.note.installed_ops)
        facts = {"path": str(self.path), "version": self.version, "python": self.python, "platform": self.platform}
        return {**facts, "size": self.path.stat().st_size, "index": self.group, "ops": ops, "inputs": self.inputs}


def find_wheels(folder: Path) -> list[WheelFile]:
    """The wheels in `folder` and the folders in it, by name. Raises UsageError for one that cannot be read."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", fix="name a folder of wheels")
    paths = [path for path in folder.rglob("*-*.whl") if not any(part.startswith(".") for part in path.parts[-2:])]
    return [_wheel(path) for path in sorted(paths, key=lambda path: (path.name, path))]


def _wheel(path: Path) -> WheelFile:
    with open_wheel(path) as archive:
        member = archive.info_file("METADATA")
        headers = HeaderParser().parsestr(archive.read_text(member) if member else "")
        return WheelFile(
            **vars(archive.name),
            path=path,
            requires_python=str(headers.get("Requires-Python", "")),
            note=build_note(archive),
            inputs=built_from(archive),
        )


def write_index(folder: Path) -> dict[str, int]:
    """Write the index pages of the wheels below `folder` into it; how many wheels each index has.

    One index has all wheels, and there is one for each torch and accelerator, so that pip cannot take a wheel for
    another. Links are relative: the folder can be served or opened from anywhere. Pages of an earlier call that no
    wheel belongs to any more are emptied."""
    wheels = find_wheels(folder)
    groups: dict[str, list[WheelFile]] = defaultdict(list, {ALL: wheels})
    for wheel in wheels:
        if wheel.group:
            groups[wheel.group].append(wheel)
    for page in folder.glob("*/index.html"):
        if _MARK in page.read_text(encoding="utf-8", errors="replace"):
            groups.setdefault(page.parent.name, [])
    for name, members in groups.items():
        _write_pages(folder / name, members)
    return {name: len(members) for name, members in groups.items()}


def _write_pages(root: Path, wheels: Sequence[WheelFile]) -> None:
    before = [page.parent.name for page in root.glob("*/index.html")]
    projects: dict[str, list[WheelFile]] = defaultdict(list, {name: [] for name in before})
    for wheel in wheels:
        projects[canonicalize_name(wheel.name)].append(wheel)
    for project, members in projects.items():
        links = (_link(wheel, root) for wheel in {wheel.path.name: wheel for wheel in members}.values())
        _write(root / project / "index.html", project, links)
    _write(root / "index.html", root.name, (f'<a href="{name}/">{name}</a><br>' for name in sorted(projects)))


def _link(wheel: WheelFile, root: Path) -> str:
    place = quote(wheel.path.relative_to(root.parent).as_posix())
    requires = f' data-requires-python="{html.escape(wheel.requires_python)}"' if wheel.requires_python else ""
    return f'<a href="../../{place}#sha256={sha256_of(wheel.path)}"{requires}>{html.escape(wheel.path.name)}</a><br>'


def _write(page: Path, title: str, links: Iterable[str]) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    with replacing(page) as partial:
        partial.write_text(_PAGE.format(mark=_MARK, title=title, links="\n".join(links)), encoding="utf-8")
