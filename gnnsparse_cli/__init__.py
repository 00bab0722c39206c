"""The start of the `gnnsparse` command: its help and its version, without the seconds that torch takes.

`import gnnsparse` imports torch, whatever part of the package is asked for. So what the command says of
itself is in this package, which imports the standard library alone. The options of a subcommand are in
gnnsparse.cli.main.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

__all__ = [
    "COMMANDS", "PREDICTION_ENDINGS", "SUBJECTS", "Parser", "add_cache_arguments", "add_predict_arguments",
    "check_folder", "file_option", "main", "make_parser", "wait_passively",
]  # fmt: skip

#: The subcommands, with their help.
COMMANDS = {
    "cache": "look after the cache of prepared graphs and generated data",
    "bench": "measure kernels and models beside their peers",
    "predict": "write the predictions of a trained model to a file",
    "export": "compile a trained model into one file, for a server",
    "report": "one page of all results",
    "doctor": "is this installation right?",
    "profile": "what a training step costs",
    "plan-cluster": "time and memory of training on 1 to 1,024 GPUs, estimated",
    "graph": "make graphs larger than memory, from edges or at random",
}


#: What comes behind some subcommands, with the help of each: what is measured, or done.
SUBJECTS = {
    "bench": {
        "kernels": "our kernels beside their peers",
        "latency": "models beside their peers, from a call to its result",
        "fit": "a record of this GPU, which plans are chosen by",
        "accuracy": "errors of each precision, against float64",
    },
    "graph": {
        "build": "a graph of edges in tables or in a .npy file",
        "generate": "a random graph like a well-known one",
        "info": "what a folder has, and whether its files are whole",
    },
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line, without the usage that argparse prints before."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 after one line."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words of a command, of which those that begin with its `takes` go to `rest`.

        The first other word is the option `second` if that was not given. Argparse does not find a word that
        may be missing behind other options.
        """
        options, rest = self.parse_known_args(args, namespace)
        takes, second = getattr(options, "takes", None), getattr(options, "second", None)
        plain = [word for word in rest if takes is None or not word.startswith(takes)]
        if second and plain and not plain[0].startswith("-") and getattr(options, second) is None:
            setattr(options, second, plain[0])
            rest.remove(plain.pop(0))
        if plain:
            hint = f"; options of the data set begin with {takes}" if takes and "=" in plain[0] else ""
            self.error(f"unrecognized arguments: {' '.join(plain)}{hint}")
        options.rest = rest
        return options


class _Version(argparse.Action):
    """Prints the version of the installed package, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"gnnsparse {metadata.version('gnnsparse')}")
        parser.exit()


def make_parser(add_options: Callable[[str, Parser], object]) -> Parser:
    """Return the parser of the command and all subcommands.

    Args:
        add_options: is called with each subcommand, such as "bench kernels", and its parser, to which it
            adds the options.
    """
    parser = Parser(
        prog="gnnsparse",
        description="Sparse kernels for graph neural networks: measurements, predictions and housekeeping. "
        "Training is `python train.py`.",
        epilog="gnnsparse COMMAND --help shows the options of a command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name not in SUBJECTS:
            add_options(name, command)
            continue
        subjects = command.add_subparsers(dest="subject", required=True, metavar="subject")
        for subject, about in SUBJECTS[name].items():
            add_options(f"{name} {subject}", subjects.add_parser(subject, help=about))
    return parser


def add_cache_arguments(cache: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse cache`."""
    cache.add_argument("action", choices=("ls", "verify", "clear"), help="list, check or remove its files")
    cache.add_argument("--dir", help="the folder; default: $GNNSPARSE_CACHE_DIR or the user's cache folder")


#: Endings of files of predictions.
PREDICTION_ENDINGS = (".npz", ".csv")


def file_option(text: str, endings: tuple[str, ...] = ("",)) -> Path:
    """Read an option that names a file to write, with one of the endings."""
    if not text.endswith(endings):
        raise argparse.ArgumentTypeError(f"got {text!r}; accepted: a name in {', '.join(endings)}")
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; accepted: a file to write")
    return path


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse predict`, but for --device, whose check needs torch."""
    parser.description = (
        "Writes the predictions of a trained model, which train.py left in the folder of a run. The module "
        "with the model is looked for in the present folder too, so run it where train.py is."
    )
    parser.add_argument("source", metavar="RUN", help="the folder of a run, or a checkpoint in it")
    parser.add_argument(
        "--data", metavar="NAME_OR_FILE",
        help="a data set of train.py, or a file or folder as dataset=custom dataset.path=... takes, which "
        "may also stand behind RUN; default: the data that the model was trained on",
    )  # fmt: skip
    parser.add_argument("--root", metavar="DIR", help="the folder with the files of a published data set")
    parser.add_argument(
        "--out", type=partial(file_option, endings=PREDICTION_ENDINGS), required=True, metavar="FILE",
        help="FILE.npz: arrays; FILE.csv: a row for each node, graph or sequence; a file there is replaced",
    )  # fmt: skip
    parser.epilog = (
        "Options of the data set are written as in the training, after it or anywhere: dataset.id=name "
        "dataset.label=null takes another column of ids, and no labels."
    )
    parser.set_defaults(takes="dataset.", second="data")


def check_folder(options: argparse.Namespace) -> None:
    """Exit with status 2 if a folder was named that is none: it would look like an empty cache."""
    folder = options.dir
    if folder and "\0" not in folder and not os.path.isdir(folder):
        options.fail(f"argument --dir: there is no folder {folder!r}; accepted: the folder of a cache")


def wait_passively() -> None:
    """Let OpenMP's threads sleep while they wait, unless the environment says how; before torch is imported.

    Threads that spin keep others from the cores: beside another busy process a step on a small graph takes
    many times as long then, and alone a few hundredths less.
    """
    passive = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    if not passive.keys() & os.environ.keys():
        os.environ.update(passive)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status, as gnnsparse.cli.main.main does."""
    if "_ARGCOMPLETE" in os.environ:  # set by the shell function that completes words, with argcomplete there
        import argcomplete

        argcomplete.autocomplete(make_parser(_add_light_options))
    wait_passively()
    arguments = sys.argv[1:] if arguments is None else arguments
    command = arguments[0] if arguments else ""
    inner = arguments[1] if len(arguments) > 1 else ""
    lacks_subject = command in SUBJECTS and inner not in SUBJECTS[command]
    if command not in COMMANDS or command == "cache" or lacks_subject:
        # What these say needs nothing but this file. They exit here, unless it is a cache that is there.
        options = make_parser(_add_light_options).parse_args(arguments)
        check_folder(options)
    if command == "predict":
        # Help and mistakes; the library reads the options again, with the device.
        make_parser(_add_light_options).parse_args(arguments)
    from gnnsparse.cli.main import main as run

    return run(arguments)


def _add_light_options(name: str, parser: Parser) -> None:
    """Add the options that are known without the library."""
    parser.set_defaults(fail=parser.error)
    if name == "cache":
        add_cache_arguments(parser)
    elif name == "predict":
        add_predict_arguments(parser)
        parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda; default: auto")


if __name__ == "__main__":
    sys.exit(main())
