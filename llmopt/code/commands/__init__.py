"""``llmopt code`` and ``llmopt reward``: options, run folder and page."""
