"""The `gnnsparse` command."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence

from gnnsparse.bench.accuracy.options import accuracy_settings, add_accuracy_arguments
from gnnsparse.bench.latency.options import add_latency_arguments, latency_settings
from gnnsparse.bench.options import DESCRIPTION, add_arguments, add_fit_arguments, check_fit, settings_of
from gnnsparse.bench.render import options as report
from gnnsparse.cli.doctor import options as doctor
from gnnsparse.cli.graph import options as building
from gnnsparse.cli.profile import options as profiling
from gnnsparse.distributed.estimate import options as cluster
from gnnsparse.inference.predict import options as prediction
from gnnsparse_cli import COMMANDS, SUBJECTS, add_cache, check_folder, make_parser

__all__ = ["main"]


#: Further commands, each with a module of its options.
_MODULES = {
    "predict": prediction, "report": report, "doctor": doctor, "profile": profiling,
    "plan-cluster": cluster,
}  # fmt: skip
_LAST_SECOND = datetime.datetime(9999, 12, 30).timestamp()


def _parser() -> argparse.ArgumentParser:
    parser, commands = make_parser()
    add_cache(commands)
    bench = commands.add_parser("bench", help=COMMANDS["bench"])
    subjects = bench.add_subparsers(dest="subject", required=True, metavar="subject")
    kernels = subjects.add_parser("kernels", help=SUBJECTS["bench"]["kernels"], description=DESCRIPTION)
    add_arguments(kernels)
    kernels.set_defaults(fail=kernels.error)
    latency = subjects.add_parser("latency", help=SUBJECTS["bench"]["latency"])
    add_latency_arguments(latency)
    latency.set_defaults(fail=latency.error)
    fit = subjects.add_parser("fit", help=SUBJECTS["bench"]["fit"])
    add_fit_arguments(fit)
    fit.set_defaults(fail=fit.error)
    accuracy = subjects.add_parser("accuracy", help=SUBJECTS["bench"]["accuracy"])
    add_accuracy_arguments(accuracy)
    accuracy.set_defaults(fail=accuracy.error)
    graph = commands.add_parser("graph", help=COMMANDS["graph"], description=building.DESCRIPTION)
    subjects = graph.add_subparsers(dest="subject", required=True, metavar="subject")
    for name, about in SUBJECTS["graph"].items():
        command = subjects.add_parser(name, help=about)
        building.add_arguments(name, command)
        command.set_defaults(fail=command.error)
    for name, subject in _MODULES.items():
        command = commands.add_parser(name, help=COMMANDS[name], description=subject.DESCRIPTION)
        subject.add_arguments(command)
        command.set_defaults(fail=command.error)
    return parser


def _list_cache(folder: str | None) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gnnsparse.runtime.cache import GraphCache

    cache = GraphCache(folder)
    entries = cache.entries()
    if not entries:
        Console().print(f"{cache.folder} is empty", soft_wrap=True, highlight=False, markup=False)
        return 0
    table = Table(title=Text(str(cache.folder)), caption=f"{sum(e.nbytes for e in entries) / 1e6:.1f} MB")
    for name in ("key", "MB", "last used", "rows x cols", "edges", "reorder, plan or data"):
        table.add_column(name)
    for entry in entries:
        # Other programs may set times that a date has no room for.
        seconds = min(max(entry.used, 0.0), _LAST_SECOND)
        used = datetime.datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
        about = entry.about() or ("damaged", "", "")
        # As Text, for brackets in a file are no markup.
        cells = (entry.key[:12], f"{entry.nbytes / 1e6:.2f}", used, *about)
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)
    return 0


def _verify_cache(folder: str | None) -> int:
    from rich.console import Console

    from gnnsparse.data.generated import check_cached
    from gnnsparse.runtime.cache import GraphCache

    console, damaged = Console(), 0
    for entry, problem in GraphCache(folder).verify(check_cached):
        damaged += problem is not None
        console.print(f"{entry.path}: {problem or 'ok'}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"{damaged} damaged", highlight=False)
    return 1 if damaged else 0


def _clear_cache(folder: str | None) -> int:
    from rich.console import Console

    from gnnsparse.runtime.cache import GraphCache

    cache = GraphCache(folder)
    removed = cache.clear()
    text = f"{removed} prepared graphs removed from {cache.folder}"
    Console().print(text, soft_wrap=True, highlight=False, markup=False)
    return 0


def _bench(options: argparse.Namespace) -> int:
    if options.subject == "fit":
        return _fit(options)
    if options.subject == "accuracy":
        return _accuracy(options)
    if options.subject == "latency":
        return _latency(options)
    settings = settings_of(options, options.fail)
    from gnnsparse.bench.command import run_kernels

    return run_kernels(settings, options.out, options.plot, resume=options.resume)


def _accuracy(options: argparse.Namespace) -> int:
    from gnnsparse.bench.accuracy.command import run_accuracy

    return run_accuracy(accuracy_settings(options), options.out, options.plot)


def _latency(options: argparse.Namespace) -> int:
    settings = latency_settings(options, options.fail)
    from gnnsparse.bench.latency.command import run_latency

    return run_latency(settings, options.out, options.plot)


def _fit(options: argparse.Namespace) -> int:
    check_fit(options)
    from gnnsparse.bench.fit.command import run_fit

    more = tuple(spec for group in options.matrix or () for spec in group)
    try:
        return run_fit(options.out, more, keep=options.keep, measured=options.measured)
    except ValueError as error:
        options.fail(str(error))
        return 2


def _report(options: argparse.Namespace) -> int:
    from gnnsparse.bench.render.command import run_report

    return run_report(options.files, options.out, options.markdown)


def _doctor(options: argparse.Namespace) -> int:
    from gnnsparse.cli.doctor.command import run_doctor

    return run_doctor(as_json=options.json, seconds=options.seconds)


def _predict(options: argparse.Namespace) -> int:
    from gnnsparse.inference.predict.command import run_predict

    return run_predict(options)


def _profile(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from gnnsparse.cli.profile.command import run_profile

    return run_profile(options, arguments)


def _plan_cluster(options: argparse.Namespace) -> int:
    from gnnsparse.distributed.estimate.command import run_plan_cluster

    return run_plan_cluster(options)


def _graph(options: argparse.Namespace) -> int:
    from gnnsparse.cli.graph.command import run_graph

    return run_graph(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

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
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "bench":
                return _bench(options)
            case "predict":
                return _predict(options)
            case "report":
                return _report(options)
            case "doctor":
                return _doctor(options)
            case "profile":
                return _profile(options, arguments)
            case "plan-cluster":
                return _plan_cluster(options)
            case "graph":
                return _graph(options)
        check_folder(options)
        actions = {"ls": _list_cache, "verify": _verify_cache, "clear": _clear_cache}
        return actions[options.action](options.dir)
    except (ValueError, OSError, MemoryError) as error:  # of files, folders and sizes that were named
        options.fail(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
