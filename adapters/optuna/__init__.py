"""A language model as an Optuna sampler."""

try:
    from llmopt.adapters.optuna.sampler import LLMSampler
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise ImportError(
        'llmopt.adapters.optuna needs Optuna: pip install "llmopt[optuna]"', name="optuna"
    ) from error

__all__ = ["LLMSampler"]
