"""A word of a shell script as it is written: its text if no shell would change it, else the variables in it."""

import re
from collections.abc import Iterator

from dsrun.system.patterns import patterns_beside

PATTERNS = patterns_beside(__file__, "rules.toml", table="convert_patterns")


def literal(raw: str) -> str | None:
    """What the shell makes of a word in which it expands nothing; None for one in which it does, or redirects."""
    found = []
    for quote, piece in _pieces(raw):
        if quote == "'":
            found.append(piece)
        elif re.search(r"[$`]" if quote else r"[$`*?\[\]{}<>~&]", re.sub(r"\\.", "", piece, flags=re.DOTALL)):
            return None
        else:
            kept = r'\\([$`"\\\n])' if quote else r"\\(.)"
            found.append(re.sub(kept, lambda each: each[1].strip("\n"), piece, flags=re.DOTALL))
    return "".join(found)


def redirects(raw: str) -> bool:
    """Whether a word is, or has in it, a redirection."""
    return any(not quote and re.search(r"[<>]", re.sub(r"\\.", "", piece)) for quote, piece in _pieces(raw))


def references(raw: str) -> Iterator[tuple[str, bool]]:
    """The variables in a word, and whether each can be read on a node: not for what no name alone stands for."""
    for quote, piece in _pieces(raw):
        if quote == "'":
            continue
        for found in PATTERNS["reference"].finditer(re.sub(r"\\.", "", piece, flags=re.DOTALL)):
            name, arithmetic = found[1] or found[2], found[3]
            if arithmetic is not None:
                yield from ((each, True) for each in re.findall(r"[A-Za-z_]\w*", arithmetic))
            elif name and not name[0].isdigit():
                yield name, True
            else:
                following = piece[piece.find(found[0]) :]
                yield following[:2] if found[0] == "$" else name or "`", False


def same_on_nodes(name: str) -> bool:
    """Whether a variable that the script does not set has one value in the batch script and in the workers."""
    return bool(PATTERNS["of_job"].fullmatch(name)) or not PATTERNS["of_node"].fullmatch(name)


def _pieces(raw: str) -> Iterator[tuple[str, str]]:
    """The parts of a word with the quote around each, "" for none."""
    for found in PATTERNS["piece"].finditer(raw):
        kind = str(found.lastgroup)
        yield {"single": "'", "double": '"', "plain": ""}[kind], found[kind]
