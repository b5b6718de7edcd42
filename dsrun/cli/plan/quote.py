"""`dsrun plan --quote RUN` and `--measure 60s -- train …`: what a longer training would take."""

from pathlib import Path
from typing import Any

from dsrun.cli.output import print_json, print_line, refusal
from dsrun.cli.plan.measure import measure
from dsrun.cli.train import flags_after
from dsrun.monitoring.quote import CHECKED_S, Quote, measured, number_of_tokens
from dsrun.system.terminal.display import duration


def print_quote(given: dict[str, Any]) -> int:
    """Print it for --tokens or --epochs; the exit code."""
    tokens = number_of_tokens(given["tokens"]) if given["tokens"] is not None else None
    if given["measure"] is None:
        run = measured(Path(given["quote"]))
    else:
        found = measure(given["measure"], flags_after(given["program"]) or [])
        if isinstance(found, int):
            return found
        run = found
    if tokens is None:
        if run.epoch is None:
            raise refusal("plan.epochs", run=given["quote"] or "the training")
        tokens = given["epochs"] * run.epoch
    quote = Quote(run=run, tokens=tokens)
    cost = given["price"] * quote.gpu_hours if given["price"] and quote.gpu_hours is not None else None
    if given["form"] == "json":
        energy = {"kwh": quote.kwh, "watts": run.watts, "limit_watts": run.limit_watts}
        hours = {"hours": quote.hours, "gpu_hours": quote.gpu_hours, "cost": cost}
        speed = {"tokens_per_s": run.tokens_per_s, "measured_s": run.seconds, "check": run.check}
        print_json({"gpus": run.gpus, "gpu": run.kind, "tokens": round(tokens), **speed, **hours, **energy})
        return 0
    print_line(f"measured: {run.tokens_per_s:,.0f} tokens/s on {run.gpus} × {run.kind}, over {duration(run.seconds)}")
    if run.check is None:
        print_line(f"not checked: the run is shorter than {2 * CHECKED_S:.0f} s, and its end may be slower or faster")
    else:
        print_line(
            f"checked on it: after its first {CHECKED_S:.0f} s the rest took {run.check:+.1%} of what they foretold"
        )
    print_line()
    of_gpus = "" if quote.gpu_hours is None else f", {quote.gpu_hours:,.1f} GPU hours"
    print_line(f"{tokens:,.0f} tokens take {quote.hours:,.1f} hours{of_gpus}")
    if quote.kwh:
        least, most = quote.kwh
        print_line(f"energy of the GPUs: {least:,.1f} kWh at the power that was last read, at most {most:,.1f}")
    else:
        print_line("energy: not known, as no power was recorded")
    if given["price"] and cost is None:
        print_line("cost: not known, as no GPU was measured")
    if cost:
        print_line(f"cost: {cost:,.2f} at {given['price']:g} a GPU hour")
    return 0
