"""Banks of teams and stored values of applications, in a shared library beside experience."""
