"""Which load id answers, through publications, failures, restarts and rollbacks; needs no model and no Reef."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reef.artifact.artifact import Artifact, ArtifactRef, LiveWeightArtifactRef
from reef.runtime.interfaces import ModelCandidate, StaleCandidate, TrainingRuntimeError, UpstreamStatusError

from tttd.local.chat import parse_chat_request
from tttd.local.checkpoint import BASE_CHECKPOINT, AdamState, Manifest, write_checkpoint
from tttd.local.inference_runtime import LocalInferenceRuntime
from tttd.local.state import StateDirectory

IDENTITY = "tiny"


class IdleSampler:
    """Nothing is sampled here."""

    def load(self) -> dict[str, int]:
        return {"running": 0, "waiting": 0}

    def close(self) -> None:
        pass


@dataclass
class Serving:
    """A runtime over a state directory that can be "restarted", and a shelf of releases."""

    root: Path

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.state = StateDirectory(self.root / "state", identity=IDENTITY)
        policy: Any = SimpleNamespace(model_path=Path("model"))
        sampler: Any = IdleSampler()
        self.runtime = LocalInferenceRuntime(policy, self.state, sampler, timeout_s=5.0)

    def restart(self) -> None:
        self.state.close()
        self.open()

    def release(self, name: str) -> Artifact:
        """A release whose tree holds checkpoint `name` (the initial adapter: an empty tree)."""
        tree = self.root / "releases" / name
        if name == BASE_CHECKPOINT:
            tree.mkdir(parents=True, exist_ok=True)
        elif not tree.exists():
            write_release(tree, name)
        return Artifact(ArtifactRef("content", f"release-{name}", None), None, local_path=tree)

    def trained(self, name: str) -> ModelCandidate:
        """A candidate as the trainer leaves it in the state directory."""
        folder = self.state.checkpoint_path(name)
        write_release(folder, name)
        return ModelCandidate(
            candidate_id=name,
            training_job_id=name,
            checkpoint_path=str(folder),
            current_runtime_load_id=self.runtime.current_runtime_load_id(),
        )

    def publish(self, name: str) -> str:
        """Reef's whole sequence for one committed step; returns the load id."""
        load = self.runtime.activate_candidate(self.trained(name)).runtime_load_id
        assert self.runtime.activate_checkpoint(self.release(name)) == load
        self.commit(name)
        return load

    def commit(self, name: str) -> None:
        self.runtime.acknowledge_publication(name)
        self.runtime.mark_published()


def write_release(folder: Path, name: str) -> None:
    tensors = {"lora_A": torch.ones(1)}
    moments = AdamState(1, {"a": torch.ones(1)}, {"a": torch.ones(1)})
    write_checkpoint(folder, Manifest(name, BASE_CHECKPOINT, IDENTITY, 1), tensors, {}, moments)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    serving.runtime.activate_checkpoint(serving.release(BASE_CHECKPOINT))
    yield serving
    serving.state.close()


def served(serving: Serving) -> tuple[str, str]:
    status = serving.runtime.adapter_residency_status()
    assert status["load_id"] == serving.runtime.serving_runtime_load_id()
    return status["load_id"], status["checkpoint_id"]


def test_a_fresh_service_serves_the_initial_adapter(serving: Serving) -> None:
    load, checkpoint = served(serving)
    assert checkpoint == BASE_CHECKPOINT
    assert load.endswith(":0")
    assert serving.runtime.current_runtime_load_id() == load


def test_a_committed_step_gets_one_new_load_id(serving: Serving) -> None:
    before, _ = served(serving)
    load = serving.publish("one")
    assert load != before
    assert served(serving) == (load, "one")
    assert serving.runtime.current_runtime_load_id() == load


def test_an_activated_candidate_is_not_published_before_the_commit(serving: Serving) -> None:
    before, _ = served(serving)
    candidate = serving.trained("one")
    load = serving.runtime.activate_candidate(candidate).runtime_load_id
    serving.runtime.activate_checkpoint(serving.release("one"))
    assert serving.runtime.serving_runtime_load_id() == load
    assert serving.runtime.current_runtime_load_id() == before
    assert serving.runtime.activate_candidate(candidate).runtime_load_id == load
    with pytest.raises(TrainingRuntimeError, match="job one"):
        serving.runtime.acknowledge_publication("another")


