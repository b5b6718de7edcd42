"""The Grafana dashboard for the metrics of `dsrun exporter`, in Grafana's classic JSON model, and the alert rules."""

import json
from collections.abc import Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from dsrun.datafiles import toml_beside

PAGE = 24
WIDTH, HEIGHT = 8, 8
_USUAL = "timeseries"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def alert_rules_yaml() -> str:
    """The alert rules as a rule file of Prometheus."""
    return Path(__file__).with_name("alert_rules.yml").read_text(encoding="utf-8")


def dashboard_json() -> str:
    """The dashboard, ready to be imported into Grafana."""
    return json.dumps(dashboard(), indent=2) + "\n"


def dashboard() -> dict[str, Any]:
    """The dashboard as plain JSON values: a data source, runs to choose, and the panels of dashboard.toml."""
    table = toml_beside(__file__, "dashboard.toml")
    return {**table["dashboard"], "panels": _panels(table)}


def _panels(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in table["rows"]:
        place = {"h": 1, "w": PAGE, "x": 0, "y": top}
        head = {"type": "row", "title": row["title"], "collapsed": False, "gridPos": place, "panels": []}
        panels.append({"id": len(panels) + 1, **head})
        top, left = top + 1, 0
        for panel in row["panels"]:
            width = panel.get("width", WIDTH)
            if left + width > PAGE:
                top, left = top + HEIGHT, 0
            place = {"h": HEIGHT, "w": width, "x": left, "y": top}
            options = table["options"][panel.get("type", _USUAL)]
            panels.append(_panel(len(panels) + 1, panel, place, options))
            left += width
        top += HEIGHT
    return panels


def _panel(
    number: int, panel: Mapping[str, Any], place: Mapping[str, int], options: Mapping[str, Any]
) -> dict[str, Any]:
    kind = panel.get("type", _USUAL)
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short")}
    if kind == _USUAL:
        stack = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30} if panel.get("stacked") else {}
        defaults["custom"] = {"lineWidth": 2, "showPoints": "never", "spanNulls": False, **stack}
    if defaults["unit"] == "percentunit":
        defaults |= {"min": 0, "max": 1}
    form = {"instant": True, "format": "table"} if kind == "table" else {"range": True}
    targets = [
        {"refId": letter, "datasource": _SOURCE, "expr": query["expr"], "legendFormat": query["legend"], **form}
        for letter, query in zip(ascii_uppercase, panel["queries"], strict=False)
    ]
    made = {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }
    if kind == "table":
        keep = {"Time": True, "Value": True, "__name__": True, "instance": True, "job": True}
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": keep}}]
    return made
