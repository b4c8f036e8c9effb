"""Tell a photograph's path through a model in steps: texts, exercises and numbers, which the page shows."""
