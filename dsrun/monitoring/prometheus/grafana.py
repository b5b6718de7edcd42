"""The Grafana dashboard for the metrics of `dsrun exporter`, in Grafana's classic JSON model, and the alert rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsrun.datafiles import toml_beside

# Panels as of Grafana 10; newer ones migrate a dashboard when they load it.
SCHEMA = 39
PAGE = 24
WIDTH, HEIGHT = 8, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def alert_rules_yaml() -> str:
    """The alert rules as a rule file of Prometheus."""
    return Path(__file__).with_name("alert_rules.yml").read_text(encoding="utf-8")


def dashboard_json() -> str:
    """The dashboard, ready to be imported into Grafana."""
    return json.dumps(dashboard(), indent=2) + "\n"


def dashboard() -> dict[str, Any]:
    """The dashboard as plain JSON values: a data source, runs to choose, and the panels of dashboard.toml."""
    return {
        "uid": "dsrun-runs",
        "title": "dsrun",
        "description": "Training runs of dsrun",
        "tags": ["dsrun", "training"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source(), _runs()]},
        "annotations": {"list": [_restarts()]},
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in toml_beside(__file__, "dashboard.toml")["rows"]:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row["title"],
                "collapsed": False,
                "gridPos": {"h": 1, "w": PAGE, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        left = 0
        for panel in row["panels"]:
            width = panel.get("width", WIDTH)
            if left + width > PAGE:
                top, left = top + HEIGHT, 0
            panels.append(_panel(len(panels) + 1, panel, {"h": HEIGHT, "w": width, "x": left, "y": top}))
            left += width
        top += HEIGHT
    return panels


def _panel(number: int, panel: Mapping[str, Any], place: Mapping[str, int]) -> dict[str, Any]:
    kind = panel.get("type", "timeseries")
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short")}
    if kind == "timeseries":
        stack = {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 30} if panel.get("stacked") else {}
        defaults["custom"] = {"lineWidth": 2, "showPoints": "never", "spanNulls": False, **stack}
    if defaults["unit"] == "percentunit":
        defaults |= {"min": 0, "max": 1}
    made = {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[kind],
        "targets": [
            {
                "refId": chr(ord("A") + place_in_panel),
                "datasource": _SOURCE,
                "expr": query["expr"],
                "legendFormat": query["legend"],
                **({"instant": True, "format": "table"} if kind == "table" else {"range": True}),
            }
            for place_in_panel, query in enumerate(panel["queries"])
        ],
    }
    if kind == "table":
        keep = {"Time": True, "Value": True, "__name__": True, "instance": True, "job": True}
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": keep}}]
    return made


_LAST = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True},
    "bargauge": {**_LAST, "orientation": "horizontal", "displayMode": "basic"},
    "stat": {**_LAST, "colorMode": "value", "graphMode": "none", "textMode": "value_and_name"},
}


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _runs() -> dict[str, Any]:
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(dsrun_run_info, run)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _restarts() -> dict[str, Any]:
    return {
        "name": "Restarts",
        "enable": True,
        "iconColor": "orange",
        "datasource": _SOURCE,
        "expr": 'changes(dsrun_restarts_total{run=~"$run"}[1m]) > 0',
    }
