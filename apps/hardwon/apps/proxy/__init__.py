"""An OpenAI-compatible proxy that adds recall, guardrails and recording to the chat completions of any client."""
