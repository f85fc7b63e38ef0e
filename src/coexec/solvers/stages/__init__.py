"""What planners of pipelines share.

rows      a graph as numbers: which rows of its inputs each row of a task needs
bodies    tasks that some machines compute together: what a share of rows computes, reads, makes
pieces    a graph as a chain of pieces (PICO's Algorithm 1), exact
wide      the same for graphs that are too wide for that
blocks    a graph as a chain of blocks
network   what messages keep occupied, and the models of a stage's time
table     the times of all stages on equal machines
period    pieces to stages on equal machines (Algorithm 2), exact
balance   rows for unlike machines that finish together
unlike    stages for unlike machines (Algorithm 3), and machines and pieces moved between stages
building  from tasks, machines and rows to the stages of a plan
"""
