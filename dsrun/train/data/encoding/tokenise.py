"""From rows in normal form to token ids and labels."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dsrun.errors import UsageError
from dsrun.recipe.preflight.layouts import RowLayout
from dsrun.recipe.rows.normal import normal_or_bad
from dsrun.recipe.rows.readers import RawRow
from dsrun.system.files import parse_json
from dsrun.train.base.labels import IGNORED
from dsrun.train.base.refusals import refusal
from dsrun.train.data.counts import RowCounts
from dsrun.train.data.encoding.chat import ChatSample, encode_chat
from dsrun.train.data.encoding.tokenizer import DocumentAffixes, UnknownTokens, affixes_of, plain_backend
from dsrun.train.data.encoding.written import CallNotWritten

STREAMED_ROWS = 1000
"""Rows of a stream that a share of bad ones is a share of as long as fewer are read."""

# Masks are made per batch; leaving them out here takes a third off tokenising.
_IDS_ONLY = {"return_attention_mask": False, "return_token_type_ids": False}

# A tokenizer holds 150 to 450 bytes for each token while it works, 5 GB for 32 MB of text: longer texts go to it in
# pieces of so many characters, and shorter ones in batches that are no longer.
_PIECE = 1 << 20
# Where no tokenizer joins what is before with what is after: before a single space.
_SEAM = re.compile(r"(?<=\S) (?=\S)")


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at most `size` characters, cut before a space in the last quarter where there is one."""
    start = 0
    while len(text) - start > size:
        seams = [found.start() for found in _SEAM.finditer(text, start + size * 3 // 4, start + size)]
        end = seams[-1] if seams else start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _batches(texts: Sequence[str], size: int) -> Iterator[slice]:
    """Where to cut the texts into batches of at most `size` characters or of one text."""
    first = held = 0
    for k, text in enumerate(texts):
        if held and held + len(text) > size:
            yield slice(first, k)
            first, held = k, 0
        held += len(text)
    if first < len(texts):
        yield slice(first, len(texts))


@dataclass
class RowEncoder:
    """A batch function for `map`: raw or normalised rows in, token ids out. What it counts in a worker process goes as
    JSON lines to `ledger`. `layout` brings raw rows into normal form and is None for rows that are in it already
    (`kind` says in which). `keep_text` adds `source_text` and `target_text`. With `vocab_size` larger ids are refused
    here, and a larger share of bad rows than `max_bad`, for streams, which cannot be read ahead."""

    tokenizer: Any
    task: str
    kind: str
    where: str
    source_limit: int
    target_limit: int
    prefix: str = ""
    separator: str = ""
    layout: RowLayout | None = None
    keep_text: bool = False
    ledger: Path | None = None
    vocab_size: int | None = None
    max_bad: float = 0.0
    force: bool = False
    piece: int = _PIECE
    affixes: DocumentAffixes = field(init=False)
    unknown: UnknownTokens = field(init=False)
    read: RowCounts = field(init=False, default_factory=RowCounts)

    def __post_init__(self) -> None:
        self.affixes = affixes_of(self.tokenizer)
        self.unknown = UnknownTokens.of(self.tokenizer)

    @property
    def columns(self) -> list[str]:
        if self.kind == "text":
            return ["input_ids"]
        keeps_text = self.keep_text and self.kind in ("pair", "chat")
        return ["input_ids", "labels"] + (["source_text", "target_text"] if keeps_text else [])

    def __call__(self, batch: dict[str, list[Any]], indices: Sequence[int]) -> dict[str, list[Any]]:
        """Encode the rows with these indices; rows without text or without loss are left out and counted."""
        counts = RowCounts(rows=len(indices), begin=indices[0] if indices else 0)
        rows = []
        for k, index in enumerate(indices):
            row = {name: values[k] for name, values in batch.items()}
            row["where"] = row.get("where") or f"{self.where}, row {index + 1}"
            if self.layout:
                row = {**normal_or_bad(self.layout, row["where"], row), "where": row["where"]}
            if row.get("bad"):
                counts.leave_out(row["reason"], row["bad"])
            elif lack := self._lack(row):
                counts.leave_out(lack, row["where"])
            else:
                rows.append(row)
        encoded = self._encode(rows, counts) if rows else []
        # Ids that come with the data are those of another tokenizer, of which it is not known what they stand for.
        for name in self.columns if self.kind != "tokens" else ():
            if name.endswith("_ids") or (name == "labels" and self.task == "seq2seq"):
                self.unknown.count("target" if name == "labels" else "source", [row[name] for row in encoded], counts)
        if self.ledger:
            line = json.dumps({name: value for name, value in vars(counts).items() if value}) + "\n"
            # One short line in one write, which O_APPEND keeps whole between processes.
            with self.ledger.open("ab", buffering=0) as file:
                file.write(line.encode())
        if self.vocab_size is not None:
            self.read.add(asdict(counts))
            self.read.refuse_bad(self.max_bad, least=STREAMED_ROWS)
            if not self.force:
                self.read.refuse_unknown(self.where)
            for row in encoded:
                largest = max(max(row[name], default=0) for name in self.columns if not name.endswith("_text"))
                check_vocabulary(largest, self.vocab_size, self.where)
        return {name: [row[name] for row in encoded] for name in self.columns}

    def _lack(self, row: RawRow) -> str | None:
        """Which of REASONS it is that a row has too little to be a sample."""
        if self.kind == "pair":
            # A causal model may write from nothing; an encoder needs something to read.
            read_nothing = row["source"] is None or (self.task == "seq2seq" and not row["source"])
            return "no_target" if row["target"] is None else "no_source" if read_nothing else None
        value = row[{"text": "text", "chat": "messages", "tokens": "input_ids"}[self.kind]]
        # An empty document would be nothing but special tokens; an empty piece of one is none.
        return "empty" if value is None or (value == "" and row["starts"] and row["ends"]) else None

    def _encode(self, rows: list[RawRow], counts: RowCounts) -> list[RawRow]:
        if self.kind == "text":
            return self._documents(rows)
        if self.kind in ("tokens", "chat"):
            encoded = [sample for row in rows for sample in self._tolerant(row, counts)]
        elif self.task == "seq2seq":
            return self._translate(rows, counts)
        else:
            encoded = self._continuations(rows)
        return self._fit(encoded, counts)

    def _documents(self, rows: list[RawRow]) -> list[RawRow]:
        """One row of ids a document; of a long one, one a piece."""
        cut = [
            (text, row["starts"] and k == 0, row["ends"] and k == len(parts) - 1)
            for row in rows
            for parts in [list(pieces(row["text"], self.piece))]
            for k, text in enumerate(parts)
        ]
        found: list[RawRow] = []
        for part in _batches([text for text, _, _ in cut], self.piece):
            found += self._wrapped(cut[part])
        return found

    def _wrapped(self, cut: Sequence[tuple[str, bool, bool]]) -> list[RawRow]:
        """Rows of ids from texts that start or end a document. The tokenizer's own lists end here: kept until its next
        call they fragment the heap, which grows by 40 times the text."""
        ids = self._tokens("text", [text for text, _, _ in cut], add_special_tokens=False)
        # An empty document would be nothing but special tokens.
        return [
            {"input_ids": np.asarray(self.affixes.wrap(tokens, starts=starts, ends=ends), np.int32)}
            for (_, starts, ends), tokens in zip(cut, ids, strict=True)
            if tokens or not (starts and ends)
        ]

    def _translate(self, rows: list[RawRow], counts: RowCounts) -> list[RawRow]:
        sources = [self.prefix + row["source"] for row in rows]
        targets = [row["target"] for row in rows]
        source_ids, source_cut = self._limited("text", sources, self.source_limit)
        target_ids, target_cut = self._limited("text_target", targets, self.target_limit)
        for source, target in zip(source_cut, target_cut, strict=True):
            counts.cut_source += source
            counts.cut_target += target
            counts.cut += source or target
        return [
            {"input_ids": ids, "labels": labels, "source_text": source, "target_text": target}
            for ids, labels, source, target in zip(source_ids, target_ids, sources, targets, strict=True)
        ]

    def _limited(self, side: str, texts: list[str], limit: int) -> tuple[list[list[int]], list[bool]]:
        """Token ids of at most `limit`, and which texts were longer: those that came out exactly full are tokenised
        once more."""
        # Of a text that is much too long the beginning is enough, unless it has next to no tokens.
        heads = [next(pieces(text, max(self.piece, 8 * limit))) for text in texts]
        ids = list(self._tokens(side, heads, max_length=limit, truncation=True))
        for k, tokens in enumerate(ids):
            if len(tokens) < limit and len(heads[k]) < len(texts[k]):
                heads[k] = texts[k]
                (ids[k],) = self._tokens(side, [texts[k]], max_length=limit, truncation=True)
        full = [k for k, tokens in enumerate(ids) if len(tokens) >= limit]
        cut = [False] * len(texts)
        for k, tokens in zip(full, self._tokens(side, [heads[k] for k in full]), strict=True):
            cut[k] = len(tokens) > limit or len(heads[k]) < len(texts[k])
        return ids, cut

    def _continuations(self, rows: list[RawRow]) -> list[RawRow]:
        """Prompt and completion as one sequence with loss on the completion and the end token. The prompt's tokens must
        be those it has alone: where the tokenizer would join it with the completion, the two are tokenised apart."""
        prompts = [self.prefix + row["source"] + self.separator for row in rows]
        heads = self._plain(prompts)
        wholes = self._plain([prompt + row["target"] for prompt, row in zip(prompts, rows, strict=True)])
        tails = self._plain([row["target"] for row in rows])
        encoded = []
        for row, prompt, head, whole, tail in zip(rows, prompts, heads, wholes, tails, strict=True):
            ids = whole if whole[: len(head)] == head and len(whole) > len(head) else head + tail
            ids = self.affixes.wrap(ids)
            loss_from = len(self.affixes.wrap(list(head), ends=False))
            labels = [IGNORED] * loss_from + ids[loss_from:]
            encoded.append(
                {"input_ids": ids, "labels": labels, "source_text": prompt, "target_text": row["target"]}
                | {"where": row["where"]}
            )
        return encoded

    def _plain(self, texts: list[str]) -> list[list[int]]:
        """Token ids without special tokens; of a long text no more than what is sure to be longer than the limit."""
        short = [k for k, text in enumerate(texts) if len(text) <= self.piece]
        found = dict(zip(short, self._tokens("text", [texts[k] for k in short], add_special_tokens=False), strict=True))
        return [found[k] if k in found else self._beginning(text) for k, text in enumerate(texts)]

    def _beginning(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in pieces(text, self.piece):
            (tokens,) = self._tokens("text", [piece], add_special_tokens=False)
            ids += tokens
            if len(ids) > self.source_limit:
                break
        return ids

    def _tokens(self, side: str, texts: Sequence[str], **how: Any) -> Iterator[list[int]]:
        """What the tokenizer makes of each text."""
        fast = plain_backend(self.tokenizer) if (side, how) == ("text", {"add_special_tokens": False}) else None
        for batch in _batches(texts, self.piece):
            if fast is not None:
                yield from (found.ids for found in fast.encode_batch_fast(texts[batch], add_special_tokens=False))
                continue
            yield from self.tokenizer(**{side: list(texts[batch])}, verbose=False, **_IDS_ONLY, **how)["input_ids"]

    def _tolerant(self, row: RawRow, counts: RowCounts) -> list[RawRow]:
        """The samples of a row of tokens or of a conversation; none of one that cannot be used, which is counted."""
        try:
            return self._given(row, counts) if self.kind == "tokens" else self._conversation(row, counts)
        except CallNotWritten as error:
            counts.leave_out("tool_calls", str(error))
        except UsageError as error:
            counts.leave_out("invalid" if self.kind == "tokens" else "template", str(error))
        return []

    def _conversation(self, row: RawRow, counts: RowCounts) -> list[RawRow]:
        messages = parse_json(row["messages"])
        tools, options = (parse_json(row[name]) if row[name] else None for name in ("tools", "options"))
        samples = encode_chat(self.tokenizer, messages, tools, row["where"], options)
        counts.extra += len(samples) - 1
        counts.divided += len(samples) > 1
        counts.no_tools += sum("tools" in sample.unread for sample in samples)
        counts.no_reasoning += sum("reasoning" in sample.unread for sample in samples)
        return [self._chat_row(sample, messages, row["where"]) for sample in samples]

    def _chat_row(self, sample: ChatSample, messages: list[RawRow], where: str) -> RawRow:
        labels = [token if mark else IGNORED for token, mark in zip(sample.ids, sample.learned, strict=True)]
        texts = {"source_text": "", "target_text": ""}
        if self.keep_text and sample.answer is not None:
            prompt = "\n".join(f"{message['role']}: {message['content']}" for message in messages[: sample.answer])
            texts = {"source_text": prompt, "target_text": messages[sample.answer]["content"]}
        return {"input_ids": sample.ids, "labels": labels, "where": where, **texts}

    def _given(self, row: RawRow, counts: RowCounts) -> list[RawRow]:
        """A sample of each document in the row."""
        labels = row["input_ids"] if row["labels"] is None and self.task != "seq2seq" else row["labels"]
        if labels is None:
            raise UsageError(f"{row['where']}: labels are missing")
        ends = [*accumulate(row["lengths"])] if row["lengths"] else [None]
        counts.extra += len(ends) - 1
        parts = [slice(*edges) for edges in pairwise((0, *ends))]
        return [{"input_ids": row["input_ids"][at], "labels": labels[at], "where": row["where"]} for at in parts]

    def _fit(self, rows: list[RawRow], counts: RowCounts) -> list[RawRow]:
        """Cut to the limits, count, and leave out what has no token to learn from."""
        target_limit = self.target_limit if self.task == "seq2seq" else self.source_limit
        kept = []
        for row in rows:
            source_cut = len(row["input_ids"]) > self.source_limit
            target_cut = self.task == "seq2seq" and len(row["labels"]) > target_limit
            counts.cut_source += source_cut
            counts.cut_target += target_cut
            counts.cut += source_cut or target_cut
            labels = row["labels"][:target_limit]
            # A causal model predicts the next token, so the label of the first is never learned.
            learned = labels if self.task == "seq2seq" else labels[1:]
            if all(label == IGNORED for label in learned):
                counts.leave_out("no_loss", row["where"])
            else:
                kept.append({**row, "input_ids": row["input_ids"][: self.source_limit], "labels": labels})
        return kept


def check_vocabulary(largest: int, vocab_size: int, where: str, *, hint: str | None = None) -> None:
    """Refuse ids that the embedding has no row for; on a GPU they end in a device-side assert that names nothing."""
    if largest >= vocab_size:
        hint = hint or "tokenizer and model do not belong together; use the model's own tokenizer"
        raise refusal("tokenizer.vocabulary", where=where, largest=largest, rows=vocab_size, hint=hint)
