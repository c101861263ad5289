"""Whether an archive is whole: counters against groups, groups against entries, and a tree that really is one.

Pure checks that raise StateCorrupt with the first contradiction; run on every load, so that later code may trust the
data (a cycle among the parents, for example, would make a walk to the root endless).
"""

from __future__ import annotations

from collections import Counter

from harness.archive_state import ArchiveSettings, ArchiveState
from harness.errors import StateCorrupt


def check_archive(state: ArchiveState, settings: ArchiveSettings) -> None:
    """Raise StateCorrupt unless the archive is consistent with itself and with the grid."""
    _check_tree(state)
    _check_groups(state, settings)
    roots = sum(node.is_root for node in state.nodes.values())
    if roots != settings.groups_per_step:
        raise StateCorrupt(f"it has {roots} roots, but a step has {settings.groups_per_step} groups")
    for name, table in (("puct_n", state.puct_n), ("puct_m", state.puct_m)):
        if unknown := sorted(set(table) - set(state.nodes)):
            raise StateCorrupt(f"{name} counts the unknown node {unknown[0]}")


def _check_tree(state: ArchiveState) -> None:
    listed = Counter((node.id, child) for node in state.nodes.values() for child in node.children)
    for node in state.nodes.values():
        if node.entry_id is not None and node.entry_id not in state.entries:
            raise StateCorrupt(f"node {node.id} points at the missing entry {node.entry_id}")
        if node.parent_id is not None and node.parent_id not in state.nodes:
            raise StateCorrupt(f"node {node.id} points at the missing parent {node.parent_id}")
        if node.parent_id is not None and listed.pop((node.parent_id, node.id), 0) != 1:
            raise StateCorrupt(f"node {node.parent_id} does not list its child {node.id} exactly once")
    if listed:
        parent, child = next(iter(listed))
        raise StateCorrupt(f"node {parent} lists {child}, which is not its child")
    reached: set[str] = set()
    waiting = [node.id for node in state.nodes.values() if node.is_root]
    while waiting:
        node_id = waiting.pop()
        reached.add(node_id)
        waiting.extend(state.nodes[node_id].children)
    if lost := sorted(set(state.nodes) - reached):
        raise StateCorrupt(f"node {lost[0]} is its own ancestor")


def _check_groups(state: ArchiveState, settings: ArchiveSettings) -> None:
    full = settings.rollouts_per_group
    for uid, group in state.groups.items():
        if not 0 <= group.submitted <= full:
            raise StateCorrupt(f"group {uid!r} counts {group.submitted} of {full} rollouts")
        if group.finalized != (group.submitted == full):
            raise StateCorrupt(f"group {uid!r} has {group.submitted} of {full} rollouts, finalized {group.finalized}")
        if len(group.entry_ids) != group.submitted:
            raise StateCorrupt(f"group {uid!r} lists {len(group.entry_ids)} entries for {group.submitted} rollouts")
        for entry_id in group.entry_ids:
            if entry_id not in state.entries:
                raise StateCorrupt(f"group {uid!r} lists the missing entry {entry_id}")
        if not group.finalized and group.selected_node_id not in state.nodes:
            raise StateCorrupt(f"group {uid!r} is open, but its parent {group.selected_node_id} is missing")
    submitted = sum(group.submitted for group in state.groups.values())
    if state.puct_t != submitted:
        raise StateCorrupt(f"puct_T is {state.puct_t}, but the groups count {submitted} rollouts")
