"""The HTTP API: the library's public methods as JSON, for programs in any language and on other machines.

`app` makes the application; `hardwon serve` runs it. A route is a door: it reads the request, calls the
library, writes what it said. What a library is, is in `hardwon.memory`; its client is `hardwon.memory.remote`.
"""
