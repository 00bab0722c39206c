"""The `gnnsparse` command: a table of the subcommands, of which the one that is asked for is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from gnnsparse_cli import SUBJECTS, Parser, make_parser

__all__ = ["main", "make_full_parser"]

#: For each command the function that adds its options to a parser, and the one that runs it and returns the
#: exit status. The module of the options has the command's description as `DESCRIPTION`.
_COMMANDS = {
    "cache": ("gnnsparse.cli.cache:add_arguments", "gnnsparse.cli.cache:run"),
    "bench kernels": ("gnnsparse.bench.kernels_command:add_arguments", "gnnsparse.bench.kernels_command:run"),
    "bench latency": ("gnnsparse.bench.latency_command:add_arguments", "gnnsparse.bench.latency_command:run"),
    "bench fit": ("gnnsparse.bench.fit_command:add_arguments", "gnnsparse.bench.fit_command:run"),
    "bench accuracy": (
        "gnnsparse.bench.accuracy_command:add_arguments",
        "gnnsparse.bench.accuracy_command:run",
    ),
    "predict": (
        "gnnsparse.inference.predict:add_arguments",
        "gnnsparse.inference.predict:run_predict",
    ),
    "report": ("gnnsparse.bench.report_command:add_arguments", "gnnsparse.bench.report_command:run"),
    "doctor": ("gnnsparse.cli.doctor:add_arguments", "gnnsparse.cli.doctor:run"),
    "profile": ("gnnsparse.cli.profile:add_arguments", "gnnsparse.cli.profile:run"),
    "plan-cluster": (
        "gnnsparse.distributed.estimate:add_arguments",
        "gnnsparse.distributed.estimate:run_plan_cluster",
    ),
    **{
        f"graph {name}": (f"gnnsparse.cli.graph:add_{name}", "gnnsparse.cli.graph:run")
        for name in SUBJECTS["graph"]
    },
}


def _load(place: str) -> tuple[ModuleType, Callable[..., Any]]:
    module = import_module(place.partition(":")[0])
    return module, getattr(module, place.partition(":")[2])


def make_full_parser(arguments: Sequence[str]) -> Parser:
    """Return the parser of all commands, with the options of the one that `arguments` begin with."""
    asked = " ".join(arguments[: 2 if arguments and arguments[0] in SUBJECTS else 1])

    def add_options(name: str, parser: Parser) -> None:
        if name == asked:
            options, run = _COMMANDS[name]
            module, add_arguments = _load(options)
            parser.description = getattr(module, "DESCRIPTION", None)
            add_arguments(parser)
            parser.set_defaults(fail=parser.error, run=run)

    return make_parser(add_options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    `gnnsparse cache ls|verify|clear [--dir DIR]`: `verify` exits with 1 if a file is damaged.
    `gnnsparse predict RUN [options]`: writes the predictions of a trained model to a file.
    `gnnsparse bench kernels [options]`: exits with 1 if the result of a kernel is wrong.
    `gnnsparse bench latency [options]`: exits with 1 if a result of ours is wrong, or a data set is missing.
    `gnnsparse bench fit [options]`: exits with 1 if nothing could be measured.
    `gnnsparse bench accuracy [options]`: exits with 1 if a result is less exact than its precision promises.
    `gnnsparse report [options]`: exits with 1 if there is no result.
    `gnnsparse doctor [options]`: exits with 1 if something is broken.
    `gnnsparse profile [options]`: exits with the status of the process that is profiled.
    `gnnsparse plan-cluster DATASET [options]` estimates training on several GPUs.
    `gnnsparse graph build|generate|info [options]`: `info --verify` exits with 1 if a file is damaged.
    Options that are not accepted exit with 2.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_full_parser(arguments).parse_args(arguments)
    options.arguments = arguments
    try:
        status: int = _load(options.run)[1](options)
        return status
    except (ValueError, OSError, MemoryError) as error:  # of files, folders and sizes that were named
        options.fail(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
