"""Graphs like molecules, with kinds of atoms and of bonds, and numbers to predict that need long paths."""

from __future__ import annotations

import math
import random

import torch

from gnnsparse.data.catalog import register_dataset
from gnnsparse.data.datasets import EdgeFeatures, GraphDataset, check_seed, check_split
from gnnsparse.data.splits import random_split, split_generator
from gnnsparse.errors import check_integer
from gnnsparse.sparse.graph import SparseGraph

#: The kinds of atoms, and of each how often it stands in a molecule.
_ATOMS = {"C": 0.7, "N": 0.12, "O": 0.12, "S": 0.06}
#: The kinds of bonds, and the length of each in a path.
_BONDS = {"single": 1.0, "double": 2.0, "triple": 3.0, "aromatic": 1.5}
_RING_SIZES, _LONGEST_CHAIN, _MOST_FRAGMENTS = (5, 6), 6, 5
#: Graphs whose distances are computed together.
_CHUNK = 256


@register_dataset("generated_molecules", task="graph")
def load_molecules(graphs: int = 2000, seed: int = 0, split: int = 0) -> GraphDataset:
    """Generate graphs like molecules, which are rings and chains of atoms, with two numbers to predict.

    They are the mean eccentricity of the atoms (how many bonds away the farthest atom is), and the longest of
    all shortest paths in which a single bond counts 1, an aromatic one 1.5, a double one 2 and a triple one
    3. Features of nodes and of edges are the kinds of atoms and of bonds, one-hot.

    Args:
        graphs: the number of graphs, at least 10.
        seed: of the graphs; equal seeds make equal graphs, whatever the number of them is.
        split: number of a random split: 80 percent of the graphs for training, 10 for validation.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """
    check_integer("graphs", graphs, 10, "an integer, at least 10")
    check_split(split, None)
    source = random.Random(check_seed(seed))
    made = [_molecule(source) for _ in range(graphs)]
    sizes = [len(atoms) for atoms, _ in made]
    first = torch.tensor([0, *sizes], dtype=torch.int64, device="cpu").cumsum(0)
    atoms = torch.tensor([atom for of, _ in made for atom in of], dtype=torch.int64, device="cpu")
    bonds = torch.tensor([bond for _, of in made for bond in of], dtype=torch.int64, device="cpu")
    number = torch.arange(graphs, device="cpu").repeat_interleave(
        torch.tensor([len(of) for _, of in made], device="cpu")
    )
    ends, kinds = bonds[:, :2], bonds[:, 2]
    y = torch.cat([_targets(*part) for part in _chunks(number, ends, kinds, first)])
    edges = (ends + first[number][:, None]).T
    edges, kinds = torch.cat([edges, edges.flip(0)], dim=1), kinds.repeat(2)
    x, attr = (
        torch.nn.functional.one_hot(of, len(names)).float()
        for of, names in ((atoms, _ATOMS), (kinds, _BONDS))
    )
    graph = SparseGraph(SparseGraph.from_edge_index(edges, int(first[-1])).csr)
    transform = {"columns": ["bond"], "categories": {"bond": list(_BONDS)}}
    masks = random_split(graphs, split_generator(split, seed), 0.8, 0.1)
    return GraphDataset(
        "generated_molecules", graph, first, x, y, *masks, 2, "mae",
        class_names=("eccentricity", "path"), edge_features=EdgeFeatures(edges, attr, None, transform),
    )  # fmt: skip


def _molecule(source: random.Random) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Draw a molecule: the kinds of its atoms, and its bonds, each two atoms and a kind."""
    kinds, shares = range(len(_ATOMS)), list(_ATOMS.values())
    bond = {name: at for at, name in enumerate(_BONDS)}
    atoms: list[int] = []
    bonds: list[tuple[int, int, int]] = []
    for _ in range(source.randint(2, _MOST_FRAGMENTS)):
        is_ring, begin = source.random() < 0.5, len(atoms)
        size = source.choice(_RING_SIZES) if is_ring else source.randint(1, _LONGEST_CHAIN)
        if begin:
            bonds.append((source.randrange(begin), begin, bond["single"]))
        atoms += source.choices(kinds, shares, k=size)
        ring = bond["aromatic" if source.random() < 0.6 else "single"]
        for at in range(begin, begin + size - 1):
            kind = ring if is_ring else source.choices(range(3), (0.6, 0.25, 0.15))[0]
            bonds.append((at, at + 1, kind))
        if is_ring:
            bonds.append((begin + size - 1, begin, ring))
    return atoms, bonds


def _chunks(number: torch.Tensor, ends: torch.Tensor, kinds: torch.Tensor, first: torch.Tensor) -> list:
    """Divide the graphs: for each part sizes, graphs of the bonds, their ends and kinds."""
    found = []
    for sizes, begin in zip(first.diff().split(_CHUNK), range(0, len(first), _CHUNK), strict=False):
        own = (number >= begin) & (number < begin + _CHUNK)
        found.append((sizes, number[own] - begin, ends[own], kinds[own]))
    return found


def _targets(
    sizes: torch.Tensor, number: torch.Tensor, ends: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Return the numbers of connected graphs, float32 [graphs, 2], by the method of Floyd and Warshall."""
    graphs, nodes = len(sizes), int(sizes.max())
    is_atom = torch.arange(nodes, device="cpu") < sizes[:, None]
    pairs = is_atom[:, :, None] & is_atom[:, None, :]
    found = []
    for lengths in (torch.ones(len(_BONDS), device="cpu"), torch.tensor(list(_BONDS.values()), device="cpu")):
        far = torch.full((graphs, nodes, nodes), math.inf, dtype=torch.float32, device="cpu")
        far.diagonal(dim1=1, dim2=2).zero_()
        for one, other in (ends.T, ends.T.flip(0)):
            far[number, one, other] = lengths[kinds].float()
        for via in range(nodes):
            far = torch.minimum(far, far[:, :, via, None] + far[:, None, via])
        found.append(torch.where(pairs, far, 0.0).amax(dim=2))
    return torch.stack([found[0].sum(dim=1) / sizes, found[1].amax(dim=1)], dim=1)
