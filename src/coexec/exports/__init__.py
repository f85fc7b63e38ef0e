"""Exports: folders with a model, its plan and what was compiled for it, that other processes and
machines start from. `coexec export` writes them, sessions and verbs open them."""
