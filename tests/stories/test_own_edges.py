"""Stories of labels that edges have: payments of people, by one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.stories.running import Outcome, run_block

#: Payments of people of two kinds; what a payment is depends on both ends, and its fee on them and on itself.
WRITE = """
import random
from pathlib import Path

random.seed(0)
kind = {f"p{number}": number % 2 for number in range(60)}

def write(folder, columns, count):
    Path(folder).mkdir()
    with open(f"{folder}/nodes.csv", "w") as file:
        print("id,size,age", file=file)
        for name, of in kind.items():
            print(name, round(of + random.gauss(0, 0.1), 3), random.randint(20, 60), sep=",", file=file)
    with open(f"{folder}/edges.csv", "w") as file:
        print(*columns, sep=",", file=file)
        for _ in range(count):
            source, target = random.sample(list(kind), 2)
            label = ["same", "buys", "sells"][kind[source] - kind[target]]
            by = random.choice(["card", "cash", ""])
            row = {"source": source, "target": target, "by": by, "amount": random.randint(1, 9),
                   "label": "" if random.random() < 0.05 else label,
                   "fee": kind[source] + (by == "card") + 0.25}
            print(*[row[name] for name in columns], sep=",", file=file)

write("payments", ["source", "target", "by", "amount", "label"], 500)
write("fees", ["source", "target", "by", "fee"], 500)
write("new", ["amount", "target", "by", "source"], 20)
"""
TRAIN = "python train.py dataset=custom model=graphsage model.hidden_channels=16 model.dropout=0 device=cpu"
SHORT = "optimizer.lr=0.02 trainer.max_epochs=60 trainer.plots=false trainer.progress=false hydra.run.dir=run"


def run(text: str, folder: Path, language: str = "sh") -> Outcome:
    return run_block(Block(folder, 0, language, text, "", ""), folder)


@pytest.mark.slow
def test_labels_of_edges_by_one_command(tmp_path: Path) -> None:
    assert run(WRITE, tmp_path, "python").status == 0
    done = run(f"{TRAIN} dataset.path=payments dataset.standardize=true {SHORT}", tmp_path)
    assert done.status == 0, done.errors
    assert "label = labels; by (2 texts, " in done.output
    assert "amount = features of edges" in done.output
    assert "task = edge, classes of edges (3): edges.csv has a column 'label'" in done.output
    assert done.result()["metrics"]["test"]["accuracy"] >= 0.9
    assert [row["class"] for row in done.rows("run/classes.csv")] == ["buys", "same", "sells"]
    done = run("gnnsparse predict run --data new --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    found, given = done.rows("found.csv"), done.rows("new/edges.csv")
    ends = [[(row["source"], row["target"]) for row in rows] for rows in (found, given)]
    assert ends[0] == ends[1]
    kinds = [[int(name[1:]) % 2 for name in pair] for pair in ends[0]]
    right = [["same", "buys", "sells"][a - b] == row["class_name"]
             for (a, b), row in zip(kinds, found, strict=True)]  # fmt: skip
    assert sum(right) >= 18
    assert "probabilities_buys" in found[0]
    again = "mode=predict checkpoint=run dataset=custom dataset.path=new hydra.run.dir=again"
    done = run(f"python train.py {again}", tmp_path)
    assert done.status == 0, done.errors
    assert done.arrays("again/predictions.npz")["source"].tolist() == [row["source"] for row in given]


@pytest.mark.slow
def test_numbers_of_edges_and_what_is_refused(tmp_path: Path) -> None:
    assert run(WRITE, tmp_path, "python").status == 0
    fee = "dataset.path=fees dataset.edge_label=fee dataset.standardize=true"
    done = run(f"{TRAIN} {fee} dataset.metric=r2 {SHORT}", tmp_path)
    assert done.status == 0, done.errors
    assert "task = edge, numbers of edges (1): edges.csv has a column 'fee'" in done.output
    assert done.result()["metrics"]["test"]["r2"] >= 0.8  # half of it is known by the features of edges alone
    done = run("gnnsparse predict run --data payments --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    assert "edges.csv: columns that are not used: amount, label" in done.errors
    assert len(done.rows("found.csv")) == 500
    done = run(f"{TRAIN} dataset.path=fees dataset.task=edge", tmp_path)
    said = (
        "edge_label: no column has the labels of the edges; edges.csv has source, target, by, fee; accepted: "
    )
    assert (done.status, said in done.errors) == (2, True), done.errors
