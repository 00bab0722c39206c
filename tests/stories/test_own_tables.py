"""Stories of tables as people have them: semicolons, renamed columns, new nodes, texts and empty cells."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.stories.running import Outcome, run_block

FIELDS = {"law": ("Graz", "Wien"), "math": ("Linz", "Bern")}


def run(command: str, folder: Path) -> Outcome:
    """What a shell does with a command in the folder of a checkout."""
    return run_block(Block(folder, 0, "sh", command, "", ""), folder)


def write(
    folder: Path, columns: str, ends: str = "source;target;Weight", nodes: int = 120, separator: str = ";",
    seed: int = 0,
) -> None:  # fmt: skip
    """Writes tables whose nodes have some of the columns below, by their names or by NAME=OTHER."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    fields = [draw.choice(list(FIELDS)) for _ in range(nodes)]
    cells = {
        "paper": [f"n{node}" for node in range(nodes)],
        "size": [f"{draw.gauss(1 if field == 'law' else -1, 1):.3f}" for field in fields],
        "city": [draw.choice(FIELDS[field]) if draw.random() < 0.9 else "" for field in fields],
        "pages": [str(draw.randint(2, 900)) if draw.random() < 0.9 else "" for _ in fields],
        "more": ["1"] * nodes,
        "field": fields,
    }
    chosen = [(name.partition("=")[0], name.partition("=")[2] or name) for name in columns.split()]
    rows = [[other for _, other in chosen], *zip(*(cells[name] for name, _ in chosen), strict=True)]
    edges = [ends.split(";")]
    for source in range(nodes):
        for target in draw.sample(range(nodes), 5):
            if fields[source] == fields[target] or draw.random() < 0.2:
                edges.append([f"n{source}", f"n{target}", f"{draw.random():.2f}"])
    for name, lines in (("nodes", rows), ("edges", edges)):
        text = "".join(separator.join(line) + "\n" for line in lines)
        text = text.replace(".", ",") if separator == ";" else text
        (folder / f"{name}.csv").write_bytes(text.encode())


TRAIN = "python train.py dataset=custom dataset.path=papers model=gcn model.hidden_channels=16 device=cpu"
SHORT = "trainer.max_epochs=30 optimizer.lr=0.05 trainer.plots=false trainer.progress=false hydra.run.dir=run"


@pytest.mark.slow
def test_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    write(tmp_path / "papers", "paper=ID size pages=Seiten field=Label", "Source;Target;WEIGHT")
    done = run(f"{TRAIN} dataset.standardize=true trainer.class_weights=balanced {SHORT}", tmp_path)
    assert done.status == 0, done.errors
    assert "edges.csv: Source, Target = ends; WEIGHT = weights" in done.output
    assert "nodes.csv: ID = ids; size, Seiten (" in done.output
    assert done.result()["metrics"]["test"]["accuracy"] > 0.75
    done = run("gnnsparse predict run --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    rows = done.rows("found.csv")
    assert (len(rows), {row["class_name"] for row in rows}) == (120, {"law", "math"})


@pytest.mark.slow
def test_renamed_columns_texts_and_empty_cells_and_then_new_nodes_without_labels(tmp_path: Path) -> None:
    write(tmp_path / "papers", "paper size city pages field", "von;nach;Weight", separator=",")
    named = "dataset.id=paper dataset.label=field dataset.source=von dataset.target=nach"
    done = run(f"{TRAIN} {named} dataset.standardize=true {SHORT}", tmp_path)
    assert done.status == 0, done.errors
    assert "paper = ids; size, city (4 texts, " in done.output
    assert done.result()["metrics"]["test"]["accuracy"] > 0.75

    write(tmp_path / "new", "city pages more paper=name size", "a;b;w", nodes=50, separator="|", seed=1)
    options = "dataset.id=name dataset.label=null dataset.source=a dataset.target=b"
    done = run(f"gnnsparse predict run --data new --out found.csv {options}", tmp_path)
    assert done.status == 0, done.errors
    assert "warning: feature_columns: nodes.csv: columns that the model does not take are not used: more" in (
        done.errors
    )
    assert "nodes.csv: name = ids; size, city (4 texts, " in done.output
    rows = done.rows("found.csv")
    assert [row["ids"] for row in rows] == [f"n{node}" for node in range(50)]
    draw = random.Random(1)
    fields = [draw.choice(list(FIELDS)) for _ in range(50)]
    right = sum(row["class_name"] == field for row, field in zip(rows, fields, strict=True))
    assert right > 0.75 * 50

    by_train = f"python train.py mode=predict checkpoint=run dataset=custom dataset.path=new {options}"
    done = run(f"{by_train} device=cpu hydra.run.dir=predicted", tmp_path)
    assert done.status == 0, done.errors
    found = done.arrays("predicted/predictions.npz")
    assert found["class_names"][found["classes"]].tolist() == [row["class_name"] for row in rows]

    write(tmp_path / "less", "city paper=name", "a;b;w", nodes=50, separator="\t", seed=1)
    done = run(f"gnnsparse predict run --data less --out found.csv {options}", tmp_path)
    assert done.status == 2
    assert "error: dataset.feature_columns: there is no column 'size', 'pages'; nodes.csv has city, name" in (
        done.errors
    )
