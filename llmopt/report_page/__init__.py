"""The page of a search: Optuna's figures, and the trials with the model's words."""
