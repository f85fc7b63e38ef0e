"""One self-contained page about a model: what was chosen, why, and how long it takes."""
