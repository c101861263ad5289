"""The project's own 70 cases: deterministic, made on the spot, with the statistics of the official ones.

18 cases have a log-uniform piece count between 100 and 10,000, 52 have 100 to 200 pieces; every piece is drawn
uniformly from the hole-free pool.  The piece counts are pinned, because the power function behind them may differ in
the last bit between C libraries, and the whole set is pinned by its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from judges.polyomino.pieces import Piece, piece_pool

CASE_COUNT = 70
LOG_UNIFORM_CASES = 18
OWN_SHA256 = "979bcd907264f67b790a26880167d8cc57627b5f5f74e2793198928f98ef2c04"
OWN_PIECE_COUNTS: tuple[int, ...] = (
    6589, 845, 3207, 2120, 607, 949, 194, 283, 378, 359, 2684, 1678, 3378, 329, 1698, 1277, 390, 506, 159, 133,
    160, 155, 115, 102, 180, 196, 176, 102, 191, 167, 174, 130, 197, 135, 174, 141, 102, 124, 142, 119, 180,
    128, 135, 104, 152, 179, 107, 195, 140, 116, 172, 178, 158, 147, 120, 139, 162, 172, 135, 167, 180, 115,
    133, 115, 190, 111, 190, 117, 176, 156,
)  # fmt: skip

_MASK = (1 << 64) - 1
# The first multiple of 2**32 whose piece counts agree with the official set's in mean logarithm (2.97 over the 18), in
# mean (148.5 over the 52) and in sum (35,310), so that scores on the two sets are comparable.
_SUITE_SEED = 11_828 << 32


class SplitMix64:
    """A small, well-mixed 64-bit generator; written out here so that no library release can change the cases."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next_u64(self) -> int:
        """The next 64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound), without the bias a plain remainder has."""
        limit = (1 << 64) - (1 << 64) % bound
        while True:
            value = self.next_u64()
            if value < limit:
                return value % bound

    def unit(self) -> float:
        """A uniform float in [0, 1) with 53 random bits."""
        return (self.next_u64() >> 11) * 2.0**-53


def case_generator(case: int) -> SplitMix64:
    """The generator of one case (1 to 70), independent of the other cases."""
    return SplitMix64(SplitMix64(_SUITE_SEED + case).next_u64())


def draw_piece_count(case: int, generator: SplitMix64) -> int:
    """How many pieces a case has, by the distribution; used once to make `OWN_PIECE_COUNTS`, and to check it."""
    if case <= LOG_UNIFORM_CASES:
        return int(10.0 ** (2.0 + 2.0 * generator.unit()))
    return 100 + generator.below(101)


def generate_case(case: int, pool: Sequence[Piece]) -> bytes:
    """The input text of one case."""
    generator = case_generator(case)
    draw_piece_count(case, generator)
    count = OWN_PIECE_COUNTS[case - 1]
    lines = [str(count)]
    for _ in range(count):
        piece = pool[generator.below(len(pool))]
        lines.append(str(len(piece)))
        lines.extend(f"{x} {y}" for x, y in piece)
    return ("\n".join(lines) + "\n").encode("ascii")


def generate_cases() -> list[bytes]:
    """All 70 inputs; takes about a second."""
    pool = piece_pool()
    return [generate_case(case, pool) for case in range(1, CASE_COUNT + 1)]


def cases_sha256(cases: Sequence[bytes]) -> str:
    """The hash of a set: SHA-256 over all inputs, one after the other."""
    digest = hashlib.sha256()
    for case in cases:
        digest.update(case)
    return digest.hexdigest()
