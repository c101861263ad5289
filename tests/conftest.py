"""What holds for every test: property tests have no deadline, because these machines are shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
