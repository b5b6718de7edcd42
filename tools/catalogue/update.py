"""The catalogue of one language as a file for translators, and compiled beside it."""

from __future__ import annotations

from pathlib import Path

import polib

from tools.catalogue.texts import CHECKOUT, texts

CATALOGUE = CHECKOUT / "dsrun/locale/zh/LC_MESSAGES/dsrun.po"


def current(catalogue: Path) -> polib.POFile:
    """What the catalogue should be: its header and translations, for exactly the texts of the code, in their order."""
    old = polib.pofile(str(catalogue), wrapwidth=120)
    known = {entry.msgid: entry.msgstr for entry in old}
    new = polib.POFile(wrapwidth=120)
    new.header, new.metadata = old.header, old.metadata
    for text, origins in texts().items():
        where = [(origin, "") for origin in origins]
        new.append(polib.POEntry(msgid=text, msgstr=known.get(text, ""), occurrences=where))
    return new


def update(catalogue: Path) -> list[str]:
    """Write the catalogue and compile it; the texts without a translation, whose `msgstr` is empty for now."""
    new = current(catalogue)
    new.save(str(catalogue))
    new.save_as_mofile(str(compiled(catalogue)))
    return [entry.msgid for entry in new if not entry.msgstr]


def compiled(catalogue: Path) -> Path:
    """The file beside it that dsrun reads."""
    return catalogue.with_suffix(".mo")
