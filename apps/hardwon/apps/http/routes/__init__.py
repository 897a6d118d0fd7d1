"""Answer the requests of the HTTP API."""
