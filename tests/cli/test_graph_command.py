"""`gnnsparse graph`: building, generating and describing graphs on the command line."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gnnsparse.cli.main import main
from gnnsparse.data import graph_info, open_graph
from gnnsparse.errors import MemoryLimit
from tests.large import assert_same, expected, random_edges

Refused = Callable[..., str]
EDGES = random_edges(300, 4000)


@pytest.fixture
def edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    np.save("edges.npy", EDGES)
    Path("ends.txt").write_text("a b\nx y\n")
    return tmp_path / "edges.npy"


def rows_of(printed: str) -> dict[str, str]:
    """The table: the second column by the first."""
    lines = [line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in lines}


def test_a_graph_is_built_and_described(edges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["graph", "build", "edges.npy", "g", "--nodes", "300", "--symmetric", "--memory", "0.001"]
    assert main([*words, "--about", "[bold]mine[/bold]"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "", "no bar where it is no terminal"
    wanted = expected(EDGES, 300, symmetric=True)
    assert_same(open_graph("g"), wanted)
    table = rows_of(printed.out)
    assert table["about"] == "[bold]mine[/bold]"
    assert (table["nodes"], table["nonzeros"], table["edges read"]) == ("300", str(wanted.nnz), "4000")
    assert table["symmetric"] == "yes"
    assert main(["graph", "info", "g", "--verify"]) == 0
    told = capsys.readouterr().out
    assert rows_of(told).items() > table.items()
    assert rows_of(told)["largest degree"] == str(int(wanted.csr.degrees.max()))
    assert rows_of(told)["rows without nonzeros"] == str(int((wanted.csr.degrees == 0).sum()))
    assert "all files are as they were written" in told


def test_a_graph_is_built_of_tables(edges: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("Von;nach;Gewicht\nx;y;1,5\n")
    Path("b.csv").write_text("Von;nach;Gewicht\ny;z;2\n")
    words = ["--symmetric", "--source", "von", "--target", "nach", "--weight", "gewicht"]
    assert main(["graph", "build", "a.csv", "b.csv", "g", *words]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[:3] == [
        "a.csv: Von, nach = ends; Gewicht = weights",
        "b.csv: Von, nach = ends; Gewicht = weights",
        "nodes: 3 ids, from 'x' to 'z', are numbered in this order (ids.txt)",
    ]
    table = rows_of(printed.out)
    assert (table["weights"], table["names of nodes"]) == ("yes", "in ids.txt")
    assert open_graph("g").to_dense().tolist() == [[0, 1.5, 0], [1.5, 0, 2], [0, 2, 0]]
    assert main(["graph", "build", "ends.txt", "one", "--source", "a", "--target", "b"]) == 0
    assert "edges lead from their source to their target alone; --symmetric adds" in capsys.readouterr().out
    Path("g/ids.txt").write_text("x\ny\nw\n")
    assert main(["graph", "info", "g", "--verify"]) == 1
    assert "g/ids.txt: is damaged (it does not match its checksum)" in capsys.readouterr().out


def test_degrees_are_counted_over_parts(
    edges: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["graph", "build", "edges.npy", "g", "--nodes", "900"])
    tables = []
    for part in (1, 7, 299, 1 << 22):
        monkeypatch.setattr("gnnsparse.cli.graph._OFFSETS", part)
        capsys.readouterr()
        main(["graph", "info", "g"])
        tables.append(rows_of(capsys.readouterr().out))
    assert tables[0] == tables[1] == tables[2] == tables[3]
    assert int(tables[0]["rows without nonzeros"]) >= 600
    assert tables[0]["symmetric"] == "not known"


def test_a_graph_is_generated(edges: Path, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["graph", "generate", "papers100m_like", "g", "--scale", "0.0002", "--seed", "4"]
    assert main(words) == 0
    assert rows_of(capsys.readouterr().out)["about"] == "papers100m_like, scale 0.0002, seed 4"
    assert graph_info("g").num_nodes == 22_212
    assert refused(" ".join(words)) == (
        "gnnsparse graph generate: error: folder: g has a graph; accepted: a new folder, or to replace it "
        "(overwrite=True, on the command line --overwrite)\n"
    )
    assert main([*words, "--overwrite", "--seed", "5"]) == 0
    assert graph_info("g").about.endswith("seed 5")


def test_damage_has_an_exit_status(edges: Path, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    main(["graph", "build", "edges.npy", "g", "--nodes", "300"])
    content = bytearray(Path("g/indices.npy").read_bytes())
    content[-1] ^= 64
    Path("g/indices.npy").write_bytes(content)
    assert main(["graph", "info", "g"]) == 0, "sizes are right"
    capsys.readouterr()
    assert main(["graph", "info", "g", "--verify"]) == 1
    assert "g/indices.npy: is damaged" in capsys.readouterr().out
    Path("g/indices.npy").write_bytes(content[:-1])
    assert main(["graph", "info", "g", "--verify"]) == 1
    assert "g/indices.npy: is damaged (it has" in refused("graph info g")


#: Words of the command, and what the line says of them.
REFUSED = [
    ("build edges.npy g", "--nodes: is missing; accepted: the number of nodes, beside edges in a .npy"),
    ("build edges.npy more.npy g --nodes 3", "edges: got 2 files; accepted: one .npy file, or tables"),
    ("build ends.txt g", "accepted: --source a --target b if it is names"),
    ("build edges.dat g", "edges: got 'edges.dat'; accepted: a file .csv, .csv.gz"),
    ("build edges.npy g --nodes -1", "got '-1'; accepted: an integer from 0 to 2^31 - 1"),
    ("build edges.npy g --nodes 2147483648", "accepted: an integer from 0 to 2^31 - 1"),
    ("build edges.npy g --nodes 10", "edges: element [0, "),
    ("build no.npy g --nodes 10", "No such file or directory: 'no.npy'"),
    ("build edges.npy g --nodes 3 --memory 0", "got '0'; accepted: GB, a number"),
    ("build edges.npy g --nodes 3 --memory nan", "got 'nan'; accepted: GB"),
    ("generate papers g", "argument NAME: invalid choice: 'papers'"),
    ("generate papers100m_like g --scale 2", "got '2'; accepted: a number above 0 and at"),
    ("generate papers100m_like g --scale x", "got 'x'; accepted: a number above 0"),
    ("generate papers100m_like g --seed -1", "got '-1'; accepted: an integer from 0 to 2^63"),
    ("info nothing", "folder: nothing is no folder of a graph; accepted: one that"),
    ("remove g", "argument subject: invalid choice: 'remove'"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_wrong_options_are_refused(words: str, message: str, edges: Path, refused: Refused) -> None:
    printed = refused(f"graph {words}")
    assert printed.startswith("gnnsparse graph")
    assert message in printed
    assert [path.name for path in edges.parent.iterdir() if path.suffix not in (".npy", ".txt")] in (
        [],
        ["cache"],
    )


def test_a_full_disk_and_too_little_memory_are_one_line(
    edges: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = "gnnsparse.data.large.folder.shutil.disk_usage"
    monkeypatch.setattr(folder, lambda _: types.SimpleNamespace(free=1))
    # A graph of some GB on a disk without room for it.
    error = "folder: g.part has 0.0 MB free, and building a graph of 111059956 nodes takes 26.7 GB; accepted"
    assert error in refused("graph generate papers100m_like g")
    monkeypatch.setattr("gnnsparse.errors.available_memory", lambda: MemoryLimit(10**9, "this machine"))
    monkeypatch.setattr("gnnsparse.data.large.build.check_space", lambda *_: None)
    error = "scale: generating edges of 111059956 nodes needs 2.7 GB, and this machine leaves 1.0 GB\n"
    assert refused("graph generate papers100m_like g").endswith(error)
