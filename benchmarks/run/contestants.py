"""The methods of one run, the model that they ask, and the name of its folder."""

from __future__ import annotations

import re
from pathlib import Path

from llmopt.benchmarks.methods.table import METHODS, MethodSpec, prompt_spec
from llmopt.benchmarks.run.config import RunConfig, RunConfigError
from llmopt.benchmarks.run.folder import is_empty
from llmopt.benchmarks.runner import repeatable
from llmopt.client.base import Client, client_name
from llmopt.client.facts import model_facts
from llmopt.client.registry import get_client
from llmopt.prompt import get_prompt


class Contestants:
    """The methods of a run, with the model that some of them ask.

    Args:
        config: The run.
        client: The model, in place of the one that ``config.model`` names.

    Attributes:
        specs: By name in `RunConfig.methods`.
        labels: What tables and pictures call each.
        seed_names: The name from which each draws its seed.
        client: The model; ``None`` where no method asks one.
        model: Its name.
        prompt: The names of the prompts that it is asked with.

    Raises:
        RunConfigError: Two of the methods are the same.
        LLMOptError: There is no such model or prompt.
    """

    def __init__(self, config: RunConfig, client: Client | None = None) -> None:
        self.specs = {name: METHODS[name] for name in config.methods if name in METHODS}
        self.seed_names = {name: name for name in config.methods}
        self._made = client is None
        asks = len(self.specs) < len(config.methods) or any(
            spec.asks_model for spec in self.specs.values()
        )
        self.client = (get_client(config.model) if self._made else client) if asks else None
        self.model = "baselines" if self.client is None else client_name(self.client)
        if "llm" in config.methods and self.client is not None:
            shown = (
                model_facts(self.client).default_prompt
                if config.prompt == "auto"
                else config.prompt
            )
            prompt = get_prompt(shown)
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
        prompts = [_prompt_name(spec) for spec in self.specs.values() if spec.asks_model]
        self.prompt = "+".join(dict.fromkeys(prompts)) or "none"

    def client_for(self, spec: MethodSpec) -> Client | None:
        """Return the model as one of the methods asks it."""
        if not (spec.asks_model and self._made and self.client is not None):
            return self.client
        return repeatable(self.client, spec.prompt)


def _prompt_name(spec: MethodSpec) -> str:
    return spec.prompt if isinstance(spec.prompt, str) else getattr(spec.prompt, "name", "")


def default_folder(config: RunConfig, contestants: Contestants, resume: bool) -> Path:
    """Name the folder; with `resume`, the newest of that name if there is one."""
    parts = (config.task, contestants.model, contestants.prompt, f"seed{config.seed}")
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", p).strip("-.") for p in parts)
    number = 1
    while not is_empty(_numbered(name, number)):
        number += 1
    return _numbered(name, number - 1 if resume and number > 1 else number)


def _numbered(name: str, number: int) -> Path:
    return Path("runs") / (name if number == 1 else f"{name}-{number}")
