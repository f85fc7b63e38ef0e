"""Exported models of public architectures. They are in a folder beside some checkouts only."""

from pathlib import Path

EXPORTS = Path(__file__).parents[2].parent / "shared" / "models"
"""Folder with models of fifteen networks, without weights."""
