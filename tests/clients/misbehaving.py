"""A server that answers wrongly, slowly or not at all, for the tests of our clients."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def http(status, content, **headers):
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "Connection: close", "", ""]).encode() + content


@contextmanager
def misbehaving(answer, first=None):
    """Serve one answer to every request, or to every one but the first; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        count = 0

        def log_message(self, *args):
            pass

        def handle_one_request(self):
            self.close_connection = True
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            Handler.count += 1
            content = first if first is not None and Handler.count == 1 else answer
            for part in content if isinstance(content, list) else [content]:
                self.wfile.write(part)
                if isinstance(content, list) and stop.wait(0.02):
                    return

    stop = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        stop.set()
        server.shutdown()
        thread.join()
        server.server_close()
