"""How long a rank waits for the others in a collective operation before it gives up."""

from collections.abc import Mapping

from dsrun.errors import UsageError

DEFAULT_S = 1800.0
"""torch's own for gloo. DeepSpeed has 10 minutes, and a rank that saves a large checkpoint can need longer."""
_VARIABLE = "DEEPSPEED_TIMEOUT"


def group_timeout_s(ddp_timeout: int | None, environ: Mapping[str, str]) -> float:
    """Seconds: --ddp_timeout, else DEEPSPEED_TIMEOUT (minutes), else half an hour. Raises UsageError where one of them
    is not what its reader takes: DeepSpeed's import fails with that variable as a fraction."""
    minutes = environ.get(_VARIABLE)
    if minutes is not None and not (minutes.strip().isdecimal() and int(minutes)):
        what = f"{_VARIABLE}={minutes}: DeepSpeed takes whole minutes only, at least 1"
        raise UsageError(what, fix=f"unset {_VARIABLE} and give --ddp_timeout in seconds")
    if ddp_timeout is not None and ddp_timeout < 1:
        raise UsageError(f"--ddp_timeout {ddp_timeout}: it must be at least 1 (seconds)", fix="leave it out for 1800")
    if ddp_timeout is not None:
        return float(ddp_timeout)
    return 60.0 * int(minutes) if minutes else DEFAULT_S
