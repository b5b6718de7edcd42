"""English–German sentence pairs from the message catalogues of Debian packages, for bench/translation.py.

Programs' translations are the one large parallel corpus that any Debian machine can fetch with its own package manager:
compiled catalogues (.mo) lie inside the packages, which are unpacked into a folder and never installed.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from gettext import GNUTranslations
from pathlib import Path

from bench.processes import COMMAND_S, HOUR_S, run
from dsrun.errors import MissingError

# The most new strings for a download of 150 MB. Left out: iso-codes, which holds names and no sentences, and KDE's
# catalogues of Qt, which are not .mo files.
PACKAGES = (
    "aptitude-common", "audacity-data", "bash", "binutils-common", "brasero-common", "claws-mail-i18n", "coreutils",
    "digikam-data", "dpkg", "e2fsprogs-l10n", "easytag", "epiphany-browser-data", "evolution-data-server-common",
    "filezilla-common", "gawk", "gcc-12-locales", "geany-common", "gettext", "gimp-data", "gnome-software-common",
    "gnumeric-common", "gnupg-l10n", "grub-common", "gthumb-data", "homebank-data", "inkscape", "kmymoney-common",
    "libc-l10n", "libglib2.0-data", "libgphoto2-l10n", "libsane-common", "libvirt-l10n", "lyx-common",
    "mate-control-center-common", "mc-data", "mutt", "nautilus-data", "network-manager-gnome", "orca",
    "postgresql-15", "postgresql-client-15", "rhythmbox-data", "shotwell-common", "subversion", "sudo", "texinfo",
    "util-linux-locales", "wget",
)  # fmt: skip

MAX_CHARACTERS = 160
MAX_RATIO = 2.5
SHARES = {"test": 15, "validation": 15}
"""Parts of 1,000 by the hash of the source; the rest is training data."""

# %s, %-5.2lf, %(name)s, {0}, {name}, ${x}, <b>, &amp;, \t
DIRECTIVE = re.compile(r"%\(\w+\)\w|%[-+ #0-9.*$']*[a-zA-Z]+|%%|\$?\{[^}]*\}|<[^>]*>|&\w+;|\\.")
# GTK's and Qt's marks of keyboard shortcuts: Save _As, E&xit; not &amp;
SHORTCUTS = (re.compile(r"_(?=\w)"), re.compile(r"&(?=\w)(?!\w+;)"))
WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True)
class Pair:
    source: str
    target: str


def fetch_packages(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Download and unpack packages below `folder`; the version of each. Those that this release of Debian does not
    have are left out. MissingError where there is no apt, or nothing to download from."""
    try:
        kinds = {"capture_output": True, "text": True, "check": True}
        policy = run(["apt-cache", "policy", *names], what="apt-cache policy", limit_s=COMMAND_S, **kinds).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise MissingError("the data comes from Debian packages, and apt-cache failed", fix="use Debian") from error
    versions = dict(re.findall(r"^(\S+):\n.*\n  Candidate: (?!\(none\))(\S+)", policy, re.MULTILINE))
    if not versions:
        raise MissingError("apt knows none of the packages", fix="run apt-get update")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [f"{name}={version}" for name, version in versions.items()]
    argv = ["apt-get", "download", *wanted]
    done = run(argv, what="apt-get download", limit_s=HOUR_S, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise MissingError(f"apt-get download failed: {done.stderr.strip().splitlines()[-1]}", fix="run apt-get update")
    for package in sorted(folder.glob("*.deb")):
        argv = ["dpkg", "-x", str(package), str(folder / package.name.partition("_")[0])]
        run(argv, what=f"dpkg -x {package.name}", limit_s=COMMAND_S, check=True)
        package.unlink()
    return versions


def read_catalogues(folder: Path) -> Iterator[Pair]:
    """All messages of the German catalogues below `folder`, in the order of the files' names. (Fuzzy translations are
    not compiled into .mo files.)"""
    for file in sorted(folder.rglob("de/LC_MESSAGES/*.mo")):
        with file.open("rb") as stream:
            # There is no public way to list a catalogue's messages.
            messages: dict[str | tuple[str, int], str] = GNUTranslations(stream)._catalog  # type: ignore[attr-defined]
        for key, target in messages.items():
            source, form = key if isinstance(key, tuple) else (key, 0)
            if form == 0:  # the catalogue keeps the English singular alone, so only its translation is one of it
                yield Pair(source.rpartition("\x04")[2], target)  # without the message's context


def clean(pair: Pair) -> Pair | None:
    """One line each, without the marks of keyboard shortcuts; None for what teaches no translation."""
    source, target = (" ".join(text.split()) for text in (pair.source, pair.target))
    for mark in SHORTCUTS:
        if len(mark.findall(source)) == len(mark.findall(target)) == 1:
            source, target = (mark.sub("", text) for text in (source, target))
    if not source or not target or source.casefold() == target.casefold():
        return None
    if not WORD.search(DIRECTIVE.sub(" ", source)) or not WORD.search(DIRECTIVE.sub(" ", target)):
        return None
    shorter, longer = sorted((len(source), len(target)))
    if longer > MAX_CHARACTERS or longer > MAX_RATIO * shorter + 10:
        return None
    return Pair(source, target)


def one_per_source(pairs: Iterable[Pair]) -> list[Pair]:
    """Each source once, with its most frequent translation; of equally frequent ones, the first."""
    targets: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        targets[pair.source][pair.target] += 1
    return [Pair(source, counts.most_common(1)[0][0]) for source, counts in targets.items()]


def part_of(source: str) -> str:
    """The part that a source belongs to: train, validation or test. Sources that differ only in case, digits,
    punctuation or directives belong to the same, so that none of them is trained on and tested."""
    words = WORD.findall(DIRECTIVE.sub(" ", source).casefold())
    place = int.from_bytes(hashlib.sha256(" ".join(words).encode()).digest()[:8]) % 1000
    for part, share in SHARES.items():
        if place < share:
            return part
        place -= share
    return "train"


def write_parts(pairs: Iterable[Pair], folder: Path) -> dict[str, int]:
    """train.jsonl, validation.jsonl and test.jsonl in the order of the sources' hashes; the number of rows of each."""
    parts: dict[str, list[Pair]] = {"train": [], **{part: [] for part in SHARES}}
    for pair in sorted(pairs, key=lambda each: hashlib.sha256(each.source.encode()).digest()):
        parts[part_of(pair.source)].append(pair)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        lines = (json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {part: len(rows) for part, rows in parts.items()}


def make_parts(catalogues: Path, folder: Path) -> dict[str, int]:
    """From the catalogues below `catalogues` to the three files in `folder`."""
    cleaned = (clean(pair) for pair in read_catalogues(catalogues))
    return write_parts(one_per_source(pair for pair in cleaned if pair), folder)
