"""Plans of several machines: one model as a pipeline of stages.

plan      what is stored: stages, leaders, shares
flow      what follows of it for one frame: computations and messages, and what waits for what
work      what each share computes, useful and redundant
memory    what each machine holds
verify    what a plan must keep
"""
