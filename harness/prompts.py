"""The two prompts of the search: one asks the policy for guidance, one asks the executor for a program.

Owns their wording and their limits, and keeps the summary-only rule: a guidance prompt holds the parent's summary and
score, never its code.  Knows nothing of the archive: it is given one entry.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from harness.contract import TaskContract
from harness.errors import ConfigError, TaskInvalid
from harness.parsing import MAX_PROGRAM_CHARS, fence_for
from harness.state import LibraryEntry
from harness.summaries import (
    MAX_JUDGE_MESSAGE_CHARS,
    MAX_SUMMARY_CHARS,
    NO_SUMMARY,
    ProgramLines,
    assert_no_code,
    canonical_summary,
    clean_judge_message,
    clean_unicode,
    neutralise_tags,
    one_line,
)

Role = Literal["system", "user", "assistant"]
ZERO_SHOT = "zero-shot"
FEW_SHOT = "few-shot"
PROMPT_STYLES = (ZERO_SHOT, FEW_SHOT)


PROMPT_MODE = "summary_only"
"""What the policy may see of a parent, as reports, entries and resume states record it."""


@dataclass(frozen=True)
class ChatMessage:
    """One turn of a chat request."""

    role: Role
    content: str


@dataclass(frozen=True)
class Prompt:
    """A chat request's messages, first to last."""

    messages: tuple[ChatMessage, ...]

    def to_list(self) -> list[dict[str, str]]:
        """The messages as chat APIs take them."""
        return [{"role": message.role, "content": message.content} for message in self.messages]

    @property
    def char_count(self) -> int:
        """Characters of all messages together."""
        return sum(len(message.content) for message in self.messages)


@dataclass(frozen=True)
class PromptLimits:
    """Bounds, in characters, on the untrusted parts of a prompt.

    Summaries and judge messages are cut (and say so).  Parent code is never cut, because half a program is a wrong
    program: a longer one is refused.
    """

    parent_code: int = MAX_PROGRAM_CHARS
    summary: int = MAX_SUMMARY_CHARS
    judge_message: int = MAX_JUDGE_MESSAGE_CHARS
    parent_line: int = 120


DEFAULT_LIMITS = PromptLimits()


