"""The methods of one run, and the model that they ask."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmopt.benchmarks.engine.asking import Announced, prompt_name, repeatable, usual_batch
from llmopt.benchmarks.engine.contest import Contest, Entrant
from llmopt.benchmarks.methods.table import METHODS, Asking, MethodSpec, prompt_spec
from llmopt.benchmarks.run.config import RunConfig, RunConfigError
from llmopt.client.base import Client, check_ready, client_name
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client
from llmopt.client.recordings import RecordClient
from llmopt.commands.estimate import estimate
from llmopt.history import Usage
from llmopt.prompt import TemplatePrompt, get_prompt, prompt_for
from llmopt.util.closing import Closing
from llmopt.util.files import check_new_recording

LEAST_PARAMETERS = 3_000_000_000
"""Models with fewer weights cannot use a chat prompt."""


class Contestants(Closing):
    """The methods of a run, with the model that some of them ask; `client` replaces the config's.

    Attributes:
        entrants: The methods as they take part, by name in `RunConfig.methods`.
        labels: Their names in tables and pictures.
        client: The model; ``None`` if no method asks one.
        model: Its name.
        prompt: The names of the prompts that it is asked with.
    """

    def __init__(self, config: RunConfig, client: Client | None = None) -> None:
        asks = [m for m in config.methods if m == "llm" or METHODS[m].asks_model]
        self._config, self._made = config, client is None
        self.client = (get_client(config.model) if self._made else client) if asks else None
        self.model = "baselines" if self.client is None else client_name(self.client)
        self.entrants: dict[str, Entrant] = {}
        for name in config.methods:
            spec, seed_name = METHODS.get(name), name
            if spec is None and self.client is not None:
                prompt = prompt_for(config.prompt, model_facts(self.client))
                spec = prompt_spec(f"{{model}} ({prompt.name})", prompt)
                seed_name = f"llm-{prompt.name}"
            if spec is not None:
                self.entrants[name] = Entrant(name, spec, seed_name)
        self.labels = {
            name: entrant.spec.label.format(model=self.model) if name in asks else name
            for name, entrant in self.entrants.items()
        }
        seeds = [entrant.seed_name for entrant in self.entrants.values()]
        if len(set(seeds)) < len(seeds):
            raise RunConfigError(
                f"the methods llm and {self.entrants['llm'].seed_name} are the same: omit one of "
                "them"
            )
        self._asked = [self.entrants[name].spec for name in asks]
        prompts = [prompt_name(spec.prompt) for spec in self._asked]
        self.prompt = "+".join(dict.fromkeys(prompts)) or "none"

    def check_ready(self, contest: Contest, resume: bool) -> None:
        """Check what the model, its prompts and its recording need; nothing is sent."""
        if self.client is None:
            return
        check_ready(self.client)
        for name in self.entrants:
            contest.check(name, self.asking(name))
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
        if self._config.record is not None:
            check_new_recording(Path(self._config.record), begun=resume)

    def asking(
        self,
        name: str,
        storage: Path | None = None,
        say: Callable[[bool], None] | None = None,
        usage: Mapping[str, Usage] | None = None,
    ) -> Asking:
        """Return how a method asks its model.

        Args:
            name: The method.
            storage: File of the model's side; without one nothing is recorded.
            say: Is called before and after each request with whether one waits for its answer.
            usage: Of the methods so far: the caps hold for all methods together.
        """
        spec, client, config = self.entrants[name].spec, self.client, self._config
        options: dict[str, Any] = {
            "storage": storage,
            "may_stop": self.entrants[name].named,
            "compute": config.compute if name == "llm" else "auto",
            "compute_packages": config.compute_packages,
        }
        if spec.asks_model and client is not None:
            spent = [u for n, u in (usage or {}).items() if self.entrants[n].spec.asks_model]
            caps = {
                "max_requests": sum(u.requests for u in spent),
                "max_tokens": sum(u.prompt_tokens + u.completion_tokens for u in spent),
                "max_cost": sum(u.cost or 0.0 for u in spent),
            }
            for cap, used in caps.items():
                most = getattr(config, cap)
                options[cap] = None if most is None else max(most - used, 0)
            if self._made:
                client = repeatable(client, spec.prompt)
            if config.record is not None and storage is not None:
                client = RecordClient(client, config.record)
            if say is not None and _chats(spec):
                client = Announced(client, lambda number, _: say(number > 0))
        return Asking(client, config.batch or usual_batch(spec.prompt), options)

    def estimate(self, parameters: int) -> str:
        """Return the estimate of the requests and the cost of ``"llm"`` in one line."""
        config = self._config
        if self.client is None or "llm" not in self.entrants:
            return ""
        entrant = self.entrants["llm"]
        return estimate(
            self.client,
            entrant.spec.prompt or "auto",
            evaluations=config.iterations,
            parameters=parameters,
            points=config.batch or usual_batch(entrant.spec.prompt),
            feedback=entrant.reads,
            compute=None if config.compute == "auto" else config.compute,
            max_cost=config.max_cost,
        ).summary()

    def close(self) -> None:
        """Close the model if it was made here."""
        if self._made and self.client is not None:
            getattr(self.client, "close", lambda: None)()


def _chats(spec: MethodSpec) -> bool:
    return spec.prompt is not None and isinstance(get_prompt(spec.prompt), TemplatePrompt)
