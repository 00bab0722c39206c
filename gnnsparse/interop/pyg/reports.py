"""Which layer of a model runs on what, and why not."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Report", "Row"]


@dataclass(frozen=True)
class Row:
    """A layer of a model.

    Attributes:
        name: its name in the model; "" for the model itself.
        kind: its class.
        runs_on: "spmm" or "graph_attention" if it is accelerated, else "PyG", also where all calls so far
            were left to PyG, unless it did not pay yet to convert a graph.
        why: why it is left to PyG, of several reasons the most frequent one; "" if it is accelerated.
        calls: what its calls so far ran on, and how often.
        left: why calls so far were left to PyG though the layer is accelerated, and how often.
    """

    name: str
    kind: str
    runs_on: str
    why: str
    calls: dict[str, int]
    left: dict[str, int]

    def lines(self) -> list[str]:
        """Returns the row as text: the layer, and a line for each thing that its calls have shown."""
        found = [
            f"{self.name or '(model)'}  {self.kind}  {self.runs_on}" + (f": {self.why}" if self.why else "")
        ]
        found += [f"    {count} on {what}" for what, count in self.calls.items()]
        found += [f"    {count} on PyG: {why}" for why, count in self.left.items()]
        return found


@dataclass(frozen=True)
class Report:
    """The layers of a model that pass messages. `print(report)` shows a line for each.

    Attributes:
        rows: the layers, in the order of the model.
    """

    rows: tuple[Row, ...]

    @property
    def accelerated(self) -> tuple[Row, ...]:
        """The layers that run on sparse products or fused attention."""
        return tuple(row for row in self.rows if row.runs_on != "PyG")

    def __str__(self) -> str:
        if not self.rows:
            return "no layers that pass messages"
        head = f"{len(self.accelerated)} of {len(self.rows)} layers accelerated"
        return "\n".join([head, *(line for row in self.rows for line in row.lines())])