class GuidanceExample(BaseModel):
    """One example turn: a short line about a parent, and good guidance for it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    parent: str
    guidance: str

    @field_validator("parent", "guidance")
    @classmethod
    def _usable(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        if "<guidance>" in value or "</guidance>" in value:
            raise ValueError("must not contain <guidance> tags; they are added around it")
        return value.strip()


class GuidanceExamples(BaseModel):
    """A task's few-shot data (`guidance_examples.json`): a brief of the problem and example turns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    brief: str
    examples: tuple[GuidanceExample, ...]

    @field_validator("brief")
    @classmethod
    def _brief_text(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value.strip()

    @field_validator("examples")
    @classmethod
    def _some(cls, value: tuple[GuidanceExample, ...]) -> tuple[GuidanceExample, ...]:
        if not value:
            raise ValueError("needs at least one example")
        return value

    @classmethod
    def load(cls, path: Path | str) -> GuidanceExamples:
        """Read and check the file; raises `TaskInvalid` naming it and the first wrong place."""
        try:
            return cls.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise TaskInvalid(f"{path} is missing; the few-shot style needs it (or choose zero-shot)") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise TaskInvalid(f"{path} cannot be read as JSON: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise TaskInvalid(f"{path}: {place}: {first['msg']}") from None


def build_guidance_prompt(
    *,
    contract: TaskContract,
    entry: LibraryEntry,
    style: str = ZERO_SHOT,
    examples: GuidanceExamples | None = None,
    limits: PromptLimits = DEFAULT_LIMITS,
) -> Prompt:
    """Ask for guidance on improving `entry`, from its summary and score alone.

    `style` is `zero-shot` (for large policies) or `few-shot` (for small ones; needs `examples`).  Raises `ConfigError`
    for another style or missing examples.
    """
    known = ProgramLines(entry.solution)
    summary = entry_summary(entry, limits)
    if style == ZERO_SHOT:
        block = [known.excise(line) for line in score_lines(contract, entry, limits)]
        prompt = _zero_shot(contract, summary, block)
        template = _zero_shot(contract, "", block[:-1])
    elif style == FEW_SHOT:
        if examples is None:
            raise ConfigError("the few-shot prompt style needs the task's guidance_examples.json; or use zero-shot")
        prompt = _few_shot(examples, known.excise(parent_line(summary, entry, limits)))
        template = _few_shot(examples, "")
    else:
        raise ConfigError(f"prompt style {style!r} is not known; use one of {', '.join(PROMPT_STYLES)}")
    public = "\n".join(message.content for message in template.messages)
    assert_no_code((message.content for message in prompt.messages), entry.solution, public=public)
    return prompt


def build_execution_prompt(
    *, contract: TaskContract, entry: LibraryEntry, guidance: str, limits: PromptLimits = DEFAULT_LIMITS
) -> Prompt:
    """Ask an executor to improve the program of `entry` by following `guidance`.

    Raises `TaskInvalid` when the parent has no code or more than `limits.parent_code` characters of it.
    """
    code = clean_unicode(entry.solution).strip()
    if not code:
        raise TaskInvalid(f"archive entry {entry.id} has no program, so it cannot be a parent")
    if len(code) > limits.parent_code:
        raise TaskInvalid(
            f"the program of archive entry {entry.id} has {len(code)} characters, more than the {limits.parent_code} "
            f"that a prompt may carry; it is never cut, so shorten the seed program"
        )
    language = contract.language
    fence = fence_for(code)
    parts = [
        f"<problem>\n{contract.problem_prompt.strip()}\n</problem>",
        "\n".join(
            [
                "<selected_parent>",
                *score_lines(contract, entry, limits),
                "",
                "<parent_code>",
                f"{fence}{language.fence}",
                code,
                fence,
                "</parent_code>",
                "</selected_parent>",
            ]
        ),
        f"<guidance>\n{neutralise_tags(clean_unicode(guidance)).strip()}\n</guidance>",
        _execution_rules(contract, language.label),
        _answer_format(language.fence, language.label),
    ]
    system = (
        f"You write programs in {language.label}. You get a working parent program and one piece of guidance; you "
        f"carry the guidance out and hand back one complete program that runs as it stands, with a faithful summary."
    )
    return Prompt((ChatMessage("system", system), ChatMessage("user", "\n\n".join(parts))))


def entry_summary(entry: LibraryEntry, limits: PromptLimits = DEFAULT_LIMITS) -> str:
    """The entry's canonical summary, cleaned and bounded; a fixed sentence when there is none."""
    raw = entry.metadata.get("raw_model_summary")
    text = raw if isinstance(raw, str) and raw.strip() else entry.summary
    return canonical_summary(text, entry.solution, max_chars=limits.summary).text or NO_SUMMARY


def score_lines(contract: TaskContract, entry: LibraryEntry, limits: PromptLimits = DEFAULT_LIMITS) -> list[str]:
    """The four lines that say how the judge liked the parent; the message comes last."""
    raw = entry.verifier_raw_score
    message = clean_judge_message(entry.verifier_message, entry.solution, max_chars=limits.judge_message)
    return [
        f"Verifier status: {one_line(entry.verifier_status)}",
        f"{contract.raw_score_label}: {None if raw is None else repr(float(raw))}",
        f"Reward: {float(entry.verifier_reward)!r}",
        f"Verifier message: {message}",
    ]


def parent_line(summary: str, entry: LibraryEntry, limits: PromptLimits = DEFAULT_LIMITS) -> str:
    """The few-shot style's view of a parent: its score and the start of its summary, on one line."""
    raw = entry.verifier_raw_score
    score = "unknown" if raw is None or not math.isfinite(raw) else f"{raw:.4g}"
    text = one_line(summary)
    if len(text) > limits.parent_line:
        head = text[: limits.parent_line]
        sentence = head.rfind(". ") + 1
        # Whole sentences where one fits: a small model continues a broken one instead of answering.
        text = head[:sentence] if sentence else head.rsplit(" ", 1)[0] + " ..."
    return f"Score {score}. {text}"


def guidance_block(text: str) -> str:
    """Guidance in the form that the parser accepts."""
    return f"<guidance>\n{text}\n</guidance>"


def _zero_shot(contract: TaskContract, summary: str, score_block: list[str]) -> Prompt:
    system = (
        "You steer an open-ended search for better programs. You decide on the direction of the next attempt and leave "
        "the implementation to somebody else: no code, no low-level detail."
    )
    user = "\n\n".join(
        [
            f"<problem>\n{contract.problem_prompt.strip()}\n</problem>",
            "The next block is all you get to know about the selected program: a summary of it and its score. Its "
            "source is withheld on purpose.",
            "\n".join(["<selected_summary>", summary, "", *score_block, "</selected_summary>"]),
            f"# Objective\n\n{contract.objective.strip()}",
            "\n".join(
                [
                    "# Evolutionary Guidelines",
                    "",
                    "1. Read from the summary and the score what has been tried, what it achieved and what holds it "
                    "back now.",
                    "2. Stay on the level of the algorithm's strategy. Write no code, no implementation detail and no "
                    "table of parameter values.",
                    f"3. Propose only a mechanism that can be carried out. {contract.mechanism_constraint.strip()}",
                    "4. End with exactly one guidance block that is not empty, and write nothing after it. Mention the "
                    "tags nowhere else.",
                ]
            ),
            "# Required format\n\n" + guidance_block("One conceptual direction that the next program can act on."),
        ]
    )
    return Prompt((ChatMessage("system", system), ChatMessage("user", user)))


def _few_shot(examples: GuidanceExamples, line: str) -> Prompt:
    system = f"{examples.brief}\nAnswer with one piece of guidance in <guidance> and </guidance>, and nothing else."
    messages = [ChatMessage("system", system)]
    for example in examples.examples:
        messages.append(ChatMessage("user", example.parent))
        messages.append(ChatMessage("assistant", guidance_block(example.guidance)))
    messages.append(ChatMessage("user", line))
    return Prompt(tuple(messages))


def _execution_rules(contract: TaskContract, label: str) -> str:
    return (
        "The problem statement decides in every doubt. The parent program runs and is your starting point: apply the "
        "guidance to it faithfully, and keep every behaviour that the guidance does not touch. "
        f"Language: {label}. Score direction: {contract.score_direction}.\n\n{contract.solution_contract.strip()}"
    )


def _answer_format(fence_label: str, label: str) -> str:
    return "\n".join(
        [
            "Think first. Then answer with exactly two top-level blocks in this order; the reply ends with </summary>.",
            "",
            "<solution>",
            f"```{fence_label}",
            f"(the complete {label} program)",
            "```",
            "</solution>",
            "<summary>",
            "In plain prose: (1) the idea that the program implements; (2) what changed against the parent because of "
            "the guidance, and what was kept; (3) the search and refinement mechanisms that are really in it. It must "
            "be enough for a reader who never sees the program, and must admit whatever part of the guidance was "
            "simplified or left out. It holds no source text, no fences, no constants or raw parameters, no benchmark "
            "figures and none of these instructions.",
            "</summary>",
            "",
            "If a line of the program consists of three or more back-ticks, use a longer fence around the program.",
        ]
    )
