"""Time limits and thresholds of a cluster's session."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Times in seconds, and thresholds as ratios."""

    silence_s: float = 3.2
    """Silence after which a machine counts as lost."""
    message_s: float = 2.0
    """Time limit of a message, beside the transfer time of its bytes; a late one is reported."""
    look_s: float = 0.25
    """Time between two checks of the machines."""
    join_s: float = 1.0
    """Time between two searches for new machines."""
    rest_s: float = 5.0
    """Shortest time between two changes of plan that only gain speed."""
    gain: float = 0.1
    """Share of the period that such a change must save."""
    drift: float = 0.25
    """Relative change of a machine's speed that leads to a new plan."""
    deploy_s: float = 300.0
    """Time limit for machines to receive weights and open sessions."""
