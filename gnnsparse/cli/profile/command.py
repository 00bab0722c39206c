"""The command `gnnsparse profile`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from gnnsparse.cli.profile.steps import StepOptions, load_callable, make_step
from gnnsparse.precision import Precision
from gnnsparse.runtime.nvtx import ranges_are_on
from gnnsparse.runtime.profiler import print_profile, profile_steps, wide_console

__all__ = ["run_profile"]


def run_profile(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Profiles a step, writes the trace and prints the tables.

    Ranges of operations are decided on when gnnsparse is imported, so where they are off the command runs
    again in a process in which they are on.

    Args:
        options: the parsed options of the command.
        arguments: the arguments of the process from "profile" on.

    Returns:
        The exit status.

    Raises:
        ValueError: the function to profile or the matrix can't be loaded.
        OSError: the trace can't be written.
    """
    if not ranges_are_on():
        # Kineto, the library behind torch.profiler, reports its own progress on stderr below this level.
        environment = {"KINETO_LOG_LEVEL": "6", **os.environ, "GNNSPARSE_NVTX": "1"}
        command = [sys.executable, "-m", "gnnsparse.cli.main", *arguments]
        return subprocess.run(command, env=environment).returncode
    if options.call is not None:
        step = load_callable(*options.call)
    else:
        precision = Precision(options.precision)
        step = make_step(
            StepOptions(
                options.model, options.matrix, options.layers, options.width, options.features, precision,
                options.device,
            )
        )  # fmt: skip
    profile = profile_steps(
        step, options.device, steps=options.steps, warmup=options.warmup, trace=options.out
    )
    print_profile(profile, wide_console(), options.top)
    return 0
