"""`python -m tools.certify`: certify published models one after another, and record what is found. It goes on where it
was stopped. With --tenth, those of today, which are compared with the record and change nothing; what
is new there is tried once more."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from tools.certify import record

NOT_SEEN, WORSE = 4, 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.certify", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="NAME", help="these alone, also where they are up to date")
    parser.add_argument("--tenth", action="store_true", help="those of today, compared with the record")
    parser.add_argument("--minutes", type=float, default=600, help="begin no other model after that")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="how long one model may take")
    given = parser.parse_args()
    known, models = record.read_record(), record.configs()
    unknown = [name for name in given.models if name not in models]
    if unknown or not models:
        print(f"{record.CONFIGS}: {', '.join(unknown) or 'no config'} is not there", file=sys.stderr)
        return NOT_SEEN
    due = given.models or [
        name for name in sorted(models) if given.tenth or record.is_due(models[name], known.get(name))
    ]
    due = record.part_of(due, date.today()) if given.tenth else due
    until, regressed = time.monotonic() + 60 * given.minutes, []
    for number, name in enumerate(due, 1):
        if time.monotonic() > until:
            print(f"time is up: {', '.join(due[number - 1 :])} not certified", file=sys.stderr)
            break
        found = record.entry_of(models[name], certified(models[name], given.limit))
        fails = record.worse(known.get(name), found)
        if given.tenth and fails:
            print(f"{name}: new: {', '.join(fails)}; once more", file=sys.stderr, flush=True)
            found = record.entry_of(models[name], certified(models[name], given.limit))
            fails = record.worse(known.get(name), found)
        regressed += [name] if fails else []
        print(
            f"{number}/{len(due)} {name}: {_summary(found)}{', new: ' if fails else ''}{', '.join(fails)}", flush=True
        )
        if not given.tenth:
            known[name] = found
            record.write_record(known)
    return WORSE if given.tenth and regressed else 0


def certified(config: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """The answer of `dsrun certify --format json` about a config, or its last line as `error`."""
    with tempfile.TemporaryDirectory(prefix="certify-") as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        argv = [sys.executable, "-m", "dsrun", "certify", str(file), "--format", "json"]
        environ = {**os.environ, "DSRUN_CACHE": str(Path(folder) / "cache")}
        try:
            done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"no verdict within {limit_s:g} s"}
        if done.returncode in (0, 3):
            return dict(json.loads(done.stdout))
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": last.removeprefix("error: ").replace(folder, "")}


def _summary(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    failed = [code for code, each in found["checks"].items() if each["status"] == "fail"]
    return f"{'fails ' + ', '.join(failed) if failed else 'passes'} in {found['seconds']:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
