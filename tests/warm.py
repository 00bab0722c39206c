"""Commands `python` and `gnnsparse` whose processes are forked from one that has the large imports already.

A fresh interpreter takes seconds of imports before the first epoch. Where a test is about what comes after
them, a command of `folder()` asks a server for a process that has its arguments, environment, folder and
streams. It hands signals on, ends the process when it is killed, and ends as the process did.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
#: What train.py and stories import sooner or later.
PRELOADED = ("gnnsparse.train.fitting", "hydra", "models", "rich.table", "torch_geometric.datasets")
#: A program of its own, which imports as little as it can.
_COMMAND = """#!{python} -ISB
import marshal, os, signal, socket, sys

words = {words!r} + sys.argv[1:]
if not words or words[0][0] == "-" and words[0] != "-c":
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
for number in (signal.SIGTERM,) if ignored else (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
request = marshal.dumps((words, dict(os.environ), os.getcwd(), ignored))
socket.send_fds(server, [request], [0, 1, 2])
status = int(server.recv(16))
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def folder() -> Path:
    """Returns the folder of the commands, for PATH."""
    found, scripts = Path(tempfile.mkdtemp(prefix="warm-")), Path(sys.executable).parent
    address = str(found / "socket")
    for name, words in (("python", []), ("gnnsparse", [str(scripts / "gnnsparse")])):
        text = _COMMAND.format(python=sys.executable, words=words, address=address)
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(listener.fileno()), str(found / "python")],
            stdin=subprocess.PIPE,  # closed when the process of the tests ends, and the server with it
            cwd=ROOT, pass_fds=[listener.fileno()], start_new_session=True,
        )  # fmt: skip
    atexit.register(server.communicate)
    return found


def python() -> str:
    """Returns the command `python`."""
    return str(folder() / "python")


def _serve(listener: socket.socket, commands: Path) -> tuple[bytes, list[int]]:
    """Returns in a process of its own for each request, with the request and the streams.

    When nobody can ask any more it removes the commands and ends.
    """
    alive = os.dup(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if alive in select.select([listener, alive], [], [])[0]:
            shutil.rmtree(commands)
            os._exit(0)
        connection, _ = listener.accept()
        request, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (program := os.fork()) == 0:
                os.close(alive)
                listener.close()
                connection.close()
                return request, streams
            for stream in streams:
                os.close(stream)
            _keep(connection, alive, program)
        connection.close()
        for stream in streams:
            os.close(stream)


def _keep(connection: socket.socket, alive: int, program: int) -> None:
    """Hands signals on to a process, and its status back; kills it when its command or its tests end."""
    ended = os.pidfd_open(program)
    while ended not in (ready := select.select([connection, alive, ended], [], [])[0]):
        number = b"" if alive in ready else connection.recv(1)
        os.kill(program, number[0] if number else signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(str(status).encode())
    os._exit(0)


def _begin(request: bytes, streams: list[int], command: str) -> list[str]:
    """Makes this process one that a command has started; returns the words of the command."""
    words, environment, place, ignored = marshal.loads(request)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    sys.executable = command
    sys.path[:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    return words


def _run(words: list[str]) -> None:
    """Runs what the words of a command say, as the interpreter does."""
    if words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _end() -> NoReturn:
    """Ends the process by the exception that is handled, without freeing all that was imported."""
    stop = sys.exc_info()[1]
    code = stop.code if isinstance(stop, SystemExit) else 0 if stop is None else 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    elif stop is not None and not isinstance(stop, SystemExit):
        sys.excepthook(type(stop), stop, stop.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    listener, command = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    try:
        _run(_begin(*_serve(listener, command.parent), str(command)))
    except BaseException:
        _end()
    _end()
