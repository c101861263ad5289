"""The archive of a search, in memory: choose a parent for each group, take in candidates, keep what is worth keeping.

One writer at a time; no call but `load` and `save` touches a disk.  The caller submits a finished step in (group,
rollout) order, ids are derived from the run's seed and ties break by id, so the same replies give the same archive
whatever the order in which they arrived.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from harness.archive_check import check_archive
from harness.archive_filter import apply_filter, plan_filter
from harness.archive_state import ArchiveSettings, ArchiveState, GroupRecord, is_candidate, rank_key
from harness.errors import SeedRejected, StateCorrupt
from harness.library_file import ArchiveWriter, archive_dict, read_archive, read_seed_entry
from harness.puct import RankedNode, rank_archive_nodes
from harness.state import LibraryEntry, LibraryNode, derived_id, make_root_node, require_integer

__all__ = ["ArchiveSettings", "GroupRecord", "GuidanceLibrary", "derived_id", "read_seed_entry"]


class GuidanceLibrary:
    """The archive; make one with `from_seed` or `load`."""

    def __init__(self, settings: ArchiveSettings, state: ArchiveState) -> None:
        """Take over `state`, recompute all values from raw scores and check that everything fits together."""
        self.settings = settings
        self._state = state
        self._writer = ArchiveWriter()
        self._rankings: dict[tuple[int | None, bool], list[RankedNode]] = {}
        self._constructions: set[str] = set()
        self._step_groups: dict[int | None, list[str]] = {}
        self._open_groups: dict[int | None, int] = {}
        self._best_id: str | None = None
        self.check_accounting()
        for node in state.nodes.values():
            node.metadata["archive_candidate"] = is_candidate(node)
            entry = state.entry_of(node)
            if entry is not None:
                node.value = settings.entry_value(entry)
            elif node.raw_score is not None:
                node.value = settings.search_value(node.raw_score, node.value)
        for uid, group in state.groups.items():
            self._note_group(uid, group)
        self._reindex()

    @classmethod
    def from_seed(cls, settings: ArchiveSettings, seed: LibraryEntry, *, run_seed: int) -> Self:
        """Start an archive with one replica of the judged seed per group; SeedRejected unless the judge accepted it."""
        if not seed.archivable or not seed.has_program:
            raise SeedRejected(
                f"the seed program cannot start a search: status {seed.verifier_status}, raw score "
                f"{seed.verifier_raw_score}, {len(seed.solution)} characters of code; {seed.verifier_message}"
            )
        state = ArchiveState()
        for index in range(settings.groups_per_step):
            replica = {} if index == 0 else {"replicated_seed_entry": True}
            root = make_root_node(
                problem_id=seed.problem_id,
                raw_score=seed.verifier_raw_score,
                reward=seed.verifier_reward,
                node_id=derived_id(run_seed, "root", index),
            )
            entry = replace(
                seed,
                id=derived_id(run_seed, "root-entry", index),
                parent_id=root.id,
                timestep=0,
                metadata={**seed.metadata, "bootstrap": True, **replica},
            )
            root.entry_id = entry.id
            root.metadata.update(bootstrap=True, verifier_status=seed.verifier_status, archive_candidate=True)
            if index > 0:
                root.metadata["replicated_seed_root"] = True
            state.nodes[root.id] = root
            state.entries[entry.id] = entry
        return cls(settings, state)

    @classmethod
    def load(cls, path: Path, settings: ArchiveSettings) -> Self:
        """Read a saved archive; StateMismatch names every differing setting, StateCorrupt whatever does not fit."""
        state = read_archive(path, settings)
        try:
            return cls(settings, state)
        except StateCorrupt as error:
            raise StateCorrupt(f"{path} is not a consistent archive: {error}") from error

    # --- selection ----------------------------------------------------------------------------------------------------

    def acquire_group(
        self, group_uid: str, *, visible_timestep_exclusive: int | None, require_solution: bool = True
    ) -> LibraryNode:
        """Return the parent of a group; asking again for the same group gives the same node and changes nothing.

        Groups with the same limit belong to one step and avoid each other's lineages while any other state is left.
        """
        known = self._state.groups.get(group_uid)
        if known is not None:
            return self._known_parent(group_uid, known, visible_timestep_exclusive, require_solution)
        ranked = self.ranking(visible_timestep_exclusive, require_solution=require_solution)
        if visible_timestep_exclusive is not None:
            require_integer(visible_timestep_exclusive, "visible_timestep_exclusive")
        if not ranked:
            need = "with a program " if require_solution else ""
            error = RuntimeError if require_solution else ValueError
            raise error(f"group {group_uid!r}: no state {need}is visible before timestep {visible_timestep_exclusive}")
        node = self._first_unblocked(ranked, visible_timestep_exclusive)
        node.visits += 1
        group = GroupRecord(node.id, visible_timestep_exclusive)
        self._state.groups[group_uid] = group
        self._note_group(group_uid, group)
        return node

    def ranking(
        self, visible_timestep_exclusive: int | None = None, *, require_solution: bool = True
    ) -> list[RankedNode]:
        """Return the selectable states best first, as the next `acquire_group` sees them."""
        key = (visible_timestep_exclusive, require_solution)
        if key not in self._rankings:
            roots = {node.id for node in self._state.roots()}
            self._rankings[key] = rank_archive_nodes(
                [node for node in self._state.ordered_nodes() if self._selectable(node, *key)],
                initial_ids=roots,
                visit_counts=self._state.puct_n,
                best_reachable_values=self._state.puct_m,
                total_visits=self._state.puct_t,
                puct_c=self.settings.puct_c,
                q_mode=self.settings.puct_q_mode,
            )
        return self._rankings[key]

    def _selectable(self, node: LibraryNode, limit: int | None, require_solution: bool) -> bool:
        if not is_candidate(node) or (limit is not None and not node.is_root and node.timestep >= limit):
            return False
        return not require_solution or self._has_program(node)

    def _has_program(self, node: LibraryNode) -> bool:
        entry = self._state.entry_of(node)
        return entry is not None and entry.has_program

    def _known_parent(self, uid: str, group: GroupRecord, limit: int | None, require_solution: bool) -> LibraryNode:
        if group.visible_timestep_exclusive != limit:
            raise ValueError(
                f"group {uid!r} was opened with visible limit {group.visible_timestep_exclusive}, now asked for {limit}"
            )
        node = self._state.nodes.get(group.selected_node_id)
        if node is None:
            raise RuntimeError(f"group {uid!r} is finished and its parent {group.selected_node_id} was pruned since")
        if require_solution and not self._has_program(node):
            raise RuntimeError(f"group {uid!r}: its parent {node.id} has no program")
        return node

    def _first_unblocked(self, ranked: list[RankedNode], limit: int | None) -> LibraryNode:
        """Return the best state outside every lineage of this step; the best state when all are inside one."""
        if limit is None:
            return ranked[0].node
        taken = {self._state.groups[uid].selected_node_id for uid in self._step_groups.get(limit, [])}
        ancestors = {node.id for selected in taken for node in self._state.lineage(selected)}
        for item in ranked:
            if item.node.id in ancestors:
                continue
            if not any(node.id in taken for node in self._state.lineage(item.node.id)):
                return item.node
        return ranked[0].node

    # --- submission ---------------------------------------------------------------------------------------------------

    def submit_child(self, group_uid: str, entry: LibraryEntry, node_id: str | None = None) -> LibraryNode | None:
        """Take in one candidate of a group and return its new node, or None when it earns none.

        Every submission counts as a visit of the parent's lineage; a valid one raises the parent's best child even when
        it repeats a known construction.  KeyError: unknown group.  RuntimeError: the group is full.
        """
        group = self._state.groups.get(group_uid)
        if group is None:
            raise KeyError(f"group {group_uid!r} was never acquired")
        if group.finalized or group.submitted >= self.settings.rollouts_per_group:
            raise RuntimeError(f"group {group_uid!r} already has its {group.submitted} rollouts")
        if entry.id in self._state.entries:
            raise ValueError(f"group {group_uid!r}: entry {entry.id} was already submitted")
        parent = self._state.nodes.get(entry.parent_id or "") or self._state.nodes[group.selected_node_id]
        node = self._earned_node(entry, parent, node_id)
        self._state.entries[entry.id] = entry
        if node is not None:
            self._add_node(node, parent, group)
        self._count_visit(entry, parent)
        group.submitted += 1
        group.entry_ids.append(entry.id)
        self._rankings.clear()
        if group.submitted == self.settings.rollouts_per_group:
            self._finalize(group)
        return node

    def _earned_node(self, entry: LibraryEntry, parent: LibraryNode, node_id: str | None) -> LibraryNode | None:
        """Return the node of a valid candidate whose construction is new, without touching the archive."""
        if not entry.archivable:
            return None
        new_id = node_id or derived_id(0, "node", entry.id)
        if new_id in self._state.nodes:
            raise ValueError(f"node {new_id} exists already; entry {entry.id} needs another node id")
        if self._state.entry_construction(entry) in self._constructions:
            return None
        return LibraryNode(
            id=new_id,
            problem_id=entry.problem_id,
            timestep=entry.timestep,
            entry_id=entry.id,
            value=self.settings.entry_value(entry),
            raw_score=entry.verifier_raw_score,
            visits=0,
            parent_id=parent.id,
            metadata={"verifier_status": entry.verifier_status, "archive_candidate": True},
        )

    def _add_node(self, node: LibraryNode, parent: LibraryNode, group: GroupRecord) -> None:
        self._state.nodes[node.id] = node
        parent.children.append(node.id)
        group.children.append(node.id)
        construction = self._state.node_construction(node)
        if construction is not None:
            self._constructions.add(construction)
        if self._best_id is None or rank_key(node) > rank_key(self._state.nodes[self._best_id]):
            self._best_id = node.id

    def _count_visit(self, entry: LibraryEntry, parent: LibraryNode) -> None:
        """Every ancestor counts the rollout; only the direct parent learns the value."""
        self._state.puct_t += 1
        for node in self._state.lineage(parent.id):
            self._state.puct_n[node.id] = self._state.puct_n.get(node.id, 0) + 1
        if entry.archivable:
            value = self.settings.entry_value(entry)
            self._state.puct_m[parent.id] = max(self._state.puct_m.get(parent.id, value), value)

    def _finalize(self, group: GroupRecord) -> None:
        """Close a group; the last one of a whole step lets the archive be pruned."""
        group.finalized = True
        limit = group.visible_timestep_exclusive
        self._open_groups[limit] -= 1
        if self._open_groups[limit] == 0 and len(self._step_groups[limit]) >= self.settings.groups_per_step:
            apply_filter(self._state, plan_filter(self._state, self.settings))
            self._reindex()

    # --- reading ------------------------------------------------------------------------------------------------------

    def node(self, node_id: str) -> LibraryNode:
        """Return a node of the archive; KeyError for one that never existed or was pruned."""
        return self._state.nodes[node_id]

    def entry(self, entry_id: str) -> LibraryEntry:
        """Return any candidate ever submitted; KeyError for an unknown id."""
        return self._state.entries[entry_id]

    def entry_of(self, node: LibraryNode) -> LibraryEntry | None:
        """Return the candidate behind a node."""
        return self._state.entry_of(node)

    def group(self, group_uid: str) -> GroupRecord:
        """Return a group's record; KeyError for an unknown uid."""
        return self._state.groups[group_uid]

    def nodes(self) -> list[LibraryNode]:
        """Return all nodes by id."""
        return self._state.ordered_nodes()

    def roots(self) -> list[LibraryNode]:
        """Return the seed's replicas by id."""
        return self._state.roots()

    def lineage(self, node_id: str) -> list[LibraryNode]:
        """Return the path from the root to a node, both included."""
        return list(self._state.lineage(node_id))[::-1]

    @property
    def submitted_rollouts(self) -> int:
        """How many rollouts the archive has counted, valid or not."""
        return self._state.puct_t

    def best_node(self) -> LibraryNode:
        """Return the best selectable state by raw score (the lowest when lower is better); ties go to the larger id."""
        if self._best_id is None:
            raise StateCorrupt("the archive holds no selectable state")
        return self._state.nodes[self._best_id]

    def best_entry(self) -> LibraryEntry | None:
        """Return the candidate behind the best state."""
        return self._state.entry_of(self.best_node())

    def top_candidates(self, k: int) -> list[LibraryNode]:
        """Return up to `k` states with different programs, best first: what is measured again before submission."""
        chosen: dict[str, LibraryNode] = {}
        for node in sorted(filter(is_candidate, self._state.nodes.values()), key=rank_key, reverse=True):
            construction = self._state.node_construction(node)
            if construction is not None and self._has_program(node):
                chosen.setdefault(construction, node)
            if len(chosen) >= k:
                break
        return list(chosen.values())[: max(k, 0)]

    def snapshot(self) -> dict[str, Any]:
        """Return the archive as `library.json` holds it, independent of later changes."""
        return archive_dict(self._state, self.settings, self._best_id)

    def save(self, path: Path) -> None:
        """Write `library.json` atomically; StateWriteFailed leaves the previous version."""
        self._writer.write(path, self._state, self.settings, self._best_id)

    def check_accounting(self) -> None:
        """Raise StateCorrupt unless counters, groups, entries and the tree agree with each other."""
        check_archive(self._state, self.settings)

    # --- indexes ------------------------------------------------------------------------------------------------------

    def _note_group(self, uid: str, group: GroupRecord) -> None:
        limit = group.visible_timestep_exclusive
        self._step_groups.setdefault(limit, []).append(uid)
        self._open_groups[limit] = self._open_groups.get(limit, 0) + (0 if group.finalized else 1)

    def _reindex(self) -> None:
        """Rebuild what is kept beside the archive for speed, after loading and after pruning."""
        self._rankings.clear()
        candidates = [node for node in self._state.nodes.values() if is_candidate(node)]
        keys = (self._state.node_construction(node) for node in candidates)
        self._constructions = {key for key in keys if key is not None}
        self._best_id = max(candidates, key=rank_key).id if candidates else None
