"""How long a rank waits for the others in a collective operation before it gives up."""

from collections.abc import Mapping

from dsrun.refusals import Refusals

DEFAULT_S = 1800.0
"""torch's own for gloo. DeepSpeed has 10 minutes, and a rank that saves a large checkpoint can need longer."""


def group_timeout_s(ddp_timeout: int | None, environ: Mapping[str, str]) -> float:
    """Seconds: --ddp_timeout, else DEEPSPEED_TIMEOUT (minutes), else half an hour. Raises UsageError where one of them
    is not what its reader takes: DeepSpeed's import fails with that variable as a fraction."""
    minutes = environ.get("DEEPSPEED_TIMEOUT")
    Refusals(__file__, "refusals.toml").check("timeout", minutes=minutes, ddp_timeout=ddp_timeout, int=int)
    if ddp_timeout is not None:
        return float(ddp_timeout)
    return 60.0 * int(minutes) if minutes else DEFAULT_S
