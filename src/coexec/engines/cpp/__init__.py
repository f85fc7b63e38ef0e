"""Generated kernels as C++ on CPU cores, compiled by the machine's compiler."""
