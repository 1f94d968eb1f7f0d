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
from llmopt.client.facts import model_facts
from llmopt.client.model_string import get_client
from llmopt.client.recording import RecordClient
from llmopt.errors import LLMOptError, StorageError
from llmopt.files import check_new_recording
from llmopt.prompt import TemplatePrompt, get_prompt, prompt_for
from llmopt.search.limits import Limits
from llmopt.search.meter import Meter

LEAST_PARAMETERS = 3_000_000_000
"""Models with fewer weights make nothing of a chat prompt."""


class Contestants:
    """The methods of a run, with the model that some of them ask."""

    def __init__(self, config: RunConfig, client: Client | None = None) -> None:
        # by name in `RunConfig.methods`
        self.specs = {name: METHODS[name] for name in config.methods if name in METHODS}
        # the name from which each draws its seed
        self.seed_names = {name: name for name in config.methods}
        self._made = client is None
        asks = len(self.specs) < len(config.methods) or any(
            spec.asks_model for spec in self.specs.values()
        )
        # the model; `None` where no method asks one
        self.client = (get_client(config.model) if self._made else client) if asks else None
        self.model = "baselines" if self.client is None else client_name(self.client)
        if "llm" in config.methods and self.client is not None:
            prompt = prompt_for(config.prompt, model_facts(self.client))
            self.specs["llm"] = prompt_spec(f"{{model}} ({prompt.name})", prompt)
            self.seed_names["llm"] = f"llm-{prompt.name}"
        self.labels = {
            name: self.specs[name].label.format(model=self.model)
            if self.specs[name].asks_model
            else name
            for name in config.methods
        }
        if len(set(self.seed_names.values())) < len(self.seed_names):
            raise RunConfigError(
                f"the methods llm and {self.seed_names['llm']} are the same: leave one of them out"
            )
        prompts = [prompt_name(spec.prompt) for spec in self.specs.values() if spec.asks_model]
        # the names of the prompts that it is asked with
        self.prompt = "+".join(dict.fromkeys(prompts)) or "none"
        self._record, self._max_cost = config.record, config.max_cost
        self.entrants = {
            name: Entrant(name, self.specs[name], self.seed_names[name], config.statistics)
            for name in config.methods
        }

    def check_ready(self, resume: bool) -> None:
        """Look for what the model and its recording need; nothing is sent."""
        if self.client is None:
            return
        Meter(self.client, Limits(max_cost=self._max_cost)).check_ready()
        facts = model_facts(self.client)
        small = facts.parameters is not None and facts.parameters < LEAST_PARAMETERS
        chats = [prompt_name(s.prompt) for s in self.specs.values() if s.asks_model and _chats(s)]
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


def folder_to_resume(options: Mapping[str, Any], model: str | None = None) -> Path:
    """Return the run in ``runs/`` that goes on: the latest that was stopped, else that ended."""
    found: list[tuple[bool, int, Path]] = []
    for file in Path("runs").glob("*/config.json"):
        folder = file.parent
        try:
            stored = read_config(folder)
            config = RunConfig.from_dict(stored["run"])
        except LLMOptError:
            continue
        if not changes(config, options) and model in (None, stored.get("model")):
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
