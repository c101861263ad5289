"""How numbers read in a report, and how much of a text is shown."""

from __future__ import annotations

from dataclasses import dataclass


def score_text(value: float | None) -> str | None:
    """Four decimals, as `inspect` shows scores; fewer for very large ones."""
    if value is None:
        return None
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:,.1f}" if abs(value) < 1e12 else f"{value:.6g}"


def signed(value: float | None) -> str | None:
    """A difference of scores."""
    text = score_text(value)
    return text if text is None or text.startswith("-") else f"+{text}"


def short(value: float | None) -> str | None:
    """Four significant digits."""
    return None if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float | None) -> str | None:
    """2 h 05 min, 3 min 20 s or 41 s."""
    if seconds is None:
        return None
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def clock(seconds: float | None) -> str | None:
    """The same for a column: 2:05:00 or 3:20 (minutes and seconds)."""
    if seconds is None:
        return None
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text; `left_out` counts the characters that are not shown."""

    text: str
    left_out: int

    @classmethod
    def of(cls, text: str, limit: int) -> Excerpt:
        """At most `limit` characters, cut at the end of a line where one is near."""
        if len(text) <= limit:
            return cls(text, 0)
        cut = text.rfind("\n", limit - 400, limit)
        kept = text[: cut if cut > 0 else limit]
        return cls(kept, len(text) - len(kept))
