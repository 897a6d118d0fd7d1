"""Prompt formats: how episodes and questions to the roles become token ids."""
