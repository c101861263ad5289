"""The whole loop with a real Reef: sample, report, train, publish, and the ways it is interrupted.

The stories share one state directory and run in file order; each uses step numbers of its own.  The service is started
as a user starts it until two power cuts have been survived; later restarts are forks, which are much quicker.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Fault
from support.reef_process import TINY_OPTIONS, ReefProcess, Reply
from support.reef_state import ReefState
from support.reef_zygote import shared_zygote

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reef(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ReefProcess]:
    process = ReefProcess(tmp_path_factory.mktemp("reef"), tiny_model, options=TINY_OPTIONS)
    process.start()
    try:
        yield process
    finally:
        process.stop()
    assert list(process.temporary_dir.iterdir()) == []


def committed(reef: ReefProcess) -> int:
    count: int = reef.scenario_status()["scenario_step"]
    return count


def grid_replies(reef: ReefProcess, seed: int) -> list[Reply]:
    return [reef.chat(f"improve candidate {group}", seed=seed + 10 * group + rollout) for group, rollout in reef.grid()]


def report_grid(reef: ReefProcess, replies: list[Reply], step: int, **metadata: Any) -> None:
    for (group, rollout), reply in zip(reef.grid(), replies, strict=True):
        response = reef.report(reply.receipt, float(rollout), step=step, group=group, rollout=rollout, **metadata)
        assert response.status_code == 200, response.text


def test_the_configuration_is_accepted_without_starting_anything(reef: ReefProcess) -> None:
    done = subprocess.run(
        reef.command("--print-config"), env=reef.environ(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "recipe.config.groups-per-step = 2" in done.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe.config.rollouts-per-group": "1"}, "rollouts_per_group must be at least 2"),
        ({"recipe.config.groups-per-step": "0"}, "groups_per_step must be at least 1"),
        ({"training.options.kl-coef": "0"}, "kl-coef must be a positive number"),
        ({"training.options.learning-rate": "-1"}, "learning-rate must be a number >= 0"),
        ({"training.options.unheard-of": "1"}, "unknown config fields: unheard_of"),
        ({"recipe.config.max-staleness": "1"}, "max-staleness must be 0"),
        ({"recipe.config.checkpoint-every-n-versions": "2"}, "checkpoint-every-n-versions must be 1, got 2"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(
    reef: ReefProcess,
    settings: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from reef.cli import main

    for name, value in reef.environ().items():
        if name.startswith("GUIDANCE_"):
            monkeypatch.setenv(name, value)
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    with pytest.raises(SystemExit) as ended:
        main([*reef.arguments(*flags), "--print-config"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_foreign_scenario_is_refused_and_not_registered(reef: ReefProcess) -> None:
    assert reef.call("POST", "/reef/scenarios", {"name": "aaa"}).status_code == 404
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert reef.call("POST", "/v1/chat/completions", body, **{"x-reef-scenario": "aaa"}).status_code == 404
    assert list(reef.status()["scenarios"]) == [reef.scenario]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 5000}, "maximum context length"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"top_p": 0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"n": 2}, "n must be 1"),
        ({"stop": ["x"]}, "stop"),
        ({"tools": []}, "tools"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "enable_thinking"),
    ],
)
def test_a_request_that_cannot_be_served_is_a_clear_400(
    reef: ReefProcess, change: dict[str, Any], message: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **change}
    response = reef.call("POST", "/v1/chat/completions", body)
    assert response.status_code == 400
    assert message in response.text


def test_the_fields_of_the_search_are_served(reef: ReefProcess) -> None:
    fields = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_completion_tokens": 5,
        "chat_template_kwargs": {"enable_thinking": True},
        "seed": 11,
        "stream": False,
    }
    one, two = reef.chat("hi", **fields), reef.chat("hi", **fields)
    assert one.text == two.text
    assert one.receipt != two.receipt
    assert one.body["choices"][0]["finish_reason"] in ("stop", "length")
    usage = one.body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] <= 5
    assert one.body["metadata"]["runtime_load_id"] == reef.scenario_status()["current_runtime_load_id"]
    assert "training" not in one.body


def test_a_streamed_answer_carries_its_receipt(reef: ReefProcess) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True}
    response = reef.call("POST", "/v1/chat/completions", body)
    assert response.headers["content-type"] == "text/event-stream"
    assert '"agent_record_id"' in response.text
    assert response.text.rstrip().endswith("data: [DONE]")


def test_a_report_that_would_poison_the_scenario_is_refused_and_nothing_is_stored(reef: ReefProcess) -> None:
    receipt = reef.chat("hi").receipt
    good = {"step": 90, "group": 0, "rollout": 0, "groups_per_step": 2, "rollouts_per_group": 2}
    for name, change in (
        ("no references", {"references": []}),
        ("references missing", {"references": None}),
        ("two references", {"references": [receipt, receipt]}),
        ("unknown receipt", {"references": ["unknown"]}),
        ("score missing", {"score": None}),
        ("score is a bool", {"score": True}),
        ("score is text", {"score": "1.0"}),
        ("score is not a number", {"score": float("nan")}),
        ("score is infinite", {"score": float("-inf")}),
        ("outside the grid", {"metadata": {**good, "group": 2}}),
        ("negative step", {"metadata": {**good, "step": -1}}),
        ("another grid", {"metadata": {**good, "rollouts_per_group": 3}}),
        ("no place in a grid", {"metadata": {}}),
    ):
        body = {"score": 1.0, "references": [receipt], "metadata": good, **change, "agent_record_id": name}
        text = json.dumps({key: value for key, value in body.items() if value is not None})
        response = reef.call("POST", "/reef/report", content=text)
        assert response.status_code == 400, name
        assert reef.call("GET", f"/reef/scenarios/{reef.scenario}/records/{name}").status_code == 404, name


def test_a_full_grid_trains_one_step_and_the_new_weights_answer(reef: ReefProcess) -> None:
    done, before = committed(reef), reef.probe()
    load = reef.scenario_status()["current_runtime_load_id"]
    reef.run_step(0)
    status = reef.wait_for_steps(done + 1)
    metrics = status["last_committed_step"]["metrics"]
    assert metrics["train/global_batch_size"] == 4
    assert metrics["train/grad_norm"] > 0
    assert metrics["train/lora_base_trainable_parameters"] == 0
    assert metrics["train/lora_b_nonzero"] > 0
    assert metrics["train/importance_ratio"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["learning_rate"] == 0.01
    assert metrics["steps"] == done + 1
    assert status["current_runtime_load_id"] != load
    assert reef.probe() != pytest.approx(before, abs=1e-4)
    assert reef.releases()[0]["current"] is True


def test_the_published_adapter_loads_in_peft_and_gives_the_recorded_probabilities(
    reef: ReefProcess, tiny_model: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    checkpoint = reef.status()["serving"]["tttd"]["adapters"]["checkpoint_id"]
    folder = reef.state_dir / "backend" / "checkpoints" / checkpoint
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32), folder)
    block = reef.training_block(reef.chat("probe", seed=5).receipt)
    tokens = torch.tensor([block["tokens"]])
    with torch.no_grad():
        distribution = torch.log_softmax(model(input_ids=tokens).logits[0, :-1].float(), dim=-1)
    expected = distribution.gather(1, tokens[0, 1:, None])[-block["response_length"] :, 0]
    assert torch.tensor(block["rollout_log_probs"]) == pytest.approx(expected, abs=1e-4)


def test_an_abandoned_attempt_does_not_hold_up_the_next_one(reef: ReefProcess) -> None:
    done = committed(reef)
    reef.run_step(7, slots=reef.grid()[:3])
    reef.run_step(7, attempt=1)
    reef.wait_for_steps(done + 1)


def test_requests_during_an_update_are_all_answered_by_one_adapter_each(reef: ReefProcess) -> None:
    done = committed(reef)
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(reef.chat, f"question {index % 3}", seed=index) for index in range(24)]
        reef.run_step(8)
        replies = [future.result() for future in futures]
        replies += pool.map(lambda index: reef.chat("after", seed=index), range(8))
    reef.wait_for_steps(done + 1)
    blocks = [reef.training_block(reply.receipt) for reply in replies]
    assert {block["runtime_load_id"] for block in blocks} == {
        reply.body["metadata"]["runtime_load_id"] for reply in replies
    }


def test_a_rollback_serves_the_old_weights_and_training_goes_on_from_them(reef: ReefProcess) -> None:
    done, before = committed(reef), reef.probe()
    target = reef.releases()[0]["release_id"]
    reef.run_step(9)
    reef.wait_for_steps(done + 1)
    assert reef.probe() != pytest.approx(before, abs=1e-4)
    assert reef.call("POST", f"/reef/scenarios/{reef.scenario}/rollback", {"release_id": target}).status_code == 200
    assert reef.probe() == pytest.approx(before, abs=1e-4)
    after_rollback = committed(reef)
    reef.run_step(10)
    reef.wait_for_steps(after_rollback + 1)
    assert reef.probe() != pytest.approx(before, abs=1e-4)


def test_a_power_cut_of_everything_loses_no_step_and_makes_none_twice(reef: ReefProcess) -> None:
    """Of a service started as a user starts it; every other stage is in `test_local_reef_kills`."""
    done, state = committed(reef), ReefState(reef.state_dir)
    reef.arm(Fault("torch.autograd:backward", "after"))
    reef.die_in_step(11)
    reef.zygote = shared_zygote()
    reef.start()
    reef.wait_for_steps(done + 1)
    assert len(state.commits()) == committed(reef) == done + 1
    assert len(state.consumed()) == len(set(state.consumed()))
    assert state.leftovers() == []


def test_a_step_that_was_half_reported_when_the_power_went_is_completed_afterwards(reef: ReefProcess) -> None:
    done, before = committed(reef), reef.probe()
    reef.run_step(13, slots=reef.grid()[:3])
    load = reef.scenario_status()["current_runtime_load_id"]
    reef.kill()
    reef.start()
    assert reef.scenario_status()["current_runtime_load_id"] == load
    assert reef.probe() == before
    reef.run_step(13, slots=reef.grid()[3:])
    reef.wait_for_steps(done + 1)
    assert reef.probe() != pytest.approx(before, abs=1e-4)


def test_grids_that_can_never_train_are_named_also_after_a_restart(reef: ReefProcess) -> None:
    done = committed(reef)
    old, stale = grid_replies(reef, 7000), grid_replies(reef, 7100)
    reef.run_step(14)
    reef.wait_for_steps(done + 1)
    new = grid_replies(reef, 8000)
    report_grid(reef, [*old[:2], *new[2:]], step=15)
    report_grid(reef, [*old[2:], *new[:2]], step=16)
    report_grid(reef, stale, step=17)
    expected = [(15, "mixed_release_ids", 2), (16, "mixed_release_ids", 2), (17, "stale_release", 1)]
    reef.wait_until("the stale grid is dropped", lambda: len(failed_steps(reef)) == 3)
    assert failed_steps(reef) == expected
    reef.stop()
    reef.start()
    assert failed_steps(reef) == expected
    assert committed(reef) == done + 1
    # A newer attempt of a discarded step trains.
    for count, step in enumerate((15, 17), start=2):
        reef.run_step(step, attempt=1)
        reef.wait_for_steps(done + count)
    assert failed_steps(reef) == expected[1:2]
    assert reef.status()["error"] is None


def failed_steps(reef: ReefProcess) -> list[tuple[int, str, int]]:
    """(step, reason, number of releases) of each step that Reef's status calls failed."""
    entries = reef.scenario_status()["processor"]["failed_steps"]
    return [(entry["step"], entry["reason"], len(entry["release_ids"])) for entry in entries]


def test_a_second_service_on_the_same_state_is_refused(reef: ReefProcess) -> None:
    second = ReefProcess(reef.state_dir, reef.model_path, options=TINY_OPTIONS, zygote=shared_zygote())
    try:
        with pytest.raises(AssertionError, match="in use by another running service"):
            second.start()
    finally:
        second.stop()
    assert reef.probe()
