"""Late feedback: outcomes and corrections that a person or a program gives after an episode was recorded."""
