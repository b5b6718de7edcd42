"""Which samples share a row, and which a step: packing into a given number of rows, also of pairs of source and target,
on two sides at once, and batches of about equal cost."""

import numpy as np

# A capacity that does not hold all samples is raised by this share of itself, at least by a token.
_RAISE = 1 / 2000


def pack_rows(lengths: np.ndarray, rows: int) -> list[np.ndarray]:
    """Distribute samples of `lengths`, [samples], over `rows` rows so that the longest row is as short as best-fit
    decreasing finds (Johnson 1973); returns the sample numbers of each row. A row is empty only where there are fewer
    samples than rows; a sample longer than the others' rows has one to itself."""
    if len(lengths) <= rows:
        return [np.array([i]) for i in range(len(lengths))] + [np.empty(0, dtype=np.int64)] * (rows - len(lengths))
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order].tolist()
    capacity = _least_capacity(lengths, rows)
    while (assigned := _best_fit(descending, capacity, rows)) is None:
        capacity += max(1, int(capacity * _RAISE))
    for row in assigned:
        if not row:  # best fit leaves one empty where few samples fill the others exactly; the fullest gives one
            row.append(max(assigned, key=len).pop())
    return [order[row] for row in assigned]


def _least_capacity(lengths: np.ndarray, rows: int) -> int:
    """No smaller capacity can do: the mean of the rows that hold no sample longer than it."""
    capacity = -(-int(lengths.sum()) // rows)
    while True:
        short = lengths[lengths <= capacity]
        left = rows - (len(lengths) - len(short))
        lower = -(-int(short.sum()) // left) if left > 0 and len(short) else capacity
        if lower >= capacity:
            return capacity
        capacity = lower


def _best_fit(descending: list[int], capacity: int, rows: int) -> list[list[int]] | None:
    """Each sample into the row with the least space that is enough; None where one finds no row. The rows by space are
    looked up as the bits of an integer, so that a sample costs one shift."""
    contents: list[list[int]] = [[] for _ in range(rows)]
    by_space: dict[int, list[int]] = {capacity: [*reversed(range(rows))]}
    occupied = 1 << capacity
    for sample, length in enumerate(descending):
        if length > capacity:
            # In a row of its own, which then has no space.
            row = by_space[capacity].pop() if by_space.get(capacity) else None
            if row is None:
                return None
            contents[row].append(sample)
            if not by_space[capacity]:
                occupied &= ~(1 << capacity)
            continue
        enough = occupied >> length
        if not enough:
            return None
        space = length + (enough & -enough).bit_length() - 1
        row = by_space[space].pop()
        if not by_space[space]:
            occupied &= ~(1 << space)
        contents[row].append(sample)
        left = space - length
        by_space.setdefault(left, []).append(row)
        occupied |= 1 << left
    return contents


def equal_cost_steps(lengths: np.ndarray, steps: int, *, least: int = 1) -> list[np.ndarray]:
    """Cut samples of like lengths into `steps` groups whose cost, samples × the longest of each side, is as equal as
    can be; none has fewer than `least` samples while there are enough. `lengths` is [samples, sides]; there are at
    least as many samples as steps. Returns sample numbers."""
    order = _by_both_sides(lengths, steps)
    ordered = lengths[order].tolist()
    least = max(1, min(least, len(ordered) // steps))
    low = int(lengths.sum()) // steps
    high = 2 * low + len(ordered) * int(lengths.max(axis=0).sum()) // steps
    # Within half a percent: a finer budget costs more time than it saves cells.
    while high - low > low // 200:
        middle = (low + high) // 2
        if len(_cuts(ordered, middle, least)) <= steps:
            high = middle
        else:
            low = middle + 1
    ends = _cuts(ordered, high, least)
    groups = np.split(order, ends[:-1])
    while len(groups) < steps:  # the largest is halved
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        groups[largest : largest + 1] = np.array_split(groups[largest], 2)
    # The slices of a step, its micro batches, hold samples of like lengths too.
    return [group[np.argsort(-lengths[group].sum(axis=1), kind="stable")] for group in groups]


def _by_both_sides(lengths: np.ndarray, steps: int) -> np.ndarray:
    """The samples in an order in which neighbours are alike on both sides: in strips by the first side, and in these by
    the second, up and down by turns."""
    sides = lengths.shape[1]
    order = np.lexsort([lengths[:, side] for side in range(1, sides)] + [lengths[:, 0]])[::-1]
    if sides == 1:
        return order
    strips = []
    for number, strip in enumerate(np.array_split(order, max(1, round(np.sqrt(steps))))):
        by_second = strip[np.argsort(lengths[strip, 1], kind="stable")]
        strips.append(by_second if number % 2 else by_second[::-1])
    return np.concatenate(strips)


def _cuts(ordered: list[list[int]], budget: int, least: int) -> list[int]:
    """Where groups end that hold as much as the budget allows, and `least` samples at least."""
    ends, start = [], 0
    longest = [0] * len(ordered[0])
    for i, sides in enumerate(ordered):
        wider = [max(pair) for pair in zip(longest, sides, strict=True)]
        if i - start >= least and (i - start + 1) * sum(wider) > budget and len(ordered) - i >= least:
            ends.append(i)
            start, wider = i, sides
        longest = wider
    return [*ends, len(ordered)]


def allotted(weights: np.ndarray, total: int) -> np.ndarray:
    """`total` divided over the windows in proportion to their `weights`, whole numbers, at least one each where there
    are enough."""
    ends = np.round(total * np.cumsum(weights) / weights.sum()).astype(np.int64)
    return np.diff(ends, prepend=0)


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
    Graham 1969, on two sides); then the longest rows exchange samples with the shortest."""
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
