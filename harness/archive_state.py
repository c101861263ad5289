"""The archive's data and settings, and the small rules that read them: values, duplicates, descent.

Plain data without behaviour over time: `harness.library` changes it, `harness.archive_filter` prunes it,
`harness.library_file` reads and writes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.puct import PUCT_Q_BEST_CHILD, normalize_puct_q_mode
from harness.state import LibraryEntry, LibraryNode, require_integer, require_number

SCORE_DIRECTIONS = ("max", "min")
PUCT_C_TOLERANCE = 1e-12


@dataclass(frozen=True)
class ArchiveSettings:
    """What an archive is bound to; a file made under other settings is refused, because its statistics would lie.

    `max_buffer_size <= 0` means no limit and `topk_children <= 0` keeps every child.
    """

    rollouts_per_group: int
    groups_per_step: int
    puct_c: float = 1.0
    puct_q_mode: str = PUCT_Q_BEST_CHILD
    max_buffer_size: int = 1000
    topk_children: int = 2
    score_direction: str = "max"
    discover_compat: bool = True

    def __post_init__(self) -> None:
        """Check every field; ValueError names the field and the value."""
        put = object.__setattr__
        require_integer(self.rollouts_per_group, "rollouts_per_group", minimum=1)
        require_integer(self.groups_per_step, "groups_per_step", minimum=1)
        put(self, "puct_c", require_number(self.puct_c, "puct_c"))
        put(self, "puct_q_mode", normalize_puct_q_mode(self.puct_q_mode))
        require_integer(self.max_buffer_size, "max_buffer_size", minimum=-(2**63))
        require_integer(self.topk_children, "topk_children", minimum=-(2**63))
        put(self, "score_direction", self.score_direction.strip().lower())
        if self.score_direction not in SCORE_DIRECTIONS:
            raise ValueError(f"score_direction must be max or min, got {self.score_direction!r}")
        if self.discover_compat is not True:
            raise ValueError("discover_compat must be true: only the ranking by raw score is implemented")
        if self.puct_q_mode != PUCT_Q_BEST_CHILD:
            raise ValueError(f"discover_compat needs puct_q_mode best_child, got {self.puct_q_mode}")

    def search_value(self, raw_score: float | None, reward: float) -> float:
        """Return what ranking maximises: the raw score (negated when lower is better), or the reward without one."""
        if raw_score is None:
            return reward
        return raw_score if self.score_direction == "max" else -raw_score

    def entry_value(self, entry: LibraryEntry) -> float:
        """Return an entry's search value."""
        return self.search_value(entry.verifier_raw_score, entry.verifier_reward)


@dataclass(slots=True)
class GroupRecord:
    """One group of one step: the parent it was given and what came back."""

    selected_node_id: str
    visible_timestep_exclusive: int | None
    submitted: int = 0
    finalized: bool = False
    children: list[str] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the group as `library.json` holds it; `entry_ids` appears with the first submission."""
        plain: dict[str, Any] = {
            "selected_node_id": self.selected_node_id,
            "submitted": self.submitted,
            "children": list(self.children),
            "finalized": self.finalized,
            "visible_timestep_exclusive": self.visible_timestep_exclusive,
        }
        if self.entry_ids:
            plain["entry_ids"] = list(self.entry_ids)
        return plain


@dataclass(slots=True)
class ArchiveState:
    """Everything that `library.json` remembers except its settings."""

    nodes: dict[str, LibraryNode] = field(default_factory=dict)
    entries: dict[str, LibraryEntry] = field(default_factory=dict)
    groups: dict[str, GroupRecord] = field(default_factory=dict)
    puct_n: dict[str, int] = field(default_factory=dict)
    puct_m: dict[str, float] = field(default_factory=dict)
    puct_t: int = 0
    _keys: dict[str, str | None] = field(default_factory=dict)

    def ordered_nodes(self) -> list[LibraryNode]:
        """Return the nodes by id, because iteration order decides ties between rank priors."""
        return [self.nodes[node_id] for node_id in sorted(self.nodes)]

    def lineage(self, node_id: str | None) -> Iterator[LibraryNode]:
        """Yield a node and its ancestors, nearest first; unknown ids end the walk."""
        while node_id is not None and (node := self.nodes.get(node_id)) is not None:
            yield node
            node_id = node.parent_id

    def entry_of(self, node: LibraryNode) -> LibraryEntry | None:
        """Return the candidate behind a node."""
        return None if node.entry_id is None else self.entries.get(node.entry_id)

    def node_construction(self, node: LibraryNode) -> str | None:
        """Return what makes two nodes the same construction, or None when a node has no candidate."""
        entry = self.entry_of(node)
        return None if entry is None else self.entry_construction(entry)

    def entry_construction(self, entry: LibraryEntry) -> str | None:
        """Return the entry's `construction_key`, computed once: hashing all programs each step would be slow."""
        if entry.id not in self._keys:
            self._keys[entry.id] = construction_key(entry)
        return self._keys[entry.id]

    def roots(self) -> list[LibraryNode]:
        """Return the seed's replicas by id."""
        return [node for node in self.ordered_nodes() if node.is_root]


def is_candidate(node: LibraryNode) -> bool:
    """Whether a node may be selected; ancestors that are kept only for their lineage may not."""
    return bool(node.metadata.get("archive_candidate", True))


def rank_key(node: LibraryNode) -> tuple[float, str]:
    """Return the order of "better": by value, then by id."""
    return (node.value, node.id)


def construction_key(entry: LibraryEntry) -> str | None:
    """Return the identity of a candidate: its program, else its summary, else None (never a duplicate)."""
    program = entry.solution.strip()
    if program:
        return f"solution-sha256:{hashlib.sha256(program.encode('utf-8', 'surrogatepass')).hexdigest()}"
    summary = entry.summary.strip()
    return f"summary:{summary}" if summary else None
