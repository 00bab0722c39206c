"""What an installed package has to do: run in a fresh environment, without the repository and without a GPU.

    python -I tests/package/smoke.py [--cuda-architectures 80,90a] [--extras]

Results are compared with dense torch in float64 or with what is written here. The script needs the package's
own dependencies alone, so that it notices an import of anything else. With `--extras` it asks pip what each
extra would install: none replaces the torch that is there, or compiles anything.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

os.environ["GNNSPARSE_CACHE_DIR"] = tempfile.mkdtemp(prefix="gnnsparse-smoke-")

import torch

import gnnsparse
from gnnsparse import _native, masks
from gnnsparse.nn import GCNConv, TransformerEncoderLayer
from gnnsparse.testing import assert_accurate, random_graph

#: The dtypes that operands are rounded to.
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: What users install; the others are for developers.
EXTRAS = ("bench", "data", "dgl", "hub", "metis", "train", "transformers")
#: Packages that come as sources: Python alone, without a compiler.
PURE_SOURCES = {"antlr4-python3-runtime"}
#: torch, what it brings, and packages that are compiled for one torch.
OF_TORCH = re.compile(
    r"torch|triton|nvidia-.*|torch-(scatter|sparse|cluster|spline-conv)|torchvision|torchaudio|pyg-lib|dgl"
)


def check_installation(cuda_architectures: str) -> None:
    package = Path(gnnsparse.__file__).parent
    assert Path(sysconfig.get_path("purelib")) in package.parents, f"not the installed package: {package}"
    assert (package / "py.typed").exists()
    assert importlib.metadata.version("gnnsparse") == gnnsparse.__version__
    assert _native.cuda_architectures == cuda_architectures, _native.cuda_architectures
    assert _native.has_cuda == bool(cuda_architectures)
    for optional in ("lightning", "torch_geometric", "hydra", "ogb", "pymetis"):
        assert optional not in sys.modules, f"importing gnnsparse imports {optional}"


def check_openmp() -> None:
    """The module shares torch's threads: there is one OpenMP runtime in the process."""
    gnnsparse.prepare(random_graph(50, 50, 0.1)) @ torch.randn(50, 4)
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = {line.split()[-1] for line in lines if "libgomp" in line}
    assert len(loaded) == 1, f"there are {len(loaded)} OpenMP runtimes: {loaded}"


def check_products() -> None:
    graph = random_graph(300, 200, 0.05, seed=1)
    exact = torch.from_numpy(graph.to_scipy().toarray()).double()
    for precision, dtype in PRECISIONS.items():
        a = gnnsparse.prepare(graph, precision=precision)
        x = torch.randn(200, 40, requires_grad=True)
        y = a @ x
        weight = torch.randn_like(y)
        (y * weight).sum().backward()
        matrix, rounded = exact.to(dtype).float(), x.detach().to(dtype).float()
        assert_accurate(y, matrix @ rounded, exact @ x.detach().double())
        assert_accurate(x.grad, matrix.T @ weight.to(dtype).float(), exact.T @ weight.double())
        again = gnnsparse.prepare(graph, precision=precision)
        assert again.cache_hit, "the prepared graph was not in the cache"
        assert torch.equal(again @ x, y)


def check_attention() -> None:
    pattern = gnnsparse.prepare(masks.window(64, 5))
    inside = (torch.arange(64)[:, None] - torch.arange(64)).abs() <= 5
    q, k, v = (torch.randn(2, 64, 16) for _ in range(3))
    dense_attention = torch.nn.functional.scaled_dot_product_attention
    dense = dense_attention(q, k, v, attn_mask=inside)
    exact = dense_attention(q.double(), k.double(), v.double(), attn_mask=inside)
    assert_accurate(gnnsparse.attention(pattern, q, k, v), dense, exact)
    scores = gnnsparse.sddmm(pattern, q[0], k[0]) / 4
    chained = gnnsparse.spmm(pattern, v[0], gnnsparse.edge_softmax(pattern, scores))
    assert_accurate(chained, dense[0], exact[0])


def check_layers() -> None:
    # The path 0 - 1 - 2 with self-loops: degrees 2, 3 and 2.
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    r = torch.tensor([2.0, 3.0, 2.0]).rsqrt()
    exact = torch.tensor([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]]) * r[:, None] * r
    layer = GCNConv(4, 2)
    x = torch.randn(3, 4)
    wanted = exact @ x @ layer.lin.weight.T + layer.bias
    torch.testing.assert_close(layer(x, edge_index), wanted)
    torch.testing.assert_close(layer(x, gnnsparse.prepare(edge_index, num_nodes=3, values="gcn")), wanted)

    dense = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    sparse = TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    sparse.load_state_dict(dense.state_dict())
    tokens = torch.randn(2, 12, 16)
    out = sparse(tokens, gnnsparse.prepare(masks.full(12)))
    torch.testing.assert_close(out, dense(tokens), atol=1e-5, rtol=1e-5)
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in sparse.parameters())


def check_errors() -> None:
    message = ""
    try:
        gnnsparse.prepare(torch.tensor([[0, 5], [1, 0]]), num_nodes=2)
    except ValueError as error:
        message = str(error)
    assert "edge_index" in message, "an index out of range was accepted"


def check_command() -> None:
    command = Path(sysconfig.get_path("scripts")) / "gnnsparse"
    calls = {"--help": "cache", "cache ls": "MB", "cache verify": "0 damaged", "cache clear": "removed"}
    for arguments, expected in calls.items():
        done = subprocess.run([command, *arguments.split()], capture_output=True, text=True)
        assert done.returncode == 0, f"gnnsparse {arguments}: {done.stderr}"
        assert expected in done.stdout, done.stdout
    done = subprocess.run([command, "no-such-command"], capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def check_extras() -> None:
    metadata = importlib.metadata.metadata("gnnsparse")
    assert {*(metadata.get_all("Provides-Extra") or [])} >= set(EXTRAS)
    for extra in EXTRAS:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", str(report)]
            subprocess.run([*pip, f"gnnsparse[{extra}]=={metadata['Version']}"], check=True)
            found = json.loads(report.read_text())["install"]
        of = {re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item for item in found}
        replaced = [name for name in of if OF_TORCH.fullmatch(name)]
        assert not replaced, f"gnnsparse[{extra}] replaces torch {torch.__version__}: {replaced}"
        sources = {name for name, item in of.items() if not item["download_info"]["url"].endswith(".whl")}
        assert sources <= PURE_SOURCES, f"gnnsparse[{extra}] compiles {sources - PURE_SOURCES}"
        print(f"gnnsparse[{extra}] adds {len(found)} packages beside torch {torch.__version__}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuda-architectures", default="", help="those that the module has kernels for")
    parser.add_argument("--extras", action="store_true", help="look at the extras, too")
    options = parser.parse_args()
    torch.manual_seed(0)
    check_installation(options.cuda_architectures)
    check_openmp()
    check_products()
    check_attention()
    check_layers()
    check_errors()
    check_command()
    if options.extras:
        check_extras()
    python = sys.version.split()[0]
    print(f"gnnsparse {gnnsparse.__version__} works with torch {torch.__version__}, Python {python}")


if __name__ == "__main__":
    main()
