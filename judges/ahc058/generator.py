"""The 150 public inputs, made on the spot: the contest's generator and its random source, written out.

The random source is what Rust's `rand` 0.8.5 and `rand_chacha` 0.3.1 give for `ChaCha20Rng::seed_from_u64(seed)`: a
PCG32 stream expands the seed into a key, and 20 rounds of ChaCha turn key and block counter into words.  Nothing here
depends on a library's random numbers, and the whole set is pinned by its hash.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Sequence

PUBLIC_SEEDS: tuple[int, ...] = tuple(range(150))
PINNED_SHA256 = "604186e17ac9895460d6252a301f9056b509fc6221b45401021ea9639644b16f"
IDS = 10
LEVELS = 4
TURNS = 500
INITIAL_APPLES = 1

_WORD = (1 << 32) - 1
_LONG = (1 << 64) - 1
_PCG_MULTIPLIER = 6364136223846793005
_PCG_INCREMENT = 11634580027462260723
_CHACHA_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
# Positions of the four words of each quarter round: first the columns, then the diagonals.
_QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_COST_GROWTH = 500.0
"""How much dearer a machine is than one of the level below, before the random factor."""


class ChaCha20Source:
    """The numbers of `ChaCha20Rng::seed_from_u64(seed)`, as the contest's generator draws them."""

    def __init__(self, seed: int) -> None:
        self._key = _expand_seed(seed)
        self._words = self._stream()

    def _stream(self) -> Iterator[int]:
        counter = 0
        while True:
            yield from chacha_block(self._key, counter)
            counter += 1

    def next_u64(self) -> int:
        """The next 64 random bits: two words, the low one first."""
        low = next(self._words)
        return low | next(self._words) << 32

    def exponent(self) -> float:
        """A uniform float in [0, 2], both ends included, from the upper 52 bits of a draw."""
        return (self.next_u64() >> 12) / 2.0**52 * _EXPONENT_SCALE


def _expand_seed(seed: int) -> tuple[int, ...]:
    """Eight key words from a 64-bit seed: the output of a PCG32 generator whose state starts at the seed."""
    state = seed & _LONG
    words = []
    for _ in range(8):
        state = (state * _PCG_MULTIPLIER + _PCG_INCREMENT) & _LONG
        word = ((state >> 18 ^ state) >> 27) & _WORD
        turn = state >> 59
        words.append((word >> turn | word << (32 - turn)) & _WORD)
    return tuple(words)


def chacha_block(key: Sequence[int], counter: int, rounds: int = 20) -> list[int]:
    """One block of 16 words: ChaCha with a 64-bit block counter and the nonce 0 (D. J. Bernstein's original layout)."""
    start = [*_CHACHA_CONSTANTS, *key, counter & _WORD, counter >> 32 & _WORD, 0, 0]
    words = start.copy()
    for _ in range(rounds // 2):
        for a, b, c, d in _QUARTERS:
            words[a] = (words[a] + words[b]) & _WORD
            words[d] = _rotated(words[d] ^ words[a], 16)
            words[c] = (words[c] + words[d]) & _WORD
            words[b] = _rotated(words[b] ^ words[c], 12)
            words[a] = (words[a] + words[b]) & _WORD
            words[d] = _rotated(words[d] ^ words[a], 8)
            words[c] = (words[c] + words[d]) & _WORD
            words[b] = _rotated(words[b] ^ words[c], 7)
    return [(word + first) & _WORD for word, first in zip(words, start, strict=True)]


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD


def _inclusive_scale(high: float) -> float:
    """The factor that maps the largest 52-bit fraction to `high` or just below it, as `Uniform::new_inclusive` does."""
    largest = 1.0 - 2.0**-52
    scale = high / largest
    while scale * largest > high:
        scale = math.nextafter(scale, 0.0)
    return scale


_EXPONENT_SCALE = _inclusive_scale(2.0)


def _round(value: float) -> int:
    """To the nearest integer, halves away from zero (Python's `round` would go to the even one)."""
    return math.floor(value + 0.5)


def generate_input(seed: int) -> str:
    """The input text of one seed."""
    source = ChaCha20Source(seed)
    yields = sorted([1, *(_round(10.0 ** source.exponent()) for _ in range(IDS - 1))])
    lines = [f"{IDS} {LEVELS} {TURNS} {INITIAL_APPLES}", " ".join(map(str, yields))]
    for level in range(LEVELS):
        # The very first machine is always affordable and draws nothing.
        costs = [
            1 if level == machine == 0 else _round(yields[machine] * _COST_GROWTH**level * 10.0 ** source.exponent())
            for machine in range(IDS)
        ]
        lines.append(" ".join(map(str, costs)))
    return "\n".join(lines) + "\n"


def generate_inputs() -> list[str]:
    """All public inputs, in the order of their seeds; takes well under a second."""
    return [generate_input(seed) for seed in PUBLIC_SEEDS]


def bundle_sha256(inputs: Sequence[str]) -> str:
    """The hash of a set: SHA-256 of the JSON bundle in which it was published, byte for byte."""
    bundle = {
        "problem_id": "ahc058",
        "lite_version": False,
        "public_seeds": list(range(len(inputs))),
        "inputs": list(inputs),
    }
    return hashlib.sha256(json.dumps(bundle, indent=2).encode("ascii")).hexdigest()
