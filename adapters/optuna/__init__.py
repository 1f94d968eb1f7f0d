"""A language model as an Optuna sampler."""

from llmopt.errors import install_hint

try:
    from llmopt.adapters.optuna.sampler import LLMSampler
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise ImportError(
        f"llmopt.adapters.optuna needs Optuna: {install_hint('optuna')}", name="optuna"
    ) from error

__all__ = ["LLMSampler"]
