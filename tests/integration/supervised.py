"""`python -m tests.integration.supervised SPEC.json`: a supervisor as the tests want it; its outcome on stdout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.coordinator.messages import Coordinator
from dsrun.launch.supervisor.policy import RestartLimits
from dsrun.launch.supervisor.supervise import supervise


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    job = TrainingJob(
        topology=LocalWorkers(spec["ranks"], "cpu", spec["ranks"]),
        run=Path(spec["run"]),
        program=spec["program"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **spec.get("env", {})},
        limits=RestartLimits(max_restarts=spec.get("max_restarts", 3), remedy=False),
        hang_timeout=spec.get("hang_timeout"),
        external=True,
    )
    outcome = supervise(job, Coordinator(), lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(vars(outcome)))
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
