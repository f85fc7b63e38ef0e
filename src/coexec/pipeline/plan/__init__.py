"""Plans of several machines: one model as a pipeline of stages.

plan      the stored data: stages, leaders, shares
flow      computations and messages for one frame, and their dependencies
work      useful and redundant work of each share
memory    bytes that each machine needs
verify    checks of a plan
"""
