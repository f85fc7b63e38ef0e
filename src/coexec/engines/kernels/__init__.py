"""Kernels as text and numbers: the generators, and the network that they compute. No driver.

A kernel file has a function ``launches(node, context)`` and the rows that it adds to the registry,
``KERNELS``. The function builds a text with its arguments (`base.Source`):

* ``source.read("x", context.operand(name))`` declares an input, `epilogue.Output` the result with
  the element-wise operators that are fused behind. The text reaches elements by coordinates
  (``AT_x``), so it is right for row-major tensors and for blocks of channels.
* `elements` has the loops for a result that is computed element by element, `row_kernel` those for
  kernels that iterate over rows, `window_loops` those over sliding windows.
* `value` has expressions of coordinates and positions.

An element-wise operator is an expression in `expressions`, and has no file of its own. Any other
operator has a kernel file, which `operators` lists, its rule in `coexec.graph.rules`, and random
cases (docs/guides/kernel.md). A test fails where one of them is missing.
`building.build` makes the launches of a module from a table of kernels; a driver, such as
`coexec.engines.cpp`, `cuda` or `opencl`, compiles and runs them.
"""
