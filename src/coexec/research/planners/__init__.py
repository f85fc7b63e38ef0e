"""Planners of the papers, and exact ones, for comparison: entry points of ``coexec.planners``.

cpsat       the whole graph at once, with a lower bound
exhaustive  all plans of a tiny graph: the oracle in tests
hope_ilp    HOPE's integer program on parts of the graph
mulayer     uLayer: each task divided by channels
"""
