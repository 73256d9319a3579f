"""A set of tasks; another module includes it in the app."""

import os

from hourbell import TaskSet

tasks = TaskSet()


@tasks.task(process=True)
def pid_of_set() -> int:
    return os.getpid()


def in_no_set() -> None: ...
