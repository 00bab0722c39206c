"""Stories of links: friends in a table of edges alone, users and items, and papers that cite older ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.stories.running import Outcome, run_block

#: Friends of four circles, users who buy items of three kinds, and papers that cite older ones of a field.
WRITE = """
import random
from pathlib import Path

random.seed(0)

def write(folder, names, first, second, count, joined):
    rows = set()
    while len(rows) < count:
        pair = random.randrange(first), random.randrange(second)
        if joined(*pair):
            rows.add(pair)
    Path(folder).mkdir()
    text = "".join(f"{a},{b}\\n" for a, b in sorted(rows))
    Path(folder, "edges.csv").write_text(f"{names}\\n{text}")

write("friends", "source,target", 80, 80, 700, lambda a, b: a != b and a % 4 == b % 4)
write("shop", "user,item", 60, 40, 500, lambda user, item: user % 3 == item % 3)
write("papers", "source,target", 60, 60, 500, lambda a, b: a > b and a % 3 == b % 3)
kinds = [",".join(str(int(paper % 3 == field)) for field in range(3)) for paper in range(60)]
text = "".join(f"{paper},{of},{paper / 60}\\n" for paper, of in enumerate(kinds))
Path("papers/nodes.csv").write_text("id,a,b,c,year\\n" + text)
pairs = "".join(f"0,{item}\\n" for item in range(40))
given = {"pair": "user,item\\n" + pairs, "cites": "source,target\\n57,3\\n3,57\\n57,4\\n"}
for folder, row in given.items():
    Path(folder).mkdir()
    Path(folder, "edges.csv").write_text(row)
"""
TRAIN = "python train.py dataset=custom device=cpu trainer.plots=false trainer.progress=false"
SHORT = "model.dropout=0 optimizer.lr=0.01 trainer.max_epochs=60 hydra.run.dir=run"


def run(text: str, folder: Path, language: str = "sh") -> Outcome:
    return run_block(Block(folder, 0, language, text, "", ""), folder)


def train(options: str, folder: Path, least: float) -> Outcome:
    assert run(WRITE, folder, "python").status == 0
    done = run(f"{TRAIN} {options} {SHORT}", folder)
    assert done.status == 0, done.errors
    scores = done.result()["metrics"]["test"]
    assert scores["auc"] >= least
    assert {"mrr", "auc"} < set(scores)
    return done


@pytest.mark.slow
def test_links_of_a_table_of_edges_alone(tmp_path: Path) -> None:
    done = train("model=gcn dataset.path=friends dataset.task=link", tmp_path, 0.8)
    assert "task = link, undirected (" in done.output
    done = run("gnnsparse predict run --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    rows = done.rows("found.csv")
    assert {len([row for row in rows if row["is_edge"] == of]) for of in "01"} == {len(rows) // 2}
    again = "mode=predict checkpoint=run dataset=custom dataset.path=friends hydra.run.dir=again"
    done = run(f"python train.py {again}", tmp_path)
    assert done.status == 0, done.errors
    assert done.arrays("again/predictions.npz")["source"].tolist() == [row["source"] for row in rows]


@pytest.mark.slow
def test_users_and_items(tmp_path: Path) -> None:
    done = train("model=graphsage dataset.path=shop", tmp_path, 0.85)
    assert "task = link, bipartite, undirected (" in done.output
    done = run("gnnsparse predict run --data pair --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    rows = done.rows("found.csv")
    assert [(row["source"], row["target"]) for row in rows] == [("0", str(item)) for item in range(40)]
    likely = [float(row["probability"]) for row in rows]
    assert sum(likely[::3]) / 14 > 0.5 > sum(likely[1::3]) / 13  # items of the user's kind, and of another


@pytest.mark.slow
def test_directed_links_of_nodes_with_features(tmp_path: Path) -> None:
    done = train("model=graphsage dataset.path=papers dataset.directed=true", tmp_path, 0.9)
    assert "task = link, directed (" in done.output
    done = run("gnnsparse predict run --data cites --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    cited, back, other = (float(row["probability"]) for row in done.rows("found.csv"))
    assert cited > 0.5 > max(back, other)
