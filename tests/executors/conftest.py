"""Fixtures of the offline executor's tests: the shipped catalogue and its parts, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.answer import Composer
from executors.catalogue import Catalogue

TASK_DIR = Path(__file__).resolve().parents[2] / "harbor" / "polyomino_packing"


@pytest.fixture(scope="session")
def task_dir() -> Path:
    return TASK_DIR


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return Catalogue.load(TASK_DIR / "offline")


@pytest.fixture(scope="session")
def composer(catalogue: Catalogue) -> Composer:
    return Composer(catalogue)


@pytest.fixture(scope="session")
def seed_program() -> str:
    return (TASK_DIR / "solution" / "seed.cpp").read_text(encoding="utf-8")
