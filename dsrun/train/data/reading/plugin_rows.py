"""Rows as a plugin makes them of those of a file or table, before anything is known of their columns."""

from dataclasses import dataclass

from dsrun.errors import UsageError
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.rows.readers import RawRow, RawRows, sample_of
from dsrun.train.base.plugin import LoadedPlugin
from dsrun.train.data.reading.sources import DataSource, FileSource


@dataclass(frozen=True)
class PluginSource:
    """A split whose rows go through `rows` of a plugin."""

    source: DataSource
    plugin: LoadedPlugin
    split: str

    @property
    def where(self) -> str:
        return self.source.where

    def identity(self) -> str:
        """Another digest where the data is another, or the plugin's source or version."""
        return f"{self.source.identity()} {self.plugin.fingerprint} {self.split}"

    def outline(self) -> str | None:
        """The same for data too large to be read for it; None where that is not known."""
        if not isinstance(self.source, FileSource):
            return None
        return f"{self.source.outline()} {self.plugin.fingerprint}"

    def rows(self) -> RawRows:
        return ((where, made) for where, row in self.source.rows() for made in self.made(where, row))

    def made(self, where: str, row: RawRow) -> list[RawRow]:
        """What the plugin makes of one row of the source."""
        return [row] if UNREADABLE in row else self.plugin.rows(row, self.split, where)

    def sample(self) -> tuple[list[str], RawRow]:
        columns, sample = sample_of(self.rows())
        if not sample:
            raise UsageError(f"rows() of --plugin {self.plugin.file.named} leaves no row of {self.where}")
        return columns, sample


AnySource = DataSource | PluginSource