def test_a_failed_publication_goes_back_to_the_old_load_id(serving: Serving) -> None:
    before = served(serving)
    serving.runtime.activate_candidate(serving.trained("one"))
    serving.runtime.activate_checkpoint(serving.release(BASE_CHECKPOINT))
    assert served(serving) == before
    assert serving.publish("one").endswith(":1")


def test_a_candidate_of_replaced_weights_is_stale(serving: Serving) -> None:
    stale = serving.trained("one")
    serving.publish("two")
    with pytest.raises(StaleCandidate):
        serving.runtime.activate_candidate(stale)


def test_a_restart_keeps_the_load_id(serving: Serving) -> None:
    load = serving.publish("one")
    serving.restart()
    assert served(serving) == (load, "one")
    assert serving.runtime.activate_checkpoint(serving.release("one")) == load


def test_a_step_committed_as_the_process_died_keeps_the_load_id_it_was_activated_with(serving: Serving) -> None:
    load = serving.runtime.activate_candidate(serving.trained("one")).runtime_load_id
    serving.restart()
    assert served(serving)[1] == BASE_CHECKPOINT
    assert serving.runtime.activate_checkpoint(serving.release("one")) == load
    assert serving.runtime.current_runtime_load_id() == load


def test_an_activated_step_that_was_not_committed_is_gone_after_a_restart(serving: Serving) -> None:
    before = served(serving)
    serving.runtime.activate_candidate(serving.trained("one"))
    serving.restart()
    serving.runtime.activate_checkpoint(serving.release(BASE_CHECKPOINT))
    assert served(serving) == before


def test_a_rollback_is_an_update_and_binding_the_same_weights_is_not(serving: Serving) -> None:
    first = serving.publish("one")
    serving.publish("two")
    assert serving.runtime.restore_checkpoint(serving.release("one")) == first
    rolled_back = serving.runtime.activate_checkpoint(serving.release("one"))
    assert rolled_back != first
    assert served(serving) == (rolled_back, "one")
    assert serving.runtime.activate_checkpoint(serving.release("one")) == rolled_back


def test_a_request_frozen_before_an_update_still_gets_its_own_weights(serving: Serving) -> None:
    old = serving.release("one")
    first = serving.publish("one")
    serving.publish("two")
    weights = serving.runtime.weights_of(old)
    assert (weights.load_id, weights.checkpoint_id) == (first, "one")
    live = Artifact(LiveWeightArtifactRef("content", "live:1", None, first), None)
    assert serving.runtime.weights_of(live).checkpoint_id == "one"


async def test_requests_that_come_during_an_update_wait_and_find_the_new_weights(serving: Serving) -> None:
    serving.runtime.pause_admission()  # as Reef does before it activates a candidate
    waiting = [asyncio.create_task(serving.runtime.acquire_inference()) for _ in range(3)]
    load = serving.publish("one")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    serving.runtime.resume_admission()
    for admitted in await asyncio.wait_for(asyncio.gather(*waiting), timeout=20):
        assert served(serving) == (load, "one")
        admitted.release()
    assert serving.runtime.inference_admission_status == {"open": True, "active": 0}


def test_a_release_that_is_no_longer_on_disk_is_fetched_back(serving: Serving) -> None:
    serving.publish("one")
    for name in ("two", "three", "four", "five"):
        serving.publish(name)
    assert not serving.state.has_checkpoint("one")
    serving.runtime.activate_checkpoint(serving.release("one"))
    assert serving.state.has_checkpoint("one")
    assert served(serving)[1] == "one"


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


def test_a_chat_request_has_the_policy_itself_as_default() -> None:
    request = parse_chat_request(chat())
    assert (request.temperature, request.top_p, request.top_k, request.max_tokens) == (1.0, 1.0, 0, None)
    assert request.seed != parse_chat_request(chat()).seed


def test_null_means_not_given_and_the_newer_name_of_the_token_limit_wins() -> None:
    request = parse_chat_request(chat(seed=None, stop=None, max_tokens=5, max_completion_tokens=7, top_k=-1))
    assert request.max_tokens == 7
    assert request.top_k == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "hi"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": [{"role": "user", "content": "x", "name": "y"}]},
        {"model": 3},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"top_k": -2},
        {"top_k": 1.0},
        {"seed": 2**63},
        {"stream_options": {"x": 1}},
        {"chat_template_kwargs": {"tools": []}},
        {"logprobs": True},
    ],
)
def test_a_chat_request_with_a_wrong_field_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UpstreamStatusError) as refused:
        parse_chat_request(chat(**fields))
    assert refused.value.status == 400
