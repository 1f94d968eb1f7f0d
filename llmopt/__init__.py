"""llmopt: a large language model as a black-box optimizer.

`minimize`, `maximize` and `optimize` run a whole search in one call; with `LLMOptimizer` you write
the loop, with `ask` and `tell`. Everything here is imported when first used, so that ``import
llmopt`` stays light.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt._version import __version__ as __version__
from llmopt.util.logs import use_last_resort

# In a checkout, adapters/ and benchmarks/ lie beside this folder; an installed package holds them.
_root = Path(__file__).resolve().parents[1]
if (_root / "pyproject.toml").is_file() and (_root / "adapters").is_dir():
    __path__.append(str(_root))

use_last_resort()

if TYPE_CHECKING:
    from llmopt.client import Client as Client
    from llmopt.client import Completion as Completion
    from llmopt.client import Message as Message
    from llmopt.client import RecordClient as RecordClient
    from llmopt.client import ReplayClient as ReplayClient
    from llmopt.client import Reply as Reply
    from llmopt.client import Request as Request
    from llmopt.client import ScriptedClient as ScriptedClient
    from llmopt.client import get_client as get_client
    from llmopt.client.local.local import LocalClient as LocalClient
    from llmopt.data import Evaluation as Evaluation
    from llmopt.errors import BudgetExceededError as BudgetExceededError
    from llmopt.errors import ClientError as ClientError
    from llmopt.errors import FallbackWarning as FallbackWarning
    from llmopt.errors import LLMOptError as LLMOptError
    from llmopt.errors import MissingKeyError as MissingKeyError
    from llmopt.errors import ModelNotFoundError as ModelNotFoundError
    from llmopt.errors import NoTrialsError as NoTrialsError
    from llmopt.errors import ParameterError as ParameterError
    from llmopt.errors import ParseError as ParseError
    from llmopt.errors import PromptTooLongError as PromptTooLongError
    from llmopt.errors import RewardError as RewardError
    from llmopt.errors import SearchStopped as SearchStopped
    from llmopt.errors import SpaceError as SpaceError
    from llmopt.errors import StorageError as StorageError
    from llmopt.errors import TemplateError as TemplateError
    from llmopt.history import History as History
    from llmopt.history import Proposal as Proposal
    from llmopt.history import Trial as Trial
    from llmopt.history import Usage as Usage
    from llmopt.loop import SearchResult as SearchResult
    from llmopt.loop import maximize as maximize
    from llmopt.loop import minimize as minimize
    from llmopt.loop import optimize as optimize
    from llmopt.optimizer import LLMOptimizer as LLMOptimizer
    from llmopt.prompt import Prompt as Prompt
    from llmopt.prompt import get_prompt as get_prompt
    from llmopt.prompt.answer_reader import parse_parameters as parse_parameters
    from llmopt.reports import report as report
    from llmopt.space import Categorical as Categorical
    from llmopt.space import Float as Float
    from llmopt.space import Int as Int
    from llmopt.space import Space as Space

_HOMES = {
    "llmopt.client": "Client Completion Message RecordClient ReplayClient Reply Request "
    "ScriptedClient get_client",
    "llmopt.client.local.local": "LocalClient",
    "llmopt.data": "Evaluation",
    "llmopt.errors": "BudgetExceededError ClientError FallbackWarning LLMOptError MissingKeyError "
    "ModelNotFoundError NoTrialsError ParameterError ParseError PromptTooLongError RewardError "
    "SearchStopped SpaceError StorageError TemplateError",
    "llmopt.history": "History Proposal Trial Usage",
    "llmopt.loop": "SearchResult maximize minimize optimize",
    "llmopt.optimizer": "LLMOptimizer",
    "llmopt.prompt.answer_reader": "parse_parameters",
    "llmopt.prompt": "Prompt get_prompt",
    "llmopt.reports": "report",
    "llmopt.space": "Categorical Float Int Space",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted((*_HOME_OF, "__version__"))


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'llmopt' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
