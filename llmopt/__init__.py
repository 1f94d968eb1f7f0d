"""llmopt: a large language model as a black-box optimizer.

`minimize` and `maximize` are a search in one call; `LLMOptimizer` is one with `ask` and `tell`.
Everything here is imported when first used, so that ``import llmopt`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llmopt._version import __version__

if TYPE_CHECKING:
    from llmopt.client import (
        Client,
        Completion,
        Message,
        RecordClient,
        ReplayClient,
        Reply,
        Request,
        ScriptedClient,
        get_client,
    )
    from llmopt.client.local import LocalClient
    from llmopt.errors import (
        BudgetExceededError,
        ClientError,
        FallbackWarning,
        LLMOptError,
        MissingKeyError,
        ModelNotFoundError,
        NoTrialsError,
        ParameterError,
        ParseError,
        PromptTooLongError,
        RewardError,
        SearchStopped,
        SpaceError,
        StorageError,
        TemplateError,
    )
    from llmopt.history import History, Proposal, Trial, Usage
    from llmopt.loop import SearchResult, maximize, minimize
    from llmopt.optimizer import LLMOptimizer
    from llmopt.prompt import Prompt, get_prompt
    from llmopt.prompt.answer import parse_parameters
    from llmopt.search.emitter import Proposer
    from llmopt.space import Categorical, Float, Int, Space

_HOMES = {
    "llmopt.client": "Client Completion Message RecordClient ReplayClient Reply Request "
    "ScriptedClient get_client",
    "llmopt.client.local": "LocalClient",
    "llmopt.errors": "BudgetExceededError ClientError FallbackWarning LLMOptError MissingKeyError "
    "ModelNotFoundError NoTrialsError ParameterError ParseError PromptTooLongError RewardError "
    "SearchStopped SpaceError StorageError TemplateError",
    "llmopt.history": "History Proposal Trial Usage",
    "llmopt.loop": "SearchResult maximize minimize",
    "llmopt.optimizer": "LLMOptimizer",
    "llmopt.prompt.answer": "parse_parameters",
    "llmopt.prompt": "Prompt get_prompt",
    "llmopt.search.emitter": "Proposer",
    "llmopt.space": "Categorical Float Int Space",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BudgetExceededError",
    "Categorical",
    "Client",
    "ClientError",
    "Completion",
    "FallbackWarning",
    "Float",
    "History",
    "Int",
    "LLMOptError",
    "LLMOptimizer",
    "LocalClient",
    "Message",
    "MissingKeyError",
    "ModelNotFoundError",
    "NoTrialsError",
    "ParameterError",
    "ParseError",
    "Prompt",
    "PromptTooLongError",
    "Proposal",
    "Proposer",
    "RecordClient",
    "ReplayClient",
    "Reply",
    "Request",
    "RewardError",
    "ScriptedClient",
    "SearchResult",
    "SearchStopped",
    "Space",
    "SpaceError",
    "StorageError",
    "TemplateError",
    "Trial",
    "Usage",
    "__version__",
    "get_client",
    "get_prompt",
    "maximize",
    "minimize",
    "parse_parameters",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'llmopt' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
