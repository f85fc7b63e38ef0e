"""Division of tasks between devices: shares, their costs, and chains of divided tasks."""
