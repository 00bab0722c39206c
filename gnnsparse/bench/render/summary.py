"""What both forms of a report say in the same words: where others are faster, and where results come from."""

from __future__ import annotations

from typing import Any

from gnnsparse.bench.render.model import Comparison, Problem, Report, ResultFile, Table

__all__ = ["LOSSES", "files_table", "losses_table", "losses_text", "problem_text"]

#: Word for links, and heading, of the section on cases in which others are faster.
LOSSES = ("losses", "Where we lose")


def losses_table(comparisons: list[Comparison]) -> Table | None:
    """Returns the cases in which the best of the others is faster than ours, worst first; None: none."""
    lost = sorted((found for found in comparisons if found.speed < 1), key=lambda found: found.speed)
    if not lost:
        return None
    rows = tuple(
        (c.section, c.case, c.ours, c.ours_ms, c.best, c.best_ms, c.speed, c.fastest_ms, c.file) for c in lost
    )
    header = (
        "section", "case", "ours", "ours_ms", "best other", "other_ms", "speed", "fastest of ours_ms", "file",
    )  # fmt: skip
    return Table("Cases in which another is faster", header, rows)


def losses_text(comparisons: list[Comparison]) -> str:
    """Returns how many cases were compared, and in how many of them another is faster."""
    lost = sum(found.speed < 1 for found in comparisons)
    slower = (
        "none of them is slower" if lost == 0 else f"{lost} of them {'is' if lost == 1 else 'are'} slower"
    )
    if not comparisons:
        return "No result was compared with another library."
    return (
        f"{len(comparisons)} times of ours were compared with the fastest other result of the same case; "
        f"{slower}. A speed is the other's time divided by ours."
    )


def files_table(report: Report) -> Table:
    """Returns where, by which versions and from which commit the results of each file come."""
    rows = [_origin(file, found) for file in report.files for found in _different(file)]
    header = ("file", "device", "torch", "CUDA", "Python", "threads", "commit", "date")
    return Table("Files", header, tuple(rows))


def _different(file: ResultFile) -> list[dict[str, Any]]:
    """Returns the environments of a file that differ in more than the time of day."""
    found: dict[str, dict[str, Any]] = {}
    for environment in file.environments:
        found.setdefault(repr(_origin(file, environment)), environment)
    return list(found.values())


def _origin(file: ResultFile, environment: dict[str, Any]) -> tuple[Any, ...]:
    versions = environment["versions"]
    commit = environment.get("commit")
    short = None
    if isinstance(commit, str):
        short = commit[:7] + ("-dirty" if commit.endswith("-dirty") else "")
    return (
        file.name, environment["device_name"], versions.get("torch"), versions.get("cuda"),
        versions.get("python"), environment.get("threads"), short, environment["date"][:10],
    )  # fmt: skip


def problem_text(problem: Problem) -> str:
    """Returns a problem in one line."""
    return f"{problem.file}: {' '.join(problem.reason.split())}"
