"""What `gnnsparse predict` does."""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from gnnsparse.inference.predict.files import write_predictions
from gnnsparse.inference.predict.predict import predict_run
from gnnsparse.runtime.environment import log_shown

__all__ = ["run_predict"]


def run_predict(options: argparse.Namespace) -> int:
    """Writes predictions to a file, says how many, and returns the exit status 0.

    Raises:
        ValueError: the model or the data can't be loaded, or do not fit one another.
        OSError: the file can't be written.
    """
    # Last, so that nothing in the present folder takes the place of an installed module.
    sys.path.append(os.getcwd())
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with log_shown("gnnsparse.data", console.print):
        found = predict_run(options.run, options.data, root=options.root, device=options.device)
    write_predictions(options.out, found.arrays, found.names)
    count = len(next(iter(found.arrays.values())))
    scores = ", ".join(f"{name} {value:.4g}" for name, value in found.metrics.get("test", {}).items())
    line = f"{count} predictions on {found.dataset}{f'; test: {scores}' if scores else ''}\n{options.out}"
    console.print(line)
    return 0
