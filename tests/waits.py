"""Calls in Python code that may wait for ever."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Calls that wait for ever without an argument, or whatever their arguments are.
WITHOUT_ARGUMENTS = {"wait", "join", "get", "select", "acquire", "communicate", "accept"}
ALWAYS = {"recv", "recv_fds", "recv_into", "readline", "waitpid", "wait4", "flock", "lockf", "input"}
STARTS = {"run", "call", "check_call", "check_output"}
LOOPS = "while"


def waits(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Function and call of each wait that has no time-out of its own."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if (isinstance(node, ast.While) and all(isinstance(each, ast.Pass) for each in node.body)) or (
                    isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
                ):
                    yield function.name, LOOPS
                elif isinstance(node, ast.Call) and (name := endless(node)):
                    yield function.name, name


def endless(call: ast.Call) -> str | None:
    """The name of a call that may wait for ever."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name, owner = call.func.attr, getattr(call.func.value, "id", "")
    if name in STARTS and owner == "subprocess":
        return None if any(each.arg == "timeout" for each in call.keywords) else name
    if name in WITHOUT_ARGUMENTS and not call.args and not call.keywords:
        return name
    if name == "read" and owner == "os":
        return name
    return name if name in ALWAYS else None
