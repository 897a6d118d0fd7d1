"""What benchmarks share: clocks, tables, intervals over seeds and tasks, and results that an interrupted run keeps."""
