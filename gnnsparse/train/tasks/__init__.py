"""The training tasks: each file here registers one, under the name of the file."""

from __future__ import annotations

from typing import Any

from gnnsparse.registry import Registry
from gnnsparse.train.task import RunOptions, Task

__all__ = ["TASKS", "RunOptions", "Task", "register_task"]

#: The tasks by name. A task's file is imported when the task is first asked for, because importing Lightning
#: takes seconds.
TASKS: Registry[Task[Any, Any]] = Registry("task", package=__name__)


def register_task(task: Task[Any, Any]) -> None:
    """Registers a task under its name. Every file in this folder registers the task that it is named after.

    Raises:
        ValueError: the name is taken.
    """
    TASKS.register(task.name, task)
