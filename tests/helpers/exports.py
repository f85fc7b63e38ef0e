"""Exports of public architectures, which lie beside some checkouts."""

from pathlib import Path

__all__ = ["EXPORTS"]

EXPORTS = Path(__file__).parents[2].parent / "shared" / "models"
"""Weightless models of fifteen networks."""
