"""The archive against a second, slow and independent implementation of the same rules, on random small searches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from library_examples import entry

from harness.library import ArchiveSettings, GuidanceLibrary


@dataclass
class SlowNode:
    """A state as the model knows it."""

    id: str
    parent: str | None
    timestep: int
    value: float
    code: str
    candidate: bool = True


@dataclass
class SlowArchive:
    """Rules written down as directly as possible: everything is recomputed from scratch each time."""

    rollouts: int
    groups: int
    c: float
    cap: int
    topk: int
    nodes: dict[str, SlowNode] = field(default_factory=dict)
    n: dict[str, int] = field(default_factory=dict)
    m: dict[str, float] = field(default_factory=dict)
    t: int = 0
    chosen: dict[str, tuple[int, str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def path(self, node_id: str) -> list[str]:
        parent = self.nodes[node_id].parent
        return [node_id] + (self.path(parent) if parent is not None else [])

    def order(self, limit: int) -> list[str]:
        seen = [x for _, x in sorted(self.nodes.items()) if x.candidate and (x.parent is None or x.timestep < limit)]
        made = [x.value for x in seen if x.parent is not None]
        spread = [x.value for x in seen] if made == [] else made
        scale = max(1e-6, max(spread) - min(spread))
        size = len(seen)
        scores = {}
        for x in seen:
            better = sum(y.value > x.value for y in seen)
            equal_before = sum(y.value == x.value and y.id < x.id for y in seen)
            prior = (size - better - equal_before) / (size * (size + 1) / 2)
            n = self.n.get(x.id, 0)
            q = self.m[x.id] if n > 0 and x.id in self.m else x.value
            scores[x.id] = q + self.c * scale * prior * math.sqrt(1 + self.t) / (1 + n)
        best_first = []
        while scores:
            top = max(scores, key=lambda i: (scores[i], self.nodes[i].value, i))
            best_first.append(top)
            del scores[top]
        return best_first

    def acquire(self, uid: str, limit: int) -> str:
        ranked = self.order(limit)
        blocked: set[str] = set()
        for other_limit, taken in self.chosen.values():
            if other_limit == limit:
                blocked |= {i for i in self.nodes if taken in self.path(i) or i in self.path(taken)}
        free = [i for i in ranked if i not in blocked]
        self.chosen[uid] = (limit, (free or ranked)[0])
        self.counts[uid] = 0
        return self.chosen[uid][1]

    def submit(self, uid: str, node_id: str, timestep: int, value: float | None, code: str) -> bool:
        limit, parent = self.chosen[uid]
        new = value is not None and code not in {x.code for x in self.nodes.values() if x.candidate}
        if new and value is not None:
            self.nodes[node_id] = SlowNode(node_id, parent, timestep, value, code)
        self.t += 1
        for ancestor in self.path(parent):
            self.n[ancestor] = self.n.get(ancestor, 0) + 1
        if value is not None:
            self.m[parent] = max(value, self.m.get(parent, -math.inf))
        self.counts[uid] += 1
        step = [self.counts[u] for u, (other, _) in self.chosen.items() if other == limit]
        if len(step) >= self.groups and set(step) == {self.rollouts}:
            self.prune()
        return new

    def prune(self) -> None:
        def best_first(ids: set[str]) -> list[str]:
            return sorted(ids, key=lambda i: (self.nodes[i].value, i), reverse=True)

        roots = {i for i, x in self.nodes.items() if x.parent is None}
        left = set(roots)
        for parent in self.nodes:
            children = {i for i, x in self.nodes.items() if x.parent == parent and x.candidate}
            left |= set(best_first(children)[: self.topk] if self.topk > 0 else children)
        codes = {self.nodes[i].code for i in roots}
        unique: list[str] = []
        for i in best_first(left - roots):
            if self.nodes[i].code not in codes:
                unique.append(i)
                codes.add(self.nodes[i].code)
        if self.cap > 0:
            unique = unique[: max(0, self.cap - len(roots))]
        candidates = roots | set(unique)
        kept = {ancestor for i in candidates for ancestor in self.path(i)}
        self.nodes = {i: x for i, x in self.nodes.items() if i in kept}
        for i, x in self.nodes.items():
            x.candidate = i in candidates
        self.n = {i: n for i, n in self.n.items() if i in kept}
        self.m = {i: m for i, m in self.m.items() if i in kept}

    def best(self) -> str:
        return max((i for i, x in self.nodes.items() if x.candidate), key=lambda i: (self.nodes[i].value, i))


STATUS = st.sampled_from(["valid", "valid", "valid", "invalid", "parse_error"])
REPLY = st.tuples(STATUS, st.integers(0, 6), st.integers(0, 9))


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    groups, rollouts, steps = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    step = st.lists(REPLY, min_size=groups * rollouts, max_size=groups * rollouts)
    return {
        "groups": groups,
        "rollouts": rollouts,
        "c": draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        "cap": draw(st.integers(-1, 7)),
        "topk": draw(st.integers(-1, 3)),
        "direction": draw(st.sampled_from(["max", "min"])),
        "late": [draw(st.booleans()) for _ in range(steps)],
        "seed": draw(st.integers(0, 5)),
        "orders": [draw(st.permutations(range(groups))) for _ in range(steps)],
        "replies": [draw(step) for _ in range(steps)],
    }


def acquire(library: GuidanceLibrary, slow: SlowArchive, uid: str, limit: int) -> None:
    chosen = library.acquire_group(uid, visible_timestep_exclusive=limit)
    assert chosen.id == slow.acquire(uid, limit)
    assert library.acquire_group(uid, visible_timestep_exclusive=limit) is chosen


def compare(library: GuidanceLibrary, slow: SlowArchive) -> None:
    snapshot = library.snapshot()
    nodes = snapshot["nodes"]
    assert set(nodes) == set(slow.nodes)
    for node_id, node in slow.nodes.items():
        assert nodes[node_id]["parent_id"] == node.parent
        assert nodes[node_id]["value"] == node.value
        assert nodes[node_id]["metadata"]["archive_candidate"] == node.candidate
        assert set(nodes[node_id]["children"]) == {i for i, x in slow.nodes.items() if x.parent == node_id}
    assert snapshot["puct_n"] == slow.n
    assert snapshot["puct_m"] == slow.m
    assert snapshot["puct_T"] == slow.t
    assert snapshot["best_node_id"] == slow.best()
    library.check_accounting()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(searches())
def test_selection_counting_and_pruning_agree_with_the_slow_rules(search: dict[str, Any]) -> None:
    rules = ArchiveSettings(
        search["rollouts"],
        search["groups"],
        puct_c=search["c"],
        max_buffer_size=search["cap"],
        topk_children=search["topk"],
        score_direction=search["direction"],
    )
    sign = 1.0 if search["direction"] == "max" else -1.0
    seed = entry("seed", raw=3.0, timestep=0, solution="code 0")
    library = GuidanceLibrary.from_seed(rules, seed, run_seed=search["seed"])
    slow = SlowArchive(search["rollouts"], search["groups"], search["c"], search["cap"], search["topk"])
    for root in library.roots():
        slow.nodes[root.id] = SlowNode(root.id, None, 0, sign * 3.0, "code 0")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "library.json"
        for number, (order, replies) in enumerate(zip(search["orders"], search["replies"], strict=True), start=1):
            late = search["late"][number - 1]
            if not late:
                for group in range(search["groups"]):
                    acquire(library, slow, f"{number}:{group}", number)
            left = iter(replies)
            for group in order:
                if late:
                    acquire(library, slow, f"{number}:{group}", number)
                for rollout in range(search["rollouts"]):
                    status, raw, code = next(left)
                    uid, entry_id = f"{number}:{group}", f"e-{number}-{group}-{rollout}"
                    made = entry(entry_id, slow.chosen[uid][1], raw=float(raw), timestep=number)
                    made = replace(made, verifier_status=status, solution=f"code {code}")
                    node = library.submit_child(uid, made, node_id=f"node-{entry_id}")
                    value = sign * raw if status == "valid" else None
                    assert (node is not None) == slow.submit(uid, f"node-{entry_id}", number, value, f"code {code}")
            compare(library, slow)
            library.save(path)
            again = GuidanceLibrary.load(path, rules)
            assert again.snapshot() == library.snapshot()
            if number % 2:
                library = again
