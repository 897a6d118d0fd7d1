"""Generate tokens with transformers or vLLM, in process or over a server."""
