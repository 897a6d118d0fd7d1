"""What teams and applications keep in a shared library beside experience: banks, and values of stores."""
