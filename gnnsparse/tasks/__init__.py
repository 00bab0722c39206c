"""What can be trained: a task for each file here, under the name of its file."""

from __future__ import annotations

from typing import Any

from gnnsparse.registry import Registry
from gnnsparse.training.task import RunOptions, Task

__all__ = ["TASKS", "RunOptions", "Task", "register_task"]

#: The tasks by name. A file is imported when its task is first asked for: Lightning takes seconds.
TASKS: Registry[Task[Any, Any]] = Registry("task", package=__name__)


def register_task(task: Task[Any, Any]) -> None:
    """Registers a task under its name. A file in this folder registers the task that it is named after.

    Raises:
        ValueError: the name is taken.
    """
    TASKS.register(task.name, task)
