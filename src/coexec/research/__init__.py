"""What reproduces the papers: networks, phones, planners, the predictor, strategies for memory.

No other room imports it.
"""
