"""Authentication, limits and error responses of the HTTP API."""
