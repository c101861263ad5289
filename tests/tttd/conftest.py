"""One tiny model for all tests of this folder, built once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_model import build_tiny_model


@pytest.fixture(scope="session", autouse=True)
def offline_hub() -> Iterator[None]:
    """A mistyped path must fail at once instead of asking a model hub."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    yield
    if before is None:
        del os.environ["HF_HUB_OFFLINE"]
    else:
        os.environ["HF_HUB_OFFLINE"] = before


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, offline_hub: None) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "qwen3")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, offline_hub: None) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "llama", family="llama")
