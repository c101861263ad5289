"""Score the final program through the judge and write the trial's reward.

Needs only the standard library, because it runs in a bare container.  It never crashes and never lets a fault of the
judge look like a verdict: whatever goes wrong ends as reward 0 with a reason that says whose fault it was.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROBLEM_ID = "lasso_path"
DEFAULT_JUDGE_URL = "http://host.docker.internal:8082"
# Shorter than the verifier's limit in task.toml (1800 s), so that the reason is always written.
DEFAULT_DEADLINE_S = 1200.0
DEFAULT_POLL_S = 2.0
SUBMIT_TIMEOUT_S = 30.0
POLL_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 2**20
FINAL_STATUSES = ("done", "error", "environment_error")

TRANSPORT_ERRORS = (OSError, http.client.HTTPException, ValueError)
Answer = dict[str, object]


class JudgeFault(Exception):
    """The judge could not be asked, or what it said is no verdict."""


@dataclass(frozen=True)
class Grade:
    """The number Harbor records and the sentence a person reads."""

    reward: float
    reason: str


def one_line(value: object, limit: int = 400) -> str:
    """Foreign text as one bounded, printable line."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def multipart(fields: dict[str, str], file_name: str, content: bytes) -> tuple[bytes, str]:
    """A form body with the program as its file part `code`, and the matching content type."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="code"; filename="{file_name}"\r\n'
    parts += [head.encode(), b"Content-Type: text/x-python; charset=utf-8\r\n\r\n", content]
    parts.append(f"\r\n--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def fetch_json(request: str | urllib.request.Request, timeout_s: float) -> Answer:
    """One JSON object from the judge; transport faults and nonsense raise one of TRANSPORT_ERRORS."""
    # No proxy: the judge is a neighbour, and a proxy variable of the image must not redirect it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout_s) as answer:
        body = answer.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def until_deadline(call: Callable[[], Answer | None], deadline: float, poll_s: float, what: str) -> Answer:
    """Repeat `call` until it returns an answer; single failures are tolerated, the last one is told."""
    last = "no final answer"
    while True:
        try:
            answer = call()
            if answer is not None:
                return answer
            last = "no final answer yet"
        except urllib.error.HTTPError as error:
            last = f"HTTP {error.code}"
            # A refused request stays refused; 404 may be a judge that is still restoring its results.
            if 400 <= error.code < 500 and error.code not in (404, 408, 425, 429):
                raise JudgeFault(f"{what}: the judge refused the request with HTTP {error.code}") from error
        except TRANSPORT_ERRORS as error:
            last = one_line(error, 200)
        if time.monotonic() + poll_s >= deadline:
            raise JudgeFault(f"{what}: gave up at the deadline; last: {last}")
        time.sleep(poll_s)


def ask_judge(code: bytes, judge_url: str, deadline_s: float, poll_s: float) -> Answer:
    """Submit the program and wait for the judge's final answer."""
    deadline = time.monotonic() + deadline_s
    body, content_type = multipart({"pid": PROBLEM_ID, "lang": "python"}, "solution.py", code)

    def submit() -> Answer:
        request = urllib.request.Request(f"{judge_url}/submit", data=body, headers={"Content-Type": content_type})
        answer = fetch_json(request, min(SUBMIT_TIMEOUT_S, deadline_s))
        sid = answer.get("sid")
        if isinstance(sid, bool) or not isinstance(sid, (int, str)) or not str(sid).strip():
            raise ValueError(f"the judge gave no submission id: {one_line(answer, 120)}")
        return answer

    sid = urllib.parse.quote(str(until_deadline(submit, deadline, poll_s, "submitting the program")["sid"]), safe="")

    def poll() -> Answer | None:
        answer = fetch_json(f"{judge_url}/result/{sid}", min(POLL_TIMEOUT_S, deadline_s))
        return answer if answer.get("status") in FINAL_STATUSES else None

    return until_deadline(poll, deadline, poll_s, f"waiting for submission {sid}")


def number(value: object) -> float | None:
    """A finite, non-negative JSON number, or None (a bool is not a number)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) and result >= 0 else None


def is_valid(answer: Answer) -> bool:
    """Whether every answer of the program was right, by the judge's own word."""
    return answer.get("valid") is True


def grade_answer(answer: Answer) -> Grade:
    """The reward for one final answer; everything doubtful is worth 0."""
    status = answer.get("status")
    message = one_line(answer.get("message") or answer.get("error") or "no message")
    if status == "environment_error" or answer.get("failureDomain") == "infrastructure":
        return Grade(0.0, f"infrastructure failure, not a verdict about the program: {message}")
    if status != "done":
        return Grade(0.0, f"the judge rejected the program ({one_line(status, 40)}): {message}")
    score = number(answer.get("score"))
    if score is None:
        shown = one_line(repr(answer.get("score")), 60)
        return Grade(0.0, f"infrastructure failure: the judge's score {shown} is no score")
    if not is_valid(answer):
        return Grade(0.0, f"the judge did not call the program valid: {message}")
    return Grade(score, f"valid, score {score!r}: {message}")


def grade(solution: Path, judge_url: str, deadline_s: float, poll_s: float) -> Grade:
    """Grade one solution file; never raises."""
    try:
        code = solution.read_bytes()
    except OSError as error:
        return Grade(0.0, f"no solution: {solution} cannot be read ({error.strerror})")
    if not code.strip():
        return Grade(0.0, f"no solution: {solution} is blank")
    try:
        return grade_answer(ask_judge(code, judge_url.rstrip("/"), deadline_s, poll_s))
    except JudgeFault as error:
        return Grade(0.0, f"infrastructure failure: the judge at {judge_url} gave no verdict: {one_line(error)}")
    except Exception as error:
        return Grade(0.0, f"infrastructure failure in the grader: {type(error).__name__}: {one_line(error)}")


def main() -> None:
    """Command line entry: grade, write reward.json and reason.txt, print both."""
    parser = argparse.ArgumentParser(description="Score /workspace/solution.py through the judge.")
    parser.add_argument("--solution", type=Path, default=Path("/workspace/solution.py"))
    parser.add_argument("--logs-dir", type=Path, default=Path("/logs/verifier"))
    parser.add_argument("--deadline-s", type=float, default=DEFAULT_DEADLINE_S)
    parser.add_argument("--poll-s", type=float, default=DEFAULT_POLL_S)
    options = parser.parse_args()
    # An empty variable counts as not set.
    judge_url = os.environ.get("GUIDANCE_JUDGE_CONTAINER_URL") or DEFAULT_JUDGE_URL
    result = grade(options.solution, judge_url, options.deadline_s, options.poll_s)
    options.logs_dir.mkdir(parents=True, exist_ok=True)
    (options.logs_dir / "reward.json").write_text(json.dumps({"reward": result.reward}) + "\n", encoding="utf-8")
    (options.logs_dir / "reason.txt").write_text(result.reason + "\n", encoding="utf-8")
    print(json.dumps({"reward": result.reward, "reason": result.reason}))


if __name__ == "__main__":
    main()
