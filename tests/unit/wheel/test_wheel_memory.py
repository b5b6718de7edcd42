"""A wheel of half a gigabyte is read with little memory: libraries are never read whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tiny_wheels import SASS, compiled, container, entry, make_wheel, needs_gcc

# The highest resident set size in KiB; getrusage() counts what this process had before exec, too.
READS = """
import sys
from pathlib import Path
from dsrun.wheel.verify.wheel_check import examine
report, findings = examine(Path(sys.argv[1]))
assert [library.sass for library in report.libraries] == [("8.0",)], report
assert findings == []
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@needs_gcc
@pytest.mark.exhaustive
def test_large_library_is_not_read_into_memory(tmp_path):
    section = container(entry(SASS, 80, payload=bytes(300 << 20)))
    library = compiled(tmp_path / "c", "int one(void) { return 1; }", section=section)
    wheel = make_wheel(tmp_path, {"big/big.so": library}, name="big", version="1.0")
    done = subprocess.run([sys.executable, "-c", READS, str(wheel)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150_000
