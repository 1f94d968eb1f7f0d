"""The tasks of the benchmark, and fast rollouts of them."""

from llmopt.benchmarks.tasks.table import TASKS, Task, get_task

__all__ = ["TASKS", "Task", "get_task"]
