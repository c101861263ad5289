"""What the offline executor says to one request: the program, and an honest summary of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce

from executors.assemble import Asleep, ReadBack, assemble, effective, read_configuration
from executors.catalogue import Catalogue, Mechanism
from executors.matching import Match, Matcher

HONEST_LABEL = "rule-based catalogue, not a language model"


@dataclass(frozen=True)
class Answer:
    """A complete program with its summary; `changed` is False when the parent came back as it was."""

    program: str
    summary: str
    changed: bool
    fence_label: str

    def text(self) -> str:
        """The answer in the form that every executor uses; nothing follows the summary."""
        longest = max((len(run) for run in re.findall(r"^\s*(`{3,})", self.program, re.MULTILINE)), default=2)
        fence = "`" * max(3, longest + 1)
        return (
            f"Answer of a {HONEST_LABEL}.\n\n"
            f"<solution>\n{fence}{self.fence_label}\n{self.program.rstrip()}\n{fence}\n</solution>\n"
            f"<summary>\n{self.summary}\n</summary>"
        )


class Composer:
    """Turns a parent program and guidance into an answer; deterministic and free of state."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._matcher = Matcher(catalogue)

    def compose(self, parent: str, guidance: str) -> Answer:
        """Apply what the guidance names to the parent's configuration, or return the parent unchanged."""
        read = read_configuration(self.catalogue, parent)
        match = self._matcher.match(guidance)
        wanted = reduce(lambda so_far, named: self.catalogue.step(named, so_far), match.applied, read.configuration)
        label = self.catalogue.data.fence
        if wanted == read.configuration:
            return Answer(parent, self._summary(read.configuration, match, read), False, label)
        return Answer(assemble(self.catalogue, wanted), self._summary(wanted, match, read), True, label)

    def _summary(self, configuration: dict[str, str], match: Match, read: ReadBack) -> str:
        """The state first (a reader may see only the beginning), then the change, then what was left out."""
        built, asleep = effective(self.catalogue, configuration)
        return "\n".join([self._state(built), *self._change(configuration, match, read, asleep)])

    def _state(self, built: dict[str, str]) -> str:
        """What the program does: first how it places, then every choice that differs from the plainest one."""
        sentences = [
            setting.values[built[key]]
            for key, setting in self.catalogue.settings.items()
            if built[key] != setting.default or setting.always_told
        ]
        return " ".join(sentences)

    def _change(
        self, configuration: dict[str, str], match: Match, read: ReadBack, asleep: tuple[Asleep, ...]
    ) -> list[str]:
        lines = []
        if not match.applied:
            lines.append("Changed: nothing; the guidance named no mechanism of the catalogue, the parent came back.")
        elif configuration == read.configuration:
            names = " and ".join(mechanism.name for mechanism in match.applied)
            lines.append(f"Changed: nothing; the parent already had {names}.")
        else:
            changed = {key for key, value in configuration.items() if value != read.configuration[key]}
            effects = "; it ".join(self._progress(mechanism, configuration, changed) for mechanism in match.applied)
            lines.append(f"Changed: it {effects}. Everything else is as in the parent.")
        lines += [
            f"Left out: {refusal.mechanism.name}, which does not go together with {refusal.because_of.name}."
            for refusal in match.refused
        ]
        if len(asleep) > 0:
            notes = "; ".join(f"{self._sentence(item.key, item.value)} ({item.because})" for item in asleep)
            lines.append(f"Chosen but without effect as long as the rest stays as it is: {notes}.")
        if configuration != read.configuration and not read.has_block:
            lines.append("The program was written anew, because the parent did not say how it is configured.")
        if read.ignored:
            lines.append("Some lines of the parent's configuration are unknown to the catalogue and were dropped.")
        return lines

    def _progress(self, mechanism: Mechanism, configuration: dict[str, str], changed: set[str]) -> str:
        """What the program does now, or which step towards it has been made."""
        if self.catalogue.step(mechanism, configuration) == configuration:
            return f"now {mechanism.effect}"
        keys = [key for key in [*mechanism.needs, *mechanism.sets] if key in changed]
        steps = [self._sentence(key, configuration[key]) for key in keys]
        return f"goes a step towards {mechanism.name} ({', '.join(steps)})"

    def _sentence(self, key: str, value: str) -> str:
        sentence = self.catalogue.settings[key].values[value].rstrip(".")
        return sentence[0].lower() + sentence[1:]
