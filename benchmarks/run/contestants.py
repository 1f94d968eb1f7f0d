"""The methods of one run, the model that they ask, and the name of its folder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmopt.benchmarks.engine.asking import Announced, prompt_name, repeatable
from llmopt.benchmarks.engine.contest import Entrant
from llmopt.benchmarks.methods.table import METHODS, MethodSpec, prompt_spec
from llmopt.benchmarks.run.config import RunConfig, RunConfigError, changes
from llmopt.benchmarks.run.folder import SUMMARY, is_empty, read_config
from llmopt.client.base import Client, client_name
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client
from llmopt.client.record_replay import RecordClient
from llmopt.errors import LLMOptError, StorageError
from llmopt.lab.blocks import check_compute
from llmopt.prompt import TemplatePrompt, get_prompt, prompt_for
from llmopt.search.limits import Limits
from llmopt.search.meter import Meter
from llmopt.util.files import check_new_recording

LEAST_PARAMETERS = 3_000_000_000
"""Models with fewer weights make nothing of a chat prompt."""


class Contestants:
    """The methods of a run, with the model that some of them ask; `client` replaces the config's.

    Attributes:
        entrants: The methods as they take part, by name in `RunConfig.methods`.
        labels: What tables and pictures call each.
        client: The model; ``None`` where no method asks one.
        model: Its name.
        prompt: The names of the prompts that it is asked with.
    """

    def __init__(self, config: RunConfig, client: Client | None = None) -> None:
        asks = [m for m in config.methods if m == "llm" or METHODS[m].asks_model]
        self._made = client is None
        self.client = (get_client(config.model) if self._made else client) if asks else None
        self.model = "baselines" if self.client is None else client_name(self.client)
        self.entrants: dict[str, Entrant] = {}
        for name in config.methods:
            spec, seed_name = METHODS.get(name), name
            if spec is None and self.client is not None:
                prompt = prompt_for(config.prompt, model_facts(self.client))
                if config.compute is True:
                    check_compute(prompt)
                spec = prompt_spec(f"{{model}} ({prompt.name})", prompt)
                seed_name = f"llm-{prompt.name}"
            if spec is not None:
                self.entrants[name] = Entrant(name, spec, seed_name, config.statistics)
        specs = {name: entrant.spec for name, entrant in self.entrants.items()}
        self.labels = {
            n: s.label.format(model=self.model) if n in asks else n for n, s in specs.items()
        }
        seeds = [entrant.seed_name for entrant in self.entrants.values()]
        if len(set(seeds)) < len(seeds):
            raise RunConfigError(
                f"the methods llm and {self.entrants['llm'].seed_name} are the same: leave one of "
                "them out"
            )
        prompts = [prompt_name(specs[name].prompt) for name in asks]
        self.prompt = "+".join(dict.fromkeys(prompts)) or "none"
        self._asked = [specs[name] for name in asks]
        self._record, self._max_cost = config.record, config.max_cost

    def check_ready(self, resume: bool) -> None:
        """Look for what the model and its recording need; nothing is sent."""
        if self.client is None:
            return
        Meter(self.client, Limits(max_cost=self._max_cost)).check_ready()
        facts = model_facts(self.client)
        small = facts.parameters is not None and facts.parameters < LEAST_PARAMETERS
        chats = [prompt_name(spec.prompt) for spec in self._asked if _chats(spec)]
        if small and chats:
            suits = facts.default_prompt not in chats
            other = f"--prompt {facts.default_prompt} suits it, or take" if suits else "take"
            warnings.warn(
                f"{self.model} has {(facts.parameters or 0) / 1e6:,.0f} million weights, too few "
                f"for the prompt {', '.join(chats)}: expect slow answers, and points no better "
                f"than random ones: {other} a larger model",
                stacklevel=3,
            )
        if self._record is not None:
            check_new_recording(Path(self._record), begun=resume)

    def client_for(self, spec: MethodSpec, say: Callable[[int], None]) -> Client | None:
        """Return the model as a method asks it; `say` hears each request's number, then 0."""
        client = self.client
        if client is None or not spec.asks_model:
            return client
        if self._made:
            client = repeatable(client, spec.prompt)
        if self._record is not None:
            client = RecordClient(client, self._record)
        return Announced(client, lambda number, _: say(number)) if _chats(spec) else client

    def close(self) -> None:
        """Close the model where it was made here."""
        close = getattr(self.client, "close", None)
        if self._made and callable(close):
            close()


def _chats(spec: MethodSpec) -> bool:
    return spec.prompt is not None and isinstance(get_prompt(spec.prompt), TemplatePrompt)


def default_folder(config: RunConfig, contestants: Contestants) -> Path:
    """Name the folder of a new run."""
    parts = (config.task, contestants.model, contestants.prompt, f"seed{config.seed}")
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", p).strip("-.") for p in parts)
    number = 1
    while not is_empty(_numbered(name, number)):
        number += 1
    return _numbered(name, number)


def folder_to_resume(options: Mapping[str, Any]) -> Path:
    """Return the run in ``runs/`` to resume: the latest that was interrupted, else the latest."""
    found: list[tuple[bool, int, Path]] = []
    for file in Path("runs").glob("*/config.json"):
        folder = file.parent
        try:
            config = RunConfig.from_dict(read_config(folder)["run"])
        except LLMOptError:
            continue
        if not changes(config, options):
            latest = max(path.stat().st_mtime_ns for path in folder.iterdir())
            found.append((not (folder / SUMMARY).exists(), latest, folder))
    if not found:
        raise StorageError(
            f"--resume: runs/ holds no run of {options['task']} with these options: give its "
            "folder with --out, or leave --resume out to begin one"
        )
    return max(found)[2]


def _numbered(name: str, number: int) -> Path:
    return Path("runs") / (name if number == 1 else f"{name}-{number}")
