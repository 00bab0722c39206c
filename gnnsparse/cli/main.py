"""The `gnnsparse` command: a table of the subcommands, of which the one that is asked for is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from gnnsparse_cli import SUBJECTS, Parser, make_parser

#: The module of each command. Its `add_arguments` (or `add_NAME` where it has several commands) adds options
#: to a parser, `run` runs the command and returns the exit status, and `DESCRIPTION` says what it does.
_COMMANDS = {
    "cache": "gnnsparse.cli.cache",
    **{f"bench {name}": f"gnnsparse.bench.{name}_command" for name in SUBJECTS["bench"]},
    "predict": "gnnsparse.inference.predict",
    "export": "gnnsparse.inference.export",
    "report": "gnnsparse.bench.report_command",
    "doctor": "gnnsparse.cli.doctor",
    "profile": "gnnsparse.cli.profile",
    "plan-cluster": "gnnsparse.distributed.estimate",
    **{f"graph {name}": "gnnsparse.cli.graph" for name in SUBJECTS["graph"]},
}


def make_full_parser(arguments: Sequence[str]) -> Parser:
    """Return the parser of all commands, with the options of the one that `arguments` begin with."""
    asked = " ".join(arguments[: 2 if arguments and arguments[0] in SUBJECTS else 1])

    def add_options(name: str, parser: Parser) -> None:
        if name == asked:
            module = import_module(_COMMANDS[name])
            parser.set_defaults(fail=parser.error, run=module.run)
            parser.description = getattr(module, "DESCRIPTION", None)
            add_name = f"add_{name.rpartition(' ')[2]}"
            getattr(module, add_name if hasattr(module, add_name) else "add_arguments")(parser)

    return make_parser(add_options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 1 if something is damaged or wrong, 2 after bad options."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_full_parser(arguments).parse_args(arguments)
    options.arguments = arguments
    try:
        return options.run(options)
    except (ValueError, OSError, MemoryError) as error:  # of files, folders and sizes that were named
        options.fail(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
