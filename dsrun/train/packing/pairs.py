"""Which pairs of source and target share a row: packing on two sides at once, into a given number of rows."""

import numpy as np

# A row longer than the mean by this share is improved; each attempt costs about 0.3 ms.
_EXCESS = 0.003
_ATTEMPTS = 1000
# Exchanges looked at in an attempt: those of the longest row with the shortest rows, up to about this number.
_EXCHANGES = 4000
_PARTNERS = (4, 48)


def pack_pairs(sources: np.ndarray, targets: np.ndarray, rows: int) -> list[np.ndarray]:
    """Distribute all samples over `rows` rows so that the longest row of sources and the longest of targets are as
    close to their means as can be; `sources` and `targets` are tokens [samples]. Returns the sample numbers of each
    row. A row is empty only where there are fewer samples than rows.

    The longest sample goes first, each into the row that it makes the least long on its longer side (list scheduling,
    Graham 1969, on two sides); then the longest rows exchange samples with the shortest.
    """
    count = len(sources)
    if count <= rows:
        return [np.array([i]) for i in range(count)] + [np.empty(0, dtype=np.int64)] * (rows - count)
    lengths = np.stack([sources, targets], axis=1).astype(np.float64)
    shares = lengths * (rows / np.maximum(lengths.sum(axis=0), 1))
    members = _members(_scheduled(shares, rows), count)
    _exchange(np.vstack([shares, np.zeros(2)]), members)
    return [row[row < count] for row in members]


def _scheduled(shares: np.ndarray, rows: int) -> list[list[int]]:
    """The sample numbers of each row; `shares` are lengths [samples, 2] as shares of the mean row."""
    source, target = np.zeros(rows), np.zeros(rows)
    contents: list[list[int]] = [[] for _ in range(rows)]
    order = np.argsort(-shares.max(axis=1), kind="stable")
    # One sample in each row, as otherwise samples without tokens would pile up in one.
    for row, sample in enumerate(order[:rows].tolist()):
        contents[row].append(sample)
    source[:], target[:] = shares[order[:rows]].T
    for sample in order[rows:].tolist():
        source_share, target_share = shares[sample]
        row = int(np.maximum(source + source_share, target + target_share).argmin())
        source[row] += source_share
        target[row] += target_share
        contents[row].append(sample)
    return contents


def _members(contents: list[list[int]], none: int) -> np.ndarray:
    """Sample numbers [rows, places], `none` where a place is free; each row has a free one."""
    members = np.full((len(contents), max(map(len, contents)) + 1), none)
    for row, samples in zip(members, contents, strict=True):
        row[: len(samples)] = samples
    return members


def _exchange(shares: np.ndarray, members: np.ndarray) -> None:
    """Exchange a sample of the longest row with one of a short row, or with a free place, whichever leaves the longer
    of both the shortest; again and again, in place. The last of `shares` are those of a free place: zeros."""
    loads = shares[members].sum(axis=1)
    longer = loads.max(axis=1)
    partners = min(len(members), int(np.clip(_EXCHANGES // members.shape[1] ** 2, *_PARTNERS)))
    # Rows that no exchange made shorter.
    done = np.zeros(len(members), dtype=bool)
    for _ in range(_ATTEMPTS):
        row = int(np.where(done, 0, longer).argmax())
        if longer[row] <= 1 + _EXCESS or done[row]:
            return
        near = np.argpartition(longer, partners - 1)[:partners]
        # [places of the row, partners, places of a partner, sides]
        moved = shares[members[row]][:, None, None] - shares[members[near]][None]
        result = np.maximum((loads[row] - moved).max(axis=-1), (loads[near][None, :, None] + moved).max(axis=-1))
        best = np.unravel_index(int(result.argmin()), result.shape)
        if result[best] >= longer[row] - 1e-4:
            done[row] = True
            continue
        place, partner, other_place = best
        other = near[partner]
        members[row, place], members[other, other_place] = members[other, other_place], members[row, place]
        for changed, change in ((row, -moved[best]), (other, moved[best])):
            loads[changed] += change
            longer[changed] = loads[changed].max()
