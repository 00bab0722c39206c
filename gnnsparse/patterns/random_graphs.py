"""Random columns of the rows of a matrix, and random regular graphs as unions of Hamiltonian cycles."""

from __future__ import annotations

import torch

__all__ = ["other_columns", "random_columns", "regular_graph"]


def random_columns(rows: int, cols: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws `count` different columns for each row, every set of them with equal probability.

    Args:
        rows: number of rows.
        cols: number of columns, `count` or more.
        count: columns of each row.
        generator: random numbers, on the CPU.

    Returns:
        int64 [rows, count], ascending in each row.
    """
    if 2 * count > cols:  # fewer columns are left out than kept, so drawing those takes fewer rounds
        return other_columns(_draw_few(rows, cols, cols - count, generator), cols)
    return _draw_few(rows, cols, count, generator)


def _draw_few(rows: int, cols: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws `count` different columns for each row, in rounds: each row draws as many columns as it lacks.

    No round can draw too many, so the distribution is that of drawing one column at a time.
    """
    keys = torch.empty(0, dtype=torch.int64, device="cpu")  # row x cols + column: below 2^62
    lacking = torch.full((rows,), count, device="cpu")
    while (total := int(lacking.sum())) > 0:
        row = torch.repeat_interleave(torch.arange(rows, device="cpu"), lacking)
        drawn = torch.randint(cols, (total,), generator=generator, device="cpu")
        keys = torch.cat([keys, row * cols + drawn]).unique()
        lacking = count - torch.bincount(keys.div(max(cols, 1), rounding_mode="floor"), minlength=rows)
    return (keys % max(cols, 1)).reshape(rows, count)


def other_columns(columns: torch.Tensor, cols: int) -> torch.Tensor:
    """Returns for each row the columns that it does not hold.

    Args:
        columns: int64 [rows, count] on the CPU, the columns that it holds, ascending in each row.
        cols: number of columns.

    Returns:
        int64 [rows, cols - count], ascending in each row.
    """
    rows, count = columns.shape
    # The k-th column that a row does not hold is k plus the number of columns that it holds before that one.
    shifted = columns - torch.arange(count, device="cpu")
    kept = torch.arange(cols - count, device="cpu").repeat(rows, 1)
    return kept + torch.searchsorted(shifted, kept, right=True)


def regular_graph(nodes: int, degree: int, generator: torch.Generator) -> torch.Tensor:
    """Draws a graph in which every node has `degree` neighbours, without self-loops and repeated edges.

    It is the union of degree / 2 random Hamiltonian cycles, and for an odd degree of a perfect matching,
    every other edge of one more cycle. For unions of random cycles Friedman ("A proof of Alon's second
    eigenvalue conjecture", 2003) proves that all eigenvalues but the first are at most 2 sqrt(degree - 1) +
    epsilon with a probability that tends to 1 as the number of nodes grows. His cycles may share edges; here
    the few edges that a cycle shares with earlier ones are exchanged.

    Args:
        nodes: number of nodes.
        degree: neighbours of a node, at most nodes / 2; an even number if `nodes` is odd.
        generator: random numbers, on the CPU.

    Returns:
        int64 [nodes * degree / 2, 2], the edges; each is there once, the smaller node first.
    """
    taken = torch.empty(0, dtype=torch.int64, device="cpu")  # numbers of edges, ascending
    for count in range(0, degree, 2):
        cycle = _without(taken, torch.randperm(nodes, generator=generator, device="cpu"), generator)
        edges = _numbers(cycle, cycle.roll(-1), nodes)
        if degree - count == 1:
            edges = edges[::2]
        taken = torch.cat([taken, edges]).sort().values
    return torch.stack([taken // max(nodes, 1), taken % max(nodes, 1)], dim=1)


def _numbers(a: torch.Tensor, b: torch.Tensor, nodes: int) -> torch.Tensor:
    """Returns the numbers of the edges between nodes, the same in both directions: below 2^62."""
    return torch.minimum(a, b) * nodes + torch.maximum(a, b)


def _are_in(ascending: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Returns for each number whether it is among the ascending ones, bool."""
    if ascending.numel() == 0:
        return torch.zeros_like(numbers, dtype=torch.bool)
    at = torch.searchsorted(ascending, numbers).clamp_(max=ascending.numel() - 1)
    return ascending[at] == numbers


def _without(taken: torch.Tensor, cycle: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Changes a Hamiltonian cycle until it has none of the edges in `taken`.

    It is the algorithm of Palmer ("The hamiltonicity of simple graphs with large degree", 1997). Where the
    cycle has a forbidden edge, a part that begins behind it is turned around, such that both edges that this
    makes are allowed, so that every turn leaves fewer forbidden edges. By Ore's theorem there is such a part
    if each node may be joined to at least half of the nodes, as it is for degrees up to nodes / 2.

    Args:
        taken: numbers of the forbidden edges, ascending.
        cycle: int64 [nodes], the nodes in the order of the cycle.
        generator: random numbers, which choose the part.
    """
    nodes = cycle.numel()
    while (shared := _are_in(taken, _numbers(cycle, cycle.roll(-1), nodes)).nonzero()).numel():
        cycle = cycle.roll(-1 - int(shared[0]))  # the forbidden edge joins the last node and the first
        ends, next_ones = cycle[:-1], cycle[1:]  # of a part that begins with the first node
        forbidden = _are_in(taken, _numbers(cycle[-1], ends, nodes))
        forbidden |= _are_in(taken, _numbers(cycle[0], next_ones, nodes))
        allowed = (~forbidden).nonzero().flatten()
        drawn = torch.randint(allowed.numel(), (), generator=generator, device="cpu")
        length = int(allowed[drawn]) + 1
        cycle = torch.cat([cycle[:length].flip(0), cycle[length:]])
    return cycle
