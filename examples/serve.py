"""A server for a package that `gnnsparse export` wrote, of the standard library alone.

    gnnsparse export run --out model.pt2
    python examples/serve.py model.pt2 --port 8000
    curl localhost:8000 -d '{"x": [[0.5, 1.0], [2.0, 0.1]], "edge_index": [[0], [1]]}'

A request is JSON with the tensors that the package takes; "rows" names the nodes or graphs that the answer is
about. It has the class and the probabilities of each, or the numbers of a regression. GET says what the
package takes.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from gnnsparse.inference.export import Package, load_package
from gnnsparse.train.trained import arrays_of

#: The most bytes of a request.
LARGEST = 2**26
DTYPES = {
    "x": torch.float32,
    "edge_index": torch.int64,
    "edge_weight": torch.float32,
    "graph_ptr": torch.int64,
}


def answer(package: Package, request: Any) -> dict[str, Any]:
    """Return what a package says of a request; TypeError or ValueError says what is wrong with it."""
    if not isinstance(request, dict) or (missing := [name for name in package.inputs if name not in request]):
        wanted = ", ".join(package.inputs if not isinstance(request, dict) else missing)
        raise ValueError(f"request: lacks {wanted}; accepted: JSON with {', '.join(package.inputs)}")
    tensors = [torch.tensor(request[name], dtype=DTYPES[name]) for name in package.inputs]
    found = arrays_of(package.predict(*tensors))
    count = len(next(iter(found.values())))
    rows = torch.tensor(request.get("rows", range(count)), dtype=torch.int64)
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise ValueError(f"rows: accepted: 0 to {count - 1}")
    return {name: values[rows].tolist() for name, values in found.items()}


class Handler(BaseHTTPRequestHandler):
    """Answers requests, each in a thread of its own."""

    package: Package

    def do_GET(self) -> None:
        """Say what the package takes: a probe of whether the server is ready."""
        self._send(200, {"inputs": self.package.inputs})

    def do_POST(self) -> None:
        """Answer a request, or say what is wrong with it."""
        try:
            size = int(self.headers.get("Content-Length", 0))
            if size > LARGEST:
                self._send(413, {"error": f"request: has {size} bytes; accepted: at most {LARGEST}"})
                return
            self._send(200, answer(self.package, json.loads(self.rfile.read(size))))
        except (TypeError, ValueError) as error:
            self._send(400, {"error": str(error)})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing for each request."""


def main() -> None:
    """Serve a package until the process is ended."""
    parser = argparse.ArgumentParser(description="Serve a package that `gnnsparse export` wrote.")
    parser.add_argument("package", type=Path, metavar="FILE.pt2")
    parser.add_argument("--port", type=int, default=8000, help="0: a free one; default: 8000")
    parser.add_argument("--threads", type=int, default=2, help="calls of the model at once; default: 2")
    options = parser.parse_args()
    Handler.package = load_package(options.package, threads=options.threads)
    Handler.package.warm_up()
    with ThreadingHTTPServer(("127.0.0.1", options.port), Handler) as server:
        print(f"serving {options.package} on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
