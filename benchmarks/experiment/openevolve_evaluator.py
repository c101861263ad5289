"""OpenEvolve's evaluator for this experiment: hands each program to the experiment's proxy, which asks the judge.

Copied into the run's folder and loaded by OpenEvolve in its own environment, so it uses the standard library only.
A fault of the judge is an exception here, never a score; the proxy then ends the whole run.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

URL_VARIABLE = "GUIDANCE_PEER_EVALUATE_URL"
TIMEOUT_S = 7200.0


def evaluate(program_path: str) -> dict[str, float]:
    """The program's `combined_score`; raises `OSError` when there is no verdict."""
    request = urllib.request.Request(os.environ[URL_VARIABLE], data=Path(program_path).read_bytes(), method="POST")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=TIMEOUT_S) as response:
        return {"combined_score": float(json.load(response)["combined_score"])}
