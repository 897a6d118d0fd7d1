"""What a vLLM server answers to the requests of ServerEngine, by a tiny model of our own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from hardwon.trainers.models.tiny import TinyConfig, build_model

SHAPE = TinyConfig(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=48, context=256)
MODEL = build_model(200, SHAPE)


class FakeVllm:
    """Adapters change nothing but the name that is asked for; `faults` are answered first, one a request."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.asked: list[tuple[str, Any]] = []
        self.keys: set[str | None] = set()
        self.adapters: dict[str, str] = {}
        self.faults: list[tuple[int, Any]] = []
        self.knows_scores = True
        """Whether it has `logprob_token_ids`, as newer servers have."""
        self.processed = False
        """Whether it tells log-probabilities after temperature and masks."""
        self.hold: threading.Event | None = None
        """Completions wait for it."""
        self.url = ""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and body."""
        self.asked.append((path, body))
        if self.faults:
            return self.faults.pop(0)
        if path == "/v1/models":
            loaded = [{"id": name, "parent": "tiny"} for name in self.adapters]
            return 200, {"data": [*loaded, {"id": "tiny", "parent": None}]}
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return 400, {"error": {"message": f"{body['lora_name']} has already been loaded."}}
            self.adapters[body["lora_name"]] = body["lora_path"]
            return 200, "Success"
        if path == "/v1/unload_lora_adapter":
            del self.adapters[body["lora_name"]]
            return 200, "Success"
        if body["model"] not in ("tiny", *self.adapters):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        if self.hold is not None:
            self.hold.wait(10)
        return 200, {"choices": [self.complete(body)]}

    def complete(self, body: Any) -> dict[str, Any]:
        """Greedy decoding, which is what a seed would fix."""
        tokens, said, told, top = list(body["prompt"]), [], [], []
        for _ in range(body["max_tokens"]):
            logits = logits_of(tokens, self.model)[-1]
            if self.processed:
                logits = logits / (body["temperature"] or 1.0)
                if only := body.get("allowed_token_ids"):
                    logits = torch.full_like(logits, -torch.inf).index_copy(0, torch.tensor(only), logits[list(only)])
            row = torch.log_softmax(logits, -1)
            token = int(row.argmax())
            ids = body.get("logprob_token_ids", ()) if self.knows_scores else ()
            said.append(token)
            told.append(float(row[token]))
            top.append({f"token_id:{i}": float(row[i]) for i in (token, *ids)})
            tokens.append(token)
            if token in body.get("stop_token_ids", ()):
                break
        choice: dict[str, Any] = {"token_ids": said, "logprobs": {"token_logprobs": told, "top_logprobs": top}}
        if "prompt_logprobs" in body:
            rows = torch.log_softmax(logits_of(body["prompt"], self.model), -1)
            read = [{str(t): {"logprob": float(rows[at, t])}} for at, t in enumerate(body["prompt"][1:])]
            choice["prompt_logprobs"] = [None, *read]
        return choice


def logits_of(tokens: Any, model: Any = MODEL) -> torch.Tensor:
    """After every token."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)])).logits[0]
    return logits


@contextmanager
def serving(model: Any = MODEL) -> Iterator[FakeVllm]:
    """The fake on a free port."""
    fake = FakeVllm(model)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            asked = self.rfile.read(size)
            if len(asked) < size:
                return  # the client was killed while it sent this
            fake.keys.add(self.headers.get("Authorization"))
            status, body = fake.answer(self.path, json.loads(asked or "null"))
            sent = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            if not isinstance(body, str):
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # with the usual 5, a sixth connection at once waits a second

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
