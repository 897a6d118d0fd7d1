"""How people reach the runtime and the library: the command line and the benchmarks."""
