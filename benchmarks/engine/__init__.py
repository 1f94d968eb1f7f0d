"""The engine of all benchmarks: a loop, a contest of methods, finalists, a pool of cells."""
