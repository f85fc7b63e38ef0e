"""Exports: folders with a model, its plan and compiled parts. `coexec export` writes them; sessions
and verbs open them, in other processes and on other machines."""
