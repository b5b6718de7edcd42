"""The language in which findings and causes are printed, and its catalogue in dsrun/locale.

Everything else is English: help, errors, notes, logs, events, JSON. click's texts come from gettext's global domain,
which is left alone."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from dsrun.messages import Message, fill
from dsrun.system import variables

ENGLISH = "en"
LANGUAGES = (ENGLISH, "zh")
# As POSIX orders them: the first that is set and not empty counts.
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")


def language(environ: Mapping[str, str] = os.environ) -> str:
    """DSRUN_LANG, else the locale's language; English for one that has no catalogue."""
    own = environ.get(variables.LANGUAGE, "")
    locale = next(filter(None, (environ.get(name, "") for name in _LOCALE)), "")
    return language_named(own) or (ENGLISH if own else language_named(locale) or ENGLISH)


def language_named(locale: str) -> str | None:
    """The language of a locale: "zh" for zh, zh_CN.UTF-8 and zh-Hant, None where there is no catalogue of it."""
    name = re.split(r"[_.@-]", locale.strip().lower())[0]
    return name if name in LANGUAGES else None


def translated(text: str) -> str:
    """`text` in the language of this process; in English what its catalogue lacks, and all of it where the encoding of
    stdout does not have the language's characters."""
    chosen = language()
    if chosen == ENGLISH or not _can_be_written(chosen):
        return str(text)
    return _in_language(text, catalogue(chosen))


@cache
def catalogue(chosen: str) -> Callable[[str], str]:
    """What looks a text up in the catalogue of a language; in English none is loaded."""
    import gettext

    import dsrun

    folder = Path(dsrun.__file__).parent / "locale" / chosen
    with (folder / "LC_MESSAGES" / "dsrun.mo").open("rb") as opened:
        return gettext.GNUTranslations(opened).gettext


def _in_language(text: str, look_up: Callable[[str], str]) -> str:
    if not isinstance(text, Message):
        return look_up(text) if text else text  # "" is the catalogue's header
    if isinstance(text.values, tuple):
        return look_up(text.template).join(_in_language(each, look_up) for each in text.values)
    values = {
        name: _in_language(value, look_up) if isinstance(value, Message) else value
        for name, value in text.values.items()
    }
    return fill(look_up(text.template), values) if text.template else text


def _can_be_written(chosen: str) -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        {"zh": "中文，。"}[chosen].encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
