"""Chat models: clients, prompts, structured answers, and the extractor."""
