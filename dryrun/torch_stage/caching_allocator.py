"""Torch's caching allocator on a list of requests: what it takes of the card while tensors come and go.

The rules are those of pytorch 001074d2 c10/cuda/CUDACachingAllocator.cpp; torch_npu's allocator has the same
(Ascend/pytorch torch_npu/csrc/core/npu/NPUCachingAllocator.cpp), except that it adds 32 bytes to a request.

- ``round_size``: a request takes a multiple of 512 bytes.
- ``get_pool``: up to 1 MiB from the pool of small blocks, else from that of large ones.
- ``get_free_block``: the smallest free block that is large enough; ``should_split``: what is left becomes a free block
  where it is more than 1 MiB, of small blocks and in expandable segments where it is 512 bytes.
- ``get_allocation_size``: without such a block, 2 MiB of the card for a small request, 20 MiB for one below 10 MiB,
  else its size in multiples of 2 MiB.
- ``try_allocate_expandable_block``: in expandable segments the end of the pool's one segment grows instead, by pages of
  2 MiB (small) and 20 MiB.
- ``free_block``: a freed block is merged with free neighbours of its segment.

Nothing goes back to the card: the allocator does so only before a request fails.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 2**20
UNIT_BYTES = 512
"""``kMinBlockSize``."""
SMALL_BYTES = MIB
"""``kSmallSize``: largest request of the small pool."""
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB
"""``kSmallBuffer``, ``kLargeBuffer``."""
LARGE_REQUEST_BYTES = 10 * MIB
"""``kMinLargeAlloc``: from here on a request has a segment of its own size."""
ROUND_BYTES = 2 * MIB
"""``kRoundLarge``."""


@dataclass(eq=False)
class _Block:
    """A part of a segment; its neighbours are those of the same segment."""

    place: int
    size: int
    free: bool = True
    before: _Block | None = None
    behind: _Block | None = None


@dataclass
class _Pool:
    """Free blocks of one pool, by size, then by place."""

    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)
    end: _Block | None = None
    """Last block of the expandable segment."""

    def add(self, block: _Block) -> None:
        block.free = True
        self.blocks[block.place] = block
        insort(self.free, (block.size, block.place))

    def remove(self, block: _Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.place))]
        del self.blocks[block.place]
        block.free = False


class CachingAllocator:
    """Blocks of one stream's two pools.

    Parameters
    ----------
    expandable : bool
        ``expandable_segments:True`` in ``PYTORCH_CUDA_ALLOC_CONF`` (``PYTORCH_NPU_ALLOC_CONF``).
    """

    def __init__(self, *, expandable: bool = False) -> None:
        self.expandable = expandable
        self.allocated = self.reserved = 0
        self.most_allocated = 0
        self._pools = (_Pool(small=True), _Pool(small=False))
        self._next_place = 0
        self._taken: dict[int, tuple[_Pool, _Block]] = {}

    def allocate(self, key: int, size: int) -> None:
        """Serve a request of some bytes; `key` names it until it is freed."""
        if not size:
            return
        rounded = -(-size // UNIT_BYTES) * UNIT_BYTES
        pool = self._pools[rounded > SMALL_BYTES]
        block = self._fitting(pool, rounded)
        if block is None:
            block = self._grown(pool, rounded) if self.expandable else self._segment(pool, rounded)
        else:
            pool.remove(block)
        self._split(pool, block, rounded)
        self._taken[key] = (pool, block)
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)

    def free(self, key: int) -> None:
        """Free what a request was served with."""
        if key not in self._taken:
            return
        pool, block = self._taken.pop(key)
        self.allocated -= block.size
        for neighbour in (block.before, block.behind):
            if neighbour is not None and neighbour.free:
                pool.remove(neighbour)
                self._merge(pool, block, neighbour)
        pool.add(block)

    def _fitting(self, pool: _Pool, size: int) -> _Block | None:
        place = bisect_left(pool.free, (size, 0))
        found = [pool.blocks[where] for _, where in pool.free[place : place + 2]]
        if len(found) == 2 and found[0] is pool.end:
            # The end of an expandable segment counts as large as it may become.
            return found[1]
        return found[0] if found else None

    def _segment(self, pool: _Pool, size: int) -> _Block:
        if pool.small:
            taken = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            taken = LARGE_SEGMENT_BYTES
        else:
            taken = -(-size // ROUND_BYTES) * ROUND_BYTES
        self.reserved += taken
        # A gap keeps segments apart.
        self._next_place += taken + 1
        return _Block(self._next_place - taken, taken, free=False)

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """The free end of the expandable segment, grown by whole pages until it is large enough."""
        page = SMALL_SEGMENT_BYTES if pool.small else LARGE_SEGMENT_BYTES
        end = pool.end
        if end is not None and end.free:
            pool.remove(end)
            more = -(-(size - end.size) // page) * page
            end.size += more
        else:
            more = -(-size // page) * page
            # Places of an expandable segment count from its start.
            place = 0 if end is None else end.place + end.size
            new = _Block(place, more, free=False, before=end)
            if end is not None:
                end.behind = new
            pool.end = end = new
        self.reserved += more
        return end

    def _split(self, pool: _Pool, block: _Block, size: int) -> None:
        left = block.size - size
        if left < UNIT_BYTES or not (pool.small or self.expandable or left > SMALL_BYTES):
            return
        rest = _Block(block.place + size, left, before=block, behind=block.behind)
        if block.behind is not None:
            block.behind.before = rest
        block.behind, block.size = rest, size
        if pool.end is block:
            pool.end = rest
        pool.add(rest)

    def _merge(self, pool: _Pool, block: _Block, neighbour: _Block) -> None:
        if neighbour is block.before:
            block.place, block.before = neighbour.place, neighbour.before
            if block.before is not None:
                block.before.behind = block
        else:
            block.behind = neighbour.behind
            if block.behind is not None:
                block.behind.before = block
        if pool.end is neighbour:
            pool.end = block
        block.size += neighbour.size
