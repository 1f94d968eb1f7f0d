"""``llmopt code`` and ``llmopt reward``: tasks, options, run folder and page."""
