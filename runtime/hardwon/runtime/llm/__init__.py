"""Call chat models, build their prompts, and read their answers."""
