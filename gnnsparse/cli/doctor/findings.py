"""What the doctor finds: a list of statements, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["BROKEN", "LEVELS", "NOTE", "OK", "Finding", "Section"]

#: Levels of a finding: all is well; something could be better; results or runs fail.
OK, NOTE, BROKEN = "ok", "note", "broken"
LEVELS = (OK, NOTE, BROKEN)


@dataclass(frozen=True)
class Finding:
    """A statement about the installation.

    Attributes:
        level: one of LEVELS.
        text: what is so.
        advice: what to do about it; "" if nothing is.
    """

    level: str
    text: str
    advice: str = ""


@dataclass
class Section:
    """The findings about one subject, with the facts that they were made from.

    Attributes:
        name: the subject.
        facts: plain values by name, for `--json`.
        findings: the statements.
    """

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def ok(self, text: str) -> None:
        """Adds the statement that something is well."""
        self.findings.append(Finding(OK, text))

    def note(self, text: str, advice: str = "") -> None:
        """Adds a statement about something that could be better, and how."""
        self.findings.append(Finding(NOTE, text, advice))

    def broken(self, text: str, advice: str = "") -> None:
        """Adds a statement about something that makes results wrong or runs fail, and what to do."""
        self.findings.append(Finding(BROKEN, text, advice))
