"""`python -m tests.faults [--only TEXT] [--write]`: every fault at every phase; exit code 1 if one was not survived."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tests.faults import report
from tests.faults.cells import cells
from tests.faults.damage import damages, resume_after
from tests.faults.environment import environment_faults
from tests.faults.harness import ROOT, Bench, Result

PAGE = ROOT / "docs" / "reliability.md"


def main(argv: list[str]) -> int:
    """Run the cells one after another, a line each."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--folder", type=Path, help="where runs go; what failed stays there")
    parser.add_argument("--at-once", type=int, default=2, help="cells that run side by side")
    parser.add_argument("--write", action="store_true", help="put the results into docs/reliability.md")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(each.name for each in cells()))
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dsrun-faults-"))
    bench = Bench(folder)
    bench.prepare()
    results = []
    for result in _results(bench, options.only, options.at_once):
        results.append(result)
        text = "; ".join(result.wrong) or "fine"
        print(f"{time.strftime('%H:%M:%S')} {result.name}: {text} ({result.seconds:.0f} s)", flush=True)
    results.sort(key=lambda each: each.name)
    print(report.summary(results))
    if options.write:
        _write(results)
    return 1 if any(each.wrong for each in results) else 0


def _results(bench: Bench, only: str, at_once: int) -> Iterator[Result]:
    """The results as they come. What changes the model or mounts disks goes last and alone."""
    tasks: list[Callable[[], Result]] = [partial(bench.run, each) for each in cells() if only in each.name]
    if only in "damage":
        tasks += [partial(resume_after, bench, *each) for each in damages()]
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(_timed, task) for task in tasks]):
            yield done.result()
    if only in "environment":
        began = time.monotonic()
        for result in environment_faults(bench):
            result.seconds, began = time.monotonic() - began, time.monotonic()
            yield result


def _timed(task: Callable[[], Result]) -> Result:
    """The task's result, with the seconds it took."""
    began = time.monotonic()
    result = task()
    result.seconds = time.monotonic() - began
    return result


def _write(results: list[Result]) -> None:
    text = PAGE.read_text()
    head, _, rest = text.partition(report.BEGIN)
    tail = rest.partition(report.END)[2]
    line = f"{time.strftime('%Y-%m-%d')}: {report.summary(results)}."
    PAGE.write_text(f"{head}{report.BEGIN}\n{line}\n\n{report.tables(results)}\n{report.END}{tail}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
