"""`guidance-ttt doctor --profile gpu`: devices, pinned parts, and what the container must allow."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest
from front_doctor import context_of, levels

from guidance_ttt.doctor import gpu
from guidance_ttt.doctor.probes import Probes, Ran

SMI = "0, NVIDIA H200, 143771 MiB\n1, NVIDIA H200, 143771 MiB\n"


def gpu_probes(smi: Ran | None = None, **installed: str) -> Probes:
    names = {pin.distribution: pin.versions.removeprefix("==").replace(".*", ".0") for pin in gpu.PINS}
    names |= {"peft": "0.21", "flashinfer-python": "0.7.1"}
    names |= {name.replace("_", "-"): version for name, version in installed.items()}
    return Probes(
        which=lambda name: None if smi is None else "/usr/bin/nvidia-smi",
        run=lambda argv, **options: smi,
        installed=names.get,
    )


@pytest.mark.parametrize(
    ("smi", "devices", "expected", "words"),
    [
        (Ran(0, SMI), "0,1", ["ok"], "2 device(s)"),
        (Ran(0, SMI), "0", ["failure"], "1 for the policy, 2 asked for"),
        (Ran(9, "NVIDIA-SMI has failed"), "0,1", ["failure"], "NVIDIA-SMI has failed"),
        (None, "0,1", ["failure"], "nvidia-smi is not there"),
        (Ran(0, SMI.replace("H200", "B200")), "0,1", ["ok", "warning"], "B200"),
    ],
)
def test_the_devices_are_counted_against_the_config(
    smi: Ran | None, devices: str, expected: list[str], words: str
) -> None:
    found = list(gpu.device_findings(gpu_probes(smi), {"CUDA_VISIBLE_DEVICES": devices}, 2))
    assert levels(found) == expected
    assert words in found[0].fact


def test_each_pinned_part_is_compared() -> None:
    assert levels(gpu.pin_findings(gpu_probes(), attention_is_triton=False)) == ["ok"]
    (found,) = gpu.pin_findings(gpu_probes(numpy="2.2.6"), attention_is_triton=False)
    assert "numpy 2.2.6 is installed, ==1.26.4 is needed: remnants of numpy 2" in found.fact
    nothing = replace(gpu_probes(), installed=lambda name: None)
    assert levels(gpu.pin_findings(nothing, attention_is_triton=False)) == ["failure"] * (len(gpu.PINS) + 1)
    (found,) = gpu.pin_findings(gpu_probes(flashinfer_python="0.6.9"), attention_is_triton=False)
    assert "attention-backend: triton" in found.cure
    assert levels(gpu.pin_findings(gpu_probes(flashinfer_python="0.6.9"), attention_is_triton=True)) == ["ok"]
    assert levels(gpu.pin_findings(gpu_probes(torch="2.11.1+cu129"), attention_is_triton=True)) == ["ok"]


def test_what_loads_and_what_the_container_allows_is_told() -> None:
    good = "ray loads\nsglang loads\nslime loads\nmegatron.core loads\nadapter-receiver loads\n"
    assert levels(gpu.load_findings(good)) == ["ok"]
    bad = good.replace("adapter-receiver loads", "adapter-receiver fails: RuntimeError missing fields: ['upsert']")
    (found,) = gpu.load_findings(bad)
    assert "SGLang cannot receive adapters: RuntimeError missing fields" in found.fact
    assert levels(gpu.load_findings(None)) == ["failure"]
    unlimited = resource.RLIM_INFINITY
    assert list(gpu.container_findings(64 << 30, unlimited, unlimited)) == []
    assert levels(gpu.container_findings(1 << 30, 65536, 8 << 20)) == ["warning"] * 3
    assert levels(gpu.environment_findings({}, None)) == ["warning", "warning", "ok"]
    assert levels(gpu.environment_findings({"SGLANG_DISABLE_CUDNN_CHECK": "1"}, "10.0.0.1")) == ["ok"]


def test_a_machine_without_the_runtime_is_told_each_missing_part(tmp_path: Path) -> None:
    probes = replace(gpu_probes(), has_module=lambda name: name == "ray")
    found = list(gpu.check_gpu(context_of(tmp_path, probes)))
    missing = [item.fact for item in found if "is not installed" in item.fact]
    wanted = ("sglang", "slime.backends", "megatron.core", "megatron.bridge")
    assert missing == [f"the Python module {name} is not installed" for name in wanted]
    assert all("docs/gpu.md" in item.cure for item in found if item.fact in missing)
