"""One self-contained page about a model: the chosen plan, the reasons, and the times."""
