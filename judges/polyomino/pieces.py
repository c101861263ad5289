"""The pieces cases are drawn from: every free polyomino of 1 to 10 cells that has no hole.

"Free" means that rotations and reflections of one shape count as one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Cell = tuple[int, int]
Piece = tuple[Cell, ...]

MAX_CELLS = 10
_STEPS: tuple[Cell, ...] = ((1, 0), (-1, 0), (0, 1), (0, -1))


def normalise(cells: Iterable[Cell]) -> Piece:
    """The same shape moved to the origin, its cells in ascending order."""
    listed = list(cells)
    left = min(x for x, _ in listed)
    low = min(y for _, y in listed)
    return tuple(sorted((x - left, y - low) for x, y in listed))


def orientations(piece: Piece) -> Iterator[Piece]:
    """The eight rotations and reflections, normalised; symmetric shapes repeat."""
    turned = piece
    for _ in range(4):
        yield normalise(turned)
        yield normalise((-x, y) for x, y in turned)
        turned = tuple((y, -x) for x, y in turned)


def has_hole(piece: Piece) -> bool:
    """Whether some empty cell is cut off from the outside."""
    filled = set(piece)
    width = max(x for x, _ in piece) + 1
    height = max(y for _, y in piece) + 1
    # Flood the outside from a corner of a frame one cell wider on every side.
    outside = {(-1, -1)}
    frontier = [(-1, -1)]
    while frontier:
        x, y = frontier.pop()
        for dx, dy in _STEPS:
            cell = (x + dx, y + dy)
            inside_frame = -1 <= cell[0] <= width and -1 <= cell[1] <= height
            if inside_frame and cell not in filled and cell not in outside:
                outside.add(cell)
                frontier.append(cell)
    return len(outside) + len(filled) != (width + 2) * (height + 2)


def free_polyominoes(max_cells: int = MAX_CELLS) -> list[list[Piece]]:
    """All free polyominoes by size, holed ones included, each as its smallest orientation and in ascending order."""
    sizes: list[list[Piece]] = [[((0, 0),)]]
    while len(sizes) < max_cells:
        known: set[Piece] = set()
        grown: list[Piece] = []
        for piece in sizes[-1]:
            filled = set(piece)
            for cell in {(x + dx, y + dy) for x, y in piece for dx, dy in _STEPS} - filled:
                larger = normalise((*piece, cell))
                if larger not in known:
                    variants = set(orientations(larger))
                    known |= variants
                    grown.append(min(variants))
        sizes.append(sorted(grown))
    return sizes


def piece_pool(max_cells: int = MAX_CELLS) -> list[Piece]:
    """The hole-free pieces, smallest first: the order the random draws index into."""
    return [piece for size in free_polyominoes(max_cells) for piece in size if not has_hole(piece)]
