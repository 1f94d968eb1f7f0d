"""The settings that a resumed run reads from its folder, which may be untrusted.

The one allow list of `llmopt run`, `llmopt code` and `llmopt reward`. Numbers, choices and words
may come from a folder. What names an address, a file, a folder, a command or a module, what says
what a request costs, and what waives the sandbox has to be given again on the command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from llmopt.client.model_string import names_a_place
from llmopt.errors import BudgetExceededError, StorageError
from llmopt.prompt import is_shipped
from llmopt.util.text import short

_OF_EVERY_RUN = "seed description gif max_requests max_tokens max_cost"
_OF_RUN = "iterations episodes heldout finalists bias box batch methods"
_OF_CODE = (  # `initial` is the code itself
    "command llmopt steps initial attempts temperature "
    "max_output_tokens call_seconds held_out training trainings "
    "numbered_starts"  # a run that this makes guessable says so
)
_HARMLESS = frozenset(f"{_OF_EVERY_RUN} {_OF_RUN} {_OF_CODE}".split())


_CHECKED: Mapping[str, Callable[[Any], bool]] = {
    "model": lambda value: not names_a_place(str(value)),
    "prompt": is_shipped,
    "compute": lambda value: value == "auto",  # as it is where nobody says
    "task": lambda value: ":" not in str(value),  # a module, which making it would run
    "wrappers": lambda value: not value,  # raw observations
    "compute_packages": lambda value: not value,  # importing runs them
}


def to_give_again(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, by name, how the command line gives the settings that no folder alone may decide."""
    found = {}
    for name, value in settings.items():
        if value is None or value is False or name in _HARMLESS:
            continue
        if name in _CHECKED and _CHECKED[name](value):
            continue
        option = f"--{name.replace('_', '-')}"
        if name == "task":
            found[name] = [str(value)]
        elif name == "wrappers":
            found[name] = ["--raw"]
        elif name == "compute_packages":
            found[name] = [option, ",".join(value)]
        else:
            found[name] = [option] if value is True else [option, str(value)]
    return found


def raised_cap(error: BaseException | None) -> list[str]:
    """Return how the command line raises the cap that ended a run, if one did."""
    if not isinstance(error, BudgetExceededError) or error.raised is None:
        return []
    name, value = error.raised
    return [f"--{name.replace('_', '-')}", str(value)]


def resume_command(
    command: str, settings: Mapping[str, Any], path: Path, error: BaseException | None = None
) -> str:
    """Return the command line that resumes the run in a folder, which the error ended."""
    again = [w for n, words in to_give_again(settings).items() if n != "task" for w in words]
    again += raised_cap(error)
    return shlex.join(
        ["llmopt", command, str(settings["task"]), "--resume", *again, "--out", str(path)]
    )


def check_given(path: Path, settings: Mapping[str, Any], given: Collection[str]) -> None:
    """Raise if a run's folder decides what the command line alone may.

    `given` are the names of the settings that the command line gives.
    """
    for name, words in to_give_again(settings).items():
        if name not in given:
            raise StorageError(
                f"{path} names {short(settings[name])} as its {name}: an address, a file, a "
                "folder, a command, a module or a price is taken from a run folder only if "
                "you name it, too, since the run may be somebody else's. Give "
                f"{'the task ' * (name == 'task')}"
                f"{shlex.join(words)} again to go on"
            )
