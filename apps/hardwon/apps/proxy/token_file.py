"""Write the tokens of model calls to a file of JSON lines, for training.

A line is written for each response with tokens: `token_ids` (vLLM with `return_token_ids`) or log-probabilities. It has
the id of the episode, whose outcome the library keeps.
"""

import json
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TOKEN_ID = re.compile(r"token_id:(\d+)")
"""A token as vLLM writes it with `return_tokens_as_token_ids`."""


class TokenFile:
    """A file of JSON lines to which several threads append."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        # Only its owner reads it: it has prompts and answers word for word.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))

    def add(self, episode: str, request: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
        """Write a line if the response has tokens, and return whether it does."""
        tokens = extract_tokens(response)
        if not tokens:
            return False
        choice = response["choices"][0]
        line = {
            "episode": episode,
            "at": time.time(),
            "model": response.get("model") or request.get("model"),
            "request": dict(request),
            "message": choice["message"],
            "finish_reason": choice.get("finish_reason"),
            **tokens,
            "usage": response.get("usage"),
        }
        data = json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n"
        with self._lock, self._path.open("ab") as file:
            file.write(data)
        return True


def extract_tokens(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return `prompt_token_ids`, `token_ids`, `tokens` and `logprobs` of a response, as far as it has them."""
    choice = response["choices"][0]
    entries = (choice.get("logprobs") or {}).get("content") or ()
    # vLLM puts the ids of the prompt into the response, other servers into the choice.
    prompt = response.get("prompt_token_ids") or choice.get("prompt_token_ids")
    tokens: dict[str, Any] = {}
    if choice.get("token_ids"):
        tokens["token_ids"] = list(choice["token_ids"])
    if entries:
        matches = [_TOKEN_ID.fullmatch(str(entry.get("token"))) for entry in entries]
        if "token_ids" not in tokens and all(matches):
            tokens["token_ids"] = [int(match[1]) for match in matches if match]
        tokens["tokens"] = [entry.get("token") for entry in entries]
        tokens["logprobs"] = [entry.get("logprob") for entry in entries]
    if prompt and tokens:
        tokens["prompt_token_ids"] = list(prompt)
    return tokens
