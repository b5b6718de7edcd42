"""docs/notify.md and docs/logs.md say what the code does, and show the samples as they are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import yaml

from dsrun.notifications.notification import NotificationKind, RunFacts, sample
from dsrun.notifications.notify_target import parse_target, services

DOCS = Path(__file__).parents[3] / "docs"
NOTIFY = (DOCS / "notify.md").read_text(encoding="utf-8")
OBSERVE = DOCS / "examples" / "observe"


def first_column(text: str, heading: str) -> list[str]:
    """The words in code quotes of the first column of the table below `heading`."""
    table = text.partition(heading)[2].partition("\n\n#")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


def test_every_kind_of_message_is_documented():
    assert set(first_column(NOTIFY, "| message | when |")) == set(get_args(NotificationKind))


def test_every_key_of_the_json_is_documented():
    message = sample(RunFacts(run="/runs/a", name="t5", host="gpu07"), "2026-11-25T12:00:00.000Z")
    assert set(first_column(NOTIFY, "\n## JSON\n")) == set(message.as_dict())


def test_every_service_and_example_is_documented():
    """Values of --notify in the table are valid, and their variables are those that errors propose."""
    table = NOTIFY.partition("\n## Services\n")[2].partition("\n## ")[0]
    examples = [cell for line in table.splitlines()[3:] if line.startswith("| ") for cell in line.split(" | ")[1:2]]
    targets = [parse_target(word.strip('"')) for cell in examples for word in re.findall(r"`([^`]+)`", cell)]
    named = {target.variable for target in targets if target.variable}
    assert named == {service.variable for service in services().values()}
    assert {target.kind for target in targets if target.given} == {"json", "mail", "command"}


def test_samples_are_shown_as_they_are():
    page = (DOCS / "logs.md").read_text(encoding="utf-8")
    blocks = [re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("yaml", "toml")]
    files = [(OBSERVE / name).read_text(encoding="utf-8") for name in ("filebeat.yml", "vector.toml")]
    assert [block and block[1] for block in blocks] == files


def test_samples_parse():
    """Names with dots become objects, and no secret stands in them."""
    filebeat = yaml.safe_load((OBSERVE / "filebeat.yml").read_text(encoding="utf-8"))
    (parser,) = filebeat["filebeat.inputs"][0]["parsers"]
    assert (parser["ndjson"]["target"], parser["ndjson"]["expand_keys"]) == ("", True)
    assert filebeat["output.elasticsearch"]["api_key"].startswith("${")
    vector = tomllib.loads((OBSERVE / "vector.toml").read_text(encoding="utf-8"))
    assert [each["inputs"] for part in ("transforms", "sinks") for each in vector[part].values()] == [
        ["dsrun"],
        ["ecs"],
    ]
    assert vector["sinks"]["elasticsearch"]["auth"]["password"].startswith("${")
