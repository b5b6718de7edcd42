"""docs/zh/causes.md: causes and codes in Chinese, from the catalogue."""

from __future__ import annotations

from dsrun.diagnosis.rules import causes
from dsrun.findings.translation import catalogue
from dsrun.zero.lint.codes import CODES
from tools.docs import table

# As tools/docs/pages.py has them in English.
SUPERVISOR = {"restart": "重新启动", "shrink": "减少显存占用后重新启动", "resume": "以退出码 75 结束", "stop": "停止"}
LEVELS = {"error": "错误", "warning": "警告", "info": "提示"}


def markdown() -> str:
    """Two tables: causes of `dsrun diagnose`, and codes of `dsrun config check`."""
    said = catalogue("zh")
    found = (
        (f"`{each.code}`", f"{said(each.title)}。{said(each.means)}", said(each.fix), SUPERVISOR[each.then])
        for each in causes().values()
        if each.level != "info"
    )
    codes = (
        (f"`{name}`", "、".join(LEVELS[level] for level in code.levels.split(", ")), said(code.meaning))
        for name, code in CODES.items()
    )
    return (
        "## `dsrun diagnose` 的原因\n\n"
        + table(("原因", "含义", "建议", "监控进程"), found)
        + "\n\n## `dsrun config check` 的代码\n\n"
        + table(("代码", "级别", "含义"), codes)
        + "\n"
    )
