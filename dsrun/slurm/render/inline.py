"""Shell functions in the scripts of --inline: of slurm/*.bash those that the script calls, itself or through others."""

import re
from collections.abc import Mapping

from dsrun.system.patterns import patterns_beside

# As slurm/*.bash write one, with the comment above it.
_FUNCTION = re.compile(r"(?:^#.*\n)*^(?P<name>\w+)\(\) \{(?:.*\}|\n(?:.*\n)*?\})\n+", re.MULTILINE)
_GUARDED = re.compile(r'^ *\[ -(?P<test>[nz]) "(?P<names>(?:\$\w+|\$\{\w+:-\})+)" \] \|\| .*\n', re.MULTILINE)
_SET_BY = patterns_beside(__file__, table="set_by", flags=re.MULTILINE)
_COMMENT = re.compile(r"^\s*#.*", re.MULTILINE)


def with_functions(script: str, mark: str, text: str) -> str:
    """The script with, in the place of `mark`, the functions of `text` that it calls."""
    text = _GUARDED.sub(lambda line: "" if _does_nothing(line, script) else line[0], text)
    # Of two functions of one name the last one counts: the first only loads it.
    known = {found["name"]: found[0] for found in _FUNCTION.finditer(text)}
    called = _called(script + _FUNCTION.sub("", text), known)
    kept = _FUNCTION.sub(lambda found: found[0] if found[0] in {known[name] for name in called} else "", text)
    return script.replace(mark, kept.rstrip())


def _does_nothing(line: re.Match[str], script: str) -> bool:
    """Whether its variables keep the line from doing anything in this script."""
    names = re.findall(r"\w+", line["names"].replace(":-", ""))
    if not _SET_BY.keys() >= {*names}:
        return False
    are_set = [bool(_SET_BY[name].search(script)) for name in names]
    return any(are_set) if line["test"] == "n" else not any(are_set)


def _called(script: str, known: Mapping[str, str]) -> set[str]:
    """The functions of `known` that a script calls, itself or through others."""
    found: set[str] = set()
    texts = [script]
    while texts:
        text = _COMMENT.sub("", texts.pop())
        new = {name for name in known.keys() - found if re.search(rf"(?<![\w/.-]){name}(?![\w=-])", text)}
        found |= new
        texts += [known[name].partition("() {")[2] for name in new]
    return found
