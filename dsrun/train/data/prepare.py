"""From the data that the user named to prepared rows: the entry point of this package."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from datasets import Dataset

from dsrun.models.families import family_of
from dsrun.recipe.preflight.layouts import LayoutHints
from dsrun.recipe.preflight.splits import SAMPLE_LIMITS, SPLITS, held_out, missing
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base.refusals import notice_of, refusal, refuse
from dsrun.train.data.build_splits import BuildProgress, BuildSpec, SplitPart, build
from dsrun.train.data.cache import CacheMeta, key_of, obtain, quiet
from dsrun.train.data.collate import PaddingCollator
from dsrun.train.data.counts import RowCounts, idle_lengths, limits_of
from dsrun.train.data.data_request import DataRequest, PreparedData
from dsrun.train.data.encoding.preferences import PreferenceCollator
from dsrun.train.data.encoding.tokenise import check_vocabulary
from dsrun.train.data.encoding.tokenizer import pad_with_end, prefix_notice, set_languages, tokenizer_identity
from dsrun.train.data.reading.sources import AnySource, DataSource, DataSources, FileSource, PluginSource, find_sources
from dsrun.train.data.stream import RowStream, materialise, stream
from dsrun.train.data.token_files import TokenBin, TokenBlocks, divide, is_bin, open_tokens

SAMPLE_FLAGS = {split: f"--{name.replace('_', '-')}" for split, name in SAMPLE_LIMITS.items()}


def prepare_data(request: DataRequest, tokenizer: Any, *, notify: NotePrinter, progress: BuildProgress) -> PreparedData:
    """Find, tokenise (or take from the cache) and check the data. Sets the tokenizer's languages and padding token.
    Needs no process group, so it may take any time before one exists; of several processes that ask at once, one works.
    `progress` gets (split, rows done, rows in all)."""
    return Preparation(request, tokenizer, notify, progress).run()


class Preparation:
    """The steps of `prepare_data`, for one request."""

    def __init__(self, request: DataRequest, tokenizer: Any, notify: NotePrinter, progress: BuildProgress) -> None:
        self.request = request
        self.spec = request.spec
        self.tokenizer = tokenizer
        self.notify = notify
        self.progress = progress
        self.notices: list[str | None] = []
        self.counts: dict[str, RowCounts] = {}
        self.unread: dict[str, list[str]] = {}
        self.data: dict[str, Any] = {}
        self.digests: dict[str, str] = {}
        plugin = request.plugin
        self.row_plugin = plugin if plugin and plugin.has("rows") else None
        relative = family_of(request.model_type).relative_positions
        positions = None if relative else request.max_positions
        self.limits = limits_of(request.spec, request.task, positions, tokenizer)

    def sources(self) -> DataSources:
        self.notices.append(pad_with_end(self.tokenizer, self.request.task))
        if self.request.task == "seq2seq":
            spec = self.spec
            set_languages(self.tokenizer, spec.source_lang or spec.lang, spec.target_lang or spec.lang)
        sources = self.request.sources or find_sources(self.spec)
        self.notices += sources.notices
        return sources

    def run(self) -> PreparedData:
        sources = self.sources()
        for split in SPLITS:
            self._take(split, sources)
        self.notices.append(idle_lengths(self.spec, self.request.task))
        self.notices.append(prefix_notice(self.spec, self.request.model_type))
        wanted, rows = self.request.splits, self.data.get("train")
        fingerprint = rows.fingerprint if isinstance(rows, TokenBlocks | RowStream) else self.digests.get("train")
        return PreparedData(
            **{split: self.data.get(split) if split in wanted else None for split in SPLITS},
            notices=tuple(dict.fromkeys(filter(None, self.notices))),
            origin=self._origin(sources.name),
            train_fingerprint=fingerprint,
            counts=self.counts,
            unread=self.unread,
            collator=self._collator(),
        )

    def _take(self, split: str, sources: DataSources) -> None:
        if split not in self.request.splits or split in self.data:
            return
        source = sources.splits.get(split)
        is_tokens = "train" in sources.splits and is_bin(sources.splits["train"])
        must = "validation" in self.request.required
        percent = held_out(self.spec, self.request.task, sources.splits, required=must, is_tokens=is_tokens)
        if percent and split in ("train", "validation"):
            self._divided(sources.splits["train"], percent)
        elif source is not None:
            self._whole(split, source)
        elif self.request.is_part:
            return
        elif split != "validation" or split in self.request.required or "train" not in self.request.splits:
            raise missing(split, sources.name, sources.splits)

    def _whole(self, split: str, source: DataSource) -> None:
        if is_bin(source):
            self.data[split] = self._limited_blocks(split, self.token_file(split, source), source.where)
            return
        job = self.job((self.part(split),))
        if self.spec.streaming and split == "train":
            made = self.through_plugin(split, source)
            vocab_size, limit = self.request.vocab_size, (self.spec.max_bad_rows, self.spec.force)
            rows, notices, self.unread[split] = stream(job, made, self.tokenizer, vocab_size=vocab_size, limit=limit)
            self.data[split] = rows
            self.notices += notices
            return
        # How many rows a plugin makes of them is not known.
        fetched = materialise(source, None if self.row_plugin else self._samples(split))
        made = self.through_plugin(split, fetched)
        folder, meta = self._entry(job, made)
        self._collect(folder, meta, job, made)
        if meta["kind"] == "text":
            blocks = self._blocks_of(folder, meta)
            self.data[split] = self._limited_blocks(split, blocks, source.where)

    def _divided(self, source: DataSource, percent: int) -> None:
        """Training and validation data from one source: rows at random, running text and tokens from the start."""
        blocks: TokenBin | None
        if is_bin(source):
            blocks = self.token_file("train", source)
        else:
            job = self.job((self.part("train", "rest"), self.part("validation", "held")), held_out=percent)
            made = self.through_plugin("train", source)
            folder, meta = self._entry(job, made)
            self._collect(folder, meta, job, made)
            blocks = self._blocks_of(folder, meta) if meta["kind"] == "text" else None
        if blocks is not None:
            held_out, rest = divide(blocks, percent, source.where)
            self.data["validation"] = self._limited_blocks("validation", held_out, source.where)
            self.data["train"] = self._limited_blocks("train", rest, source.where)
        held, others = len(self.data["validation"]), len(self.data["train"])
        self.notices.append(notice_of("data.held_out", held=held, total=held + others))

    def through_plugin(self, split: str, source: DataSource) -> AnySource:
        return PluginSource(source, self.row_plugin, split) if self.row_plugin else source

    def _entry(self, job: BuildSpec, source: AnySource) -> tuple[Path, CacheMeta]:
        parts = {
            "source": source.identity(),
            "tokenizer": tokenizer_identity(self.tokenizer),
            "job": asdict(job),
            # An upgrade of what tokenises does so once more.
            "libraries": {each.__name__: each.__version__ for each in (tokenizers, transformers)},
        }

        return obtain(
            key_of(parts),
            partial(build, job, source, self.tokenizer, num_proc=self.spec.num_proc, progress=self.progress),
            overwrite=self.spec.overwrite_cache,
            waiting=self._waiting,
            notify=self.notify,
            beat=lambda: self.progress("", 0, 0),
        )

    def _waiting(self) -> None:
        self.progress("", 0, 0)
        self.notify("another process is preparing the same data; waiting for it")

    def _collect(self, folder: Path, meta: CacheMeta, job: BuildSpec, source: AnySource) -> None:
        """Take what an entry holds: rows, counts, notices; check its ids against the embedding."""
        self.notices += meta["notices"]
        self.unread |= {part.split: meta["unread"] for part in job.parts}
        whole = RowCounts()
        for made in meta["parts"].values():
            whole.add(made["counts"])
        whole.refuse_bad(self.spec.max_bad_rows)
        for part in job.parts:
            if part.split not in meta["parts"]:
                continue
            counts = RowCounts(**meta["parts"][part.split]["counts"])
            largest = meta["parts"][part.split]["largest"]
            check_vocabulary(largest, self.request.vocab_size, f"{part.split} data ({source.where})")
            if meta["kind"] == "rows":
                self.digests[part.split] = meta["parts"][part.split]["sha256"]
                with quiet():
                    self.data[part.split] = Dataset.load_from_disk(str(folder / part.split))
            if part.split not in self.request.splits:
                continue
            if meta["kind"] == "rows":
                counts.limits = self.limits.sides(part.split)
            self.counts[part.split] = counts
            if not self.spec.force:
                counts.refuse_unknown(f"{part.split} data ({source.where})")
            self.notices += counts.notices(part.split)

    def token_file(self, split: str, source: FileSource) -> TokenBlocks:
        if self.row_plugin:
            raise refusal("token_file.plugin", where=source.where, plugin=self.row_plugin.file.named)
        blocks, notices = open_tokens(split, source, self.request, self.limits.source, self._waiting)
        self.notices += notices
        return blocks

    def _blocks_of(self, folder: Path, meta: CacheMeta) -> TokenBin:
        return TokenBin(folder / "tokens.bin", meta["dtype"], self.limits.source, sha256=meta["sha256"])

    def _limited_blocks(self, split: str, blocks: TokenBlocks, where: str) -> TokenBlocks:
        samples, size = self._samples(split), blocks.block_size
        what = f"blocks of {size:,} tokens in {where}"
        refuse("samples", flag=SAMPLE_FLAGS[split], requested=samples, there=len(blocks), what=what)
        if samples:
            blocks = blocks.cut(0, samples)
        if split in self.request.splits:
            count = f"{len(blocks):,} block{'' if len(blocks) == 1 else 's'}"
            self.notices.append(f"{split}: {blocks.tokens:,} tokens in {count} of {size:,}")
        return blocks

    def job(self, parts: tuple[SplitPart, ...], *, held_out: int = 0) -> BuildSpec:
        spec = self.spec
        hints = LayoutHints.of(spec, self.request.task)
        return BuildSpec(hints, self.limits.source, spec.source_prefix or "", parts, held_out)

    def part(self, split: str, share: str = "all") -> SplitPart:
        target_limit = self.limits.target if split == "train" else self.limits.eval_target
        return SplitPart(split, target_limit, split != "train", SAMPLE_FLAGS[split], self._samples(split), share)

    def _samples(self, split: str) -> int | None:
        return getattr(self.spec, SAMPLE_LIMITS[split])

    def _collator(self) -> PaddingCollator:
        fixed, plugin = self.spec.pad_to_max_length, self.request.plugin
        pad = self.tokenizer.pad_token_id
        kind = PreferenceCollator if self.request.preference else PaddingCollator
        return kind(
            pad_id=pad if pad is not None else self.tokenizer.eos_token_id or 0,
            seq2seq=self.request.task == "seq2seq",
            multiple_of=8 if torch.cuda.is_available() else 1,
            length=self.limits.source if fixed else None,
            target_length=self.limits.target if fixed else None,
            max_target_length=self.limits.eval_target,
            adjust=plugin.collate if plugin and plugin.has("collate") else None,
        )

    def _origin(self, name: str) -> str:
        counts = [
            f"streamed {split}" if isinstance(rows, RowStream) else f"{len(rows):,} {split}"
            for split in SPLITS
            if split in self.request.splits and (rows := self.data.get(split)) is not None
        ]
        blocks = any(isinstance(rows, TokenBlocks) for rows in self.data.values())
        unit = f" blocks of {self.limits.source:,} tokens" if blocks else ""
        return f"{name}: {', '.join(counts)}{unit}"
