"""`dsrun doctor --deep`."""

import json

from click.testing import CliRunner

from dsrun.cli.options import declared_in
from dsrun.doctor import registry
from dsrun.findings.checks import Check
from dsrun.findings.finding import Finding

command = declared_in("doctor/command.toml")


def test_deep_checks_run_last_and_apart(tmp_path, monkeypatch):
    """Each begins when all before it have ended."""
    monkeypatch.chdir(tmp_path)
    running, most = [], []

    def check(code: str) -> Check:
        def look(machine, target):
            running.append(code)
            most.append(len(running))
            yield Finding(level="info", code=code, message="fine")
            running.remove(code)

        return Check(code, code, look)

    monkeypatch.setattr(registry, "CHECKS", (check("quick"),))
    monkeypatch.setattr(registry, "DEEP_CHECKS", (check("deep_1"), check("deep_2")))
    plain, deep = (CliRunner().invoke(command, [*argv, "--format", "json"]) for argv in ([], ["--deep"]))
    assert [each["check"] for each in json.loads(plain.stdout)["checks"]] == ["quick"]
    assert [each["check"] for each in json.loads(deep.stdout)["checks"]] == ["quick", "deep_1", "deep_2"]
    assert max(most) == 1
    only = CliRunner().invoke(command, ["--deep", "--only", "deep_2", "--format", "json"])
    assert [each["check"] for each in json.loads(only.stdout)["checks"]] == ["deep_2"]
