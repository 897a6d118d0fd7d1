"""The HTTP API: the library's public methods as JSON, for other languages and other machines.

`app` creates the application; `hardwon serve` runs it. A route only reads the request, calls the library
and writes the result. `hardwon.memory` documents the library; `hardwon.memory.remote` is the client.
"""
