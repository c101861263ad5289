"""The Python API's own rules; that it runs the search is shown in `e2e/test_main_job.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from guidance_ttt import run
from guidance_ttt.api import setting_name
from harness.errors import ConfigError


def test_a_wrong_setting_is_a_config_error_and_its_reason_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="standard error"):
        run("polyomino_packing", state_dir=tmp_path, settings={"rollouts": 1})
    assert "GUIDANCE_ROLLOUTS" in capfd.readouterr().err


def test_a_setting_that_has_its_own_argument_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GUIDANCE_STEPS, which has an argument of its own"):
        run("polyomino_packing", steps=2, state_dir=tmp_path, settings={"steps": 3})


def test_settings_may_leave_out_the_prefix() -> None:
    assert setting_name("max_cost") == setting_name("GUIDANCE_MAX_COST") == "GUIDANCE_MAX_COST"
