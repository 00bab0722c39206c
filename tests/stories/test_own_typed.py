"""Stories of graphs with types: own tables of three types, and recommendations with a split by time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.test_own_links import run

#: Papers of three fields with authors and venues, and purchases of users who each like one shelf of six.
WRITE = """
import random
from pathlib import Path

random.seed(0)

def write(path, names, rows):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(",".join(map(str, row)) + "\\n" for row in [names, *rows]))

fields = ["biology", "law", "physics"]
papers = {f"p{n}": random.choice(fields) for n in range(240)}
authors = {f"Author {n}": random.choice(fields) for n in range(80)}

def alike(group, field):
    return random.choice([name for name, of in group.items() if of == field or random.random() < 0.1])

rows = []
for paper, field in papers.items():
    known = field if random.random() < 0.8 else ""
    terms = fields.index(field) + random.gauss(0, 1.5)
    kind = random.choice(["article", "letter"])
    rows.append([paper, random.choice(["", 8, 12]), kind, terms, random.randint(2005, 2024), known])
write("papers/nodes/paper.csv", ["id", "pages", "kind", "terms", "year", "label"], rows)
write("papers/nodes/author.csv", ["name", "age"], [[name, random.randint(30, 60)] for name in authors])
edges = "papers/edges/{}.csv".format
rows = [[alike(authors, field), paper] for paper, field in papers.items() for _ in range(4)]
write(edges("author__writes__paper"), ["author", "paper"], rows)
rows = [[paper, alike(papers, field)] for paper, field in papers.items() for _ in range(6)]
write(edges("paper__cites__paper"), ["source", "target"], rows)
rows = [[paper, random.choice(["Acta", "Annals"])] for paper in papers]
write(edges("paper__in__venue"), ["paper", "venue"], rows)

rows = []
for user in range(60):
    for _ in range(25):
        item = random.choice([i for i in range(90) if i % 6 == user % 6 or random.random() < 0.02])
        rows.append([f"u{user}", f"i{item}", f"2024-{random.randint(1, 12):02}-{random.randint(1, 28):02}"])
write("shop/edges/user__buys__item.csv", ["user", "item", "day"], rows)
write("shop/edges/item__on__shelf.csv", ["item", "shelf"], [[f"i{i}", f"s{i % 6}"] for i in range(90)])
write("asked.csv", ["user", "item"], [["u0", f"i{i}"] for i in range(90)])
"""
TRAIN = "python train.py dataset=custom device=cpu trainer.plots=false trainer.progress=false"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["rgcn", "hgt"])
def test_tables_of_three_types(model: str, tmp_path: Path) -> None:
    assert run(WRITE, tmp_path, "python").status == 0
    options = "dataset.path=papers dataset.split=time:year dataset.standardize=true trainer.max_epochs=40"
    done = run(f"{TRAIN} model={model} model.hidden_channels=32 {options} hydra.run.dir=run", tmp_path)
    assert done.status == 0, done.errors
    assert "task = typed_node, classes of paper (3)" in done.output
    assert done.result()["metrics"]["test"]["accuracy"] > 0.7  # of three classes; by `terms` alone 0.5
    done = run("gnnsparse predict run --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    rows = done.rows("found.csv")
    assert [row["ids"] for row in rows] == [f"p{number}" for number in range(240)]
    assert {row["class_name"] for row in rows} == {"biology", "law", "physics"}


@pytest.mark.slow
def test_predictions_for_another_folder_of_tables(tmp_path: Path) -> None:
    assert run(WRITE, tmp_path, "python").status == 0
    options = "dataset.path=papers dataset.split=time:year dataset.standardize=true trainer.max_epochs=40"
    done = run(f"{TRAIN} model=rgcn model.hidden_channels=32 {options} hydra.run.dir=run", tmp_path)
    assert done.status == 0, done.errors
    # Other papers of other authors, of a kind that no paper of the training is, in the same two venues.
    new = WRITE.replace("seed(0)", "seed(1)").replace('f"p{', 'f"q{').replace("Author", "Writer")
    new = new.replace('"papers/', '"new/').replace('"letter"', '"poster"').replace("label", "field")
    assert run(new, tmp_path, "python").status == 0
    table = tmp_path / "new/nodes/paper.csv"
    rows = [line.split(",") for line in table.read_text().splitlines()]
    fields = {row[0]: row.pop() for row in rows}
    table.write_text("".join(",".join(row) + "\n" for row in rows))  # without labels
    done = run("gnnsparse predict run --data new --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    assert "kind=poster" in done.output + done.errors
    found = {row["ids"]: row["class_name"] for row in done.rows("found.csv")}
    assert list(found) == [f"q{number}" for number in range(240)]
    right = [found[paper] == field for paper, field in fields.items() if field and paper in found]
    assert sum(right) / len(right) > 0.7  # by `terms` alone 0.5
    (tmp_path / "new/edges/paper__in__venue.csv").write_text("paper,venue\nq1,Nature\n")
    done = run("gnnsparse predict run --data new --out found.csv", tmp_path)
    assert done.status == 2, done.output
    assert "of the nodes of type 'venue' 'Nature' is new; accepted: the 2 of the training" in done.errors


@pytest.mark.slow
def test_recommendations_with_a_split_by_time(tmp_path: Path) -> None:
    assert run(WRITE, tmp_path, "python").status == 0
    options = "dataset.path=shop dataset.task=link dataset.edges=buys dataset.split=time:day"
    more = "model=rgcn model.hidden_channels=32 trainer.max_epochs=30 hydra.run.dir=run"
    done = run(f"{TRAIN} {options} {more}", tmp_path)
    assert done.status == 0, done.errors
    assert "task = typed_link, user buys item (" in done.output
    scores = done.result()["metrics"]["test"]
    assert scores["mrr"] > 0.3  # of 15 items that a user likes about 5 are new; any order has 0.06
    assert scores["hits@10"] > 0.6
    done = run("gnnsparse predict run --data asked.csv --out found.csv", tmp_path)
    assert done.status == 0, done.errors
    rows = done.rows("found.csv")
    assert [(row["source"], row["target"]) for row in rows] == [("u0", f"i{item}") for item in range(90)]
    best = sorted(range(90), key=lambda item: -float(rows[item]["probability"]))[:10]
    assert sum(item % 6 == 0 for item in best) >= 7
