"""DSRUN_* variables: declared once, and only those that other machines may have are forwarded."""

from __future__ import annotations

import re
from pathlib import Path

from dsrun.launch.environment import forwarded_variables
from dsrun.system import variables

PACKAGE = Path(variables.__file__).parents[1]
DECLARED = {value for name, value in vars(variables).items() if name.isupper() and isinstance(value, str)}


def test_every_dsrun_variable_is_declared():
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"(?<!_)DSRUN_[A-Z_]+[A-Z]", source)}
    assert used == DECLARED


def test_variables_of_one_supervisor_are_not_forwarded():
    assert forwarded_variables(dict.fromkeys(DECLARED, "x"), {}).keys() == {
        "DSRUN_CACHE", "DSRUN_FIND_LINKS", "DSRUN_JOB_UID", "DSRUN_LANG", "DSRUN_LOCAL", "DSRUN_LOG_FORMAT",
        "DSRUN_OUTPUT", "DSRUN_SECRET", "DSRUN_TOKENS",
    }  # fmt: skip


def test_cache_is_absolute(tmp_path, monkeypatch):
    """pip and compilers run in folders of their own, where a relative path means another place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert variables.cache_root({"DSRUN_CACHE": "kept"}) == tmp_path / "kept"
    assert variables.cache_root({"DSRUN_CACHE": "~/kept"}) == tmp_path / "home" / "kept"
    assert variables.cache_root({"XDG_CACHE_HOME": "cache"}) == tmp_path / "cache" / "dsrun"
    assert variables.cache_root({}) == tmp_path / "home" / ".cache" / "dsrun"
