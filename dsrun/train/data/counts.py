"""What happened to rows on the way to samples: how many were read, cut and left out, and why."""

from dataclasses import dataclass
from typing import Any

from dsrun.errors import UsageError


@dataclass
class RowCounts:
    """What happened to rows: how many were read, cut, and left out, and why; how many conversations were divided, and
    into how many samples more."""

    rows: int = 0
    cut: int = 0
    cut_source: int = 0
    cut_target: int = 0
    incomplete: int = 0
    no_loss: int = 0
    bad: int = 0
    divided: int = 0
    extra: int = 0
    first_bad: str = ""
    first_incomplete: str = ""
    first_no_loss: str = ""

    def add(self, other: dict[str, Any]) -> None:
        for name, value in other.items():
            mine = getattr(self, name)
            setattr(self, name, mine + value if isinstance(mine, int) else mine or value)

    def note_bad(self, error: str) -> None:
        self.bad += 1
        self.first_bad = self.first_bad or error

    def refuse_bad(self, share: float, *, least: int = 1) -> None:
        """Raise UsageError where more than this share of the rows is bad; fewer rows than `least` count as so many."""
        if self.bad > share * max(self.rows, least):
            more = f"; {self.bad:,} of {self.rows:,} rows are invalid" if self.bad > 1 else ""
            raise UsageError(f"{self.first_bad}{more}", fix="mend it, or leave such rows out: --max-bad-rows SHARE")

    def notices(self, split: str, limit: int) -> list[str]:
        rows = f"of {self.rows:,} rows"
        found = (
            (self.bad, f"{rows} are invalid and left out (the first: {self.first_bad})"),
            (
                self.divided,
                f"of {self.rows:,} conversations became {self.divided + self.extra:,} samples, as the chat template "
                "changes earlier turns: each answer is learned after what the model sees when it writes it",
            ),
            (self.incomplete, f"{rows} lack a text and are left out (the first: {self.first_incomplete})"),
            (
                self.no_loss,
                f"{rows} have nothing to learn from within {limit:,} tokens and are left out "
                f"(the first: {self.first_no_loss})",
            ),
        )
        return [f"{split}: {count:,} {what}" for count, what in found if count]


@dataclass(frozen=True)
class TruncatedExamples:
    """How many of a split's examples lost tokens: `limit` to the source, or to the target where only it was cut."""

    cut: int
    total: int
    limit: int
    target_limit: int | None = None

    def sentence(self) -> str:
        at = f"{self.limit:,} tokens"
        if self.target_limit is not None:
            at = f"{self.limit:,} source or {self.target_limit:,} target tokens"
        if not self.cut:
            return f"none of {self.total:,} examples was cut at {at}"
        return f"{self.cut:,} of {self.total:,} examples {'was' if self.cut == 1 else 'were'} cut at {at}"


def truncation_of(counts: RowCounts, source_limit: int, target_limit: int) -> TruncatedExamples:
    total = counts.rows + counts.extra
    if counts.cut_source and counts.cut_target:
        return TruncatedExamples(counts.cut, total, source_limit, target_limit)
    return TruncatedExamples(counts.cut, total, target_limit if counts.cut_target else source_limit)


def check_sample_count(flag: str, requested: int | None, there: int, what: str) -> None:
    """Raise UsageError where more samples are asked for than there are."""
    if requested is None:
        return
    if requested < 1:
        raise UsageError(f"{flag} {requested}: at least one sample is needed")
    if requested > there:
        raise UsageError(f"{flag} {requested:,}: there are only {there:,} {what}", fix=f"{flag} {there}")
