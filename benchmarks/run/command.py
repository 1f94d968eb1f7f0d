"""``llmopt run``: a model searches one task's policy, beside CMA-ES and random search."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llmopt.benchmarks.engine.folder_settings import (
    check_given,
    raised_cap,
    resume_command,
    to_give_again,
)
from llmopt.benchmarks.engine.options import add_numbers, add_search_options
from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.run.config import DEFAULT_METHODS, RunConfig, RunConfigError
from llmopt.benchmarks.run.folder import is_empty, read_config
from llmopt.benchmarks.run.outcome import RunResult
from llmopt.benchmarks.run.session import run
from llmopt.benchmarks.tasks.table import TASKS
from llmopt.commands.shared import (
    add_config_argument,
    add_packages_argument,
    add_run_arguments,
    take_options,
)
from llmopt.errors import LLMOptError, StorageError
from llmopt.prompt import PROMPTS
from llmopt.trackers import add_track_argument, callbacks_of
from llmopt.util.files import read_bytes, write_bytes_atomically
from llmopt.util.text import clean

_NUMBERS_ONLY = ("smollm2", "network")  # models that read no words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt run``. One that is not given is not in the namespace."""
    names = ", ".join(t.alias for t in TASKS)
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    add(
        "task",
        metavar="TASK",
        nargs="?",
        help=f"{names}, or any Gymnasium id (MODULE:ID imports the module first); not needed with "
        "--resume DIR",
    )
    add("--out", metavar="DIR", help="run folder (default: a new one in runs/)")
    add(
        "--resume",
        nargs="?",
        const=True,
        metavar="DIR",
        help="resume the run in DIR, or in --out",
    )
    add_search_options(parser)
    add(
        "--prompt",
        metavar="P",
        help=f"{', '.join(PROMPTS)}, or a template's path (default: auto, what suits the model)",
    )
    numbers = {
        "--batch": "points of one request to a model (default: 4 under columns, else 1)",
        "--iterations": "evaluations of each method after the warm-up (default: 40); with "
        "--resume, more of a finished run",
    }
    add_numbers(parser, numbers)
    add(
        "--warmup",
        type=_count_or_folder,
        metavar="N|DIR",
        help="points shared by all methods before the search, sampled or loaded (default: 20)",
    )
    add(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help=f"which to run (default: {' '.join(DEFAULT_METHODS)}): llm, the model under --prompt, "
        f"and {', '.join(METHODS)}",
    )
    add("--description", metavar="TEXT", help="the task in words, for prompts that use it")
    add(
        "--compute",
        action=argparse.BooleanOptionalAction,
        help="let the model compute in Python, confined, before it proposes (default: chat models "
        "under words)",
    )
    add_packages_argument(parser)
    add_run_arguments(parser)
    add_config_argument(parser)
    add_track_argument(parser)


def _count_or_folder(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _config(given: dict[str, Any], out: Any, resume: Any) -> tuple[RunConfig, Any]:
    """Return the configuration of a run that begins or resumes, and its folder if it has one."""
    if isinstance(resume, str):
        if out is not None:
            raise RunConfigError(f"--resume {resume} and --out {out}: give the folder once")
        out = resume
    if "task" not in given and (not resume or out is None):
        raise RunConfigError(
            "no task: name one, such as llmopt run mountaincar, or a run to resume (--resume DIR)"
        )
    config = RunConfig(**{"task": "", **given})
    if resume:
        if out is not None and is_empty(Path(out)):
            raise StorageError(
                f"--resume: {out} holds no run; give the folder of one: llmopt run --resume DIR"
            )
        if out is None:
            raise RunConfigError("--resume: got no folder; give that of the run: --resume DIR")
        out = Path(out)
        stored = RunConfig.from_dict(read_config(out)["run"])
        config = replace(stored, **given)
        check_given(out, _settings(config), given)
    return config, out


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    given = dict(vars(args))
    out, resume = given.pop("out", None), given.pop("resume", False)
    kept, callbacks = given.pop("config", None), callbacks_of(given.pop("track", ()))
    take_options(given, None if resume else RunConfig.model)
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    config, out = _config(given, out, resume)
    resume = bool(resume)
    begun: list[Path] = []

    def announce(path: Path) -> None:
        begun.append(path)
        if kept is not None:
            write_bytes_atomically(path / "options.toml", read_bytes(kept))
        print(f"llmopt: writing to {path}", file=sys.stderr)

    def advice(error: Exception | None = None) -> str:
        command = resume_command("run", _settings(config), begun[0], error)
        return f"everything so far is kept; resume with: {command}"

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            result = run(
                config, out, resume=resume, progress=True, announce=announce, callbacks=callbacks
            )
        except KeyboardInterrupt:
            if not begun:
                raise
            print(f"\nllmopt: stopped; {advice()}", file=sys.stderr)
            return 130
        except (LLMOptError, ImportError) as error:
            if not begun:
                raise
            raise LLMOptError(f"{error}; {advice(error)}") from error
    _show(config, result)
    if result.capped:
        sys.stdout.flush()
        print(clean(f"llmopt: {result.capped}; {advice(result.capped)}"), file=sys.stderr)
    return 0


def _show(config: RunConfig, result: RunResult) -> None:
    """Print the table of a run, its files, and what to try next."""
    print(clean(f"\n{config.task}, seed {config.seed}\n\n{result.table}"))
    note = ""
    if result.drawn is not None and result.best is not None:
        other = result.drawn != result.best
        lead = f"; {result.best.label} is ahead on the starts that choose" if other else ""
        note = f"  (the policy of {result.drawn.label}{lead})"
    for name in ("policy.json", "learning_curve.png", "policy.gif", "trials.jsonl"):
        if (result.path / name).exists():
            print(f"  {result.path / name}{note if name == 'policy.gif' else ''}")
    task, folder = shlex.quote(config.task), shlex.quote(str(result.path))
    print("\nNext:")
    if "llm" in config.methods and config.model in _NUMBERS_ONLY:
        print(f"  llmopt run {task} --model openai:MODEL   ({config.model} is numeric-only; a chat "
              "model reads words and reports; llmopt models: which can be asked)")  # fmt: skip
    again = [w for words in to_give_again(_settings(config)).values() for w in words]
    again += [*raised_cap(result.capped), "--iterations", str(5 * config.iterations)]
    print(f"  llmopt run --resume {folder} {shlex.join(again)}   (resumes this search)")
    print("  llmopt run MODULE:ENV-ID   (your own environment)")


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that a resume would use."""
    settings = {**asdict(config), "warmup": None}  # its points are those of the folder
    if not any(m == "llm" or METHODS[m].asks_model for m in config.methods):
        settings |= {"model": None, "record": None}
    if "llm" not in config.methods:
        settings["prompt"] = None
    return settings


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    from tqdm import tqdm

    tqdm.write(clean(f"llmopt: warning: {' '.join(str(message).split())}"), file=sys.stderr)
