"""Results of tools that report a failure, and results that report none, for the tests of every door."""

FAILED = [
    # words
    "Error: identity of the customer is not verified", "error", "ERROR - disk full", "❌ Error: no seat",
    "**Error:** no",
    "[ERROR] no access", "Error 404: no order", "Error executing tool refund: no order", "Fehler: kein Konto",
    "An error occurred while booking", "There was an error.", "ValueError: no seat", "KeyError",
    "ValueError('no seat')",
    "sqlite3.OperationalError: no such table: x", "Traceback (most recent call last):\n...",
    "<tool_use_error>File has not been read yet</tool_use_error>", "HTTP 404", "HTTP/1.1 500 Internal Server Error",
    "404 Not Found", "status code: 500", "Failed: no money", "Failed to book the flight", "FAILED", "Permission denied",
    "Access denied.", "Unauthorized", "Forbidden: for admins", "Order A-1 not found.", "Unknown command foo",
    "Invalid order id 'x'", "Cannot refund a flown ticket", "Could not reach the host", "bash: foo: command not found",
    "cat: x: No such file or directory", "fatal: not a git repository", "npm ERR! code 1", "Connection refused",
    "make: *** [all] Error 2",
    "Request failed with status code 404", "Exit code 2\n1 failed", "Exit code: 2\nOutput:\nx", "x\nexit code: 2",
    "Process exited with code 1", "Validation error: 2 fields", "错误：没有订单", "\ufeffError: no order",
    "Booking(success=False, error='not verified')", "success=False error='not verified'",
    # JSON, and Python's literals
    '{"error": "no such order"}', '{"error": {"code": 5, "message": "no"}}', '{"errors": [{"message": "no"}]}',
    '{"data": null, "errors": [{"message": "no"}]}', '{"success": false}', '{"ok": false, "message": "no"}',
    '{"isSuccess": "false"}', '{"status": "error"}', '{"status": "failed", "id": 4}',
    '{"status": 404, "message": "no"}',
    '{"statusCode": 500}', '{"status_code": "503"}', '{"code": 404, "message": "nope"}',
    '{"exit_code": 1, "output": "x"}',
    '{"metadata": {"exit_code": 2}, "output": "1 failed"}', '{"error_message": "no"}', '{"error_code": "E17"}',
    '{"isError": true, "content": [{"type": "text", "text": "no"}]}', '{"timed_out": true}',
    '{"detail": "Not found."}',
    '{"isError": false, "content": [{"type": "text", "text": "Error: no"}]}', '{"message": "Error: no"}',
    '{"result": {"success": false, "reason": "no"}}', '{"data": {"error": "no"}}', '{"result": "Error: no"}',
    '{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}', '"Error: no"',
    "{'success': False, 'error': 'no'}", '[{"type": "text", "text": "{\\"error\\": \\"no\\"}"}]',
]  # fmt: skip
"""Texts of results whose call failed."""

WORKED = [
    "refunded", "", "null", "None", "[]", "{}", "{not json", "No results found.", "There were no errors.", "0 errors",
    "make: done",
    "Error handling in Python: a guide", "Error messages and how to write them", "Error codes of the API",
    "Errors and exceptions in Java", "Error-free code is a myth", "Type I error rates", "Exceptional service",
    "Failed states in the 20th century", "Failure modes of bridges", "Forbidden City opening hours: 9-17",
    "Terror: a history", "404 results found", "HTTP 404 means that the page was not found.", "12 passed, 1 failed",
    "Search results:\n1. Error handling in Python\n2. ValueError: what it is", "def f():\n    raise ValueError('x')",
    "2026-01-01 ERROR db: x\n2026-01-01 INFO ok", "ERROR: disk full\nINFO: retry\nERROR: again", "INFO a\nERROR b",
    "Cannot is a modal verb. " * 20, "Exit code: 0\nError: ignored", "success=True error=None",
    "Process exited with code 0\nOutput:\nTraceback (most recent call last):", '{"error": null}', '{"errors": []}',
    '{"error": ""}', '{"error": false}', '{"error": {}}', '{"error": {"code": 0, "message": ""}}',
    '{"status": "failed_over"}', '{"status": "cancelled", "order": 1}', '{"order": 4, "status": "pending"}',
    '{"status": "ok", "log": "Error: x"}', '{"success": true, "message": "Error: x"}',
    '{"ok": true, "error": "old"}',
    '{"status": 200, "body": "Error: x"}', '{"status": true}', '{"exit_code": 0, "output": "Error: x"}',
    '{"errors": 3, "processed": 97}', '{"failed": 2, "passed": 10}', '{"error": 0.03, "r2": 0.9}',
    '{"error_rate": 0.5}',
    '{"rows": [{"level": "error", "message": "x"}]}', '[{"level": "error", "message": "Error: x"}]', '{"found": false}',
    '{"title": "Error handling", "text": "Error handling in Python is hard."}', '{"code": 450, "name": "filter"}',
    '{"verified": false}', '{"is_error": false, "content": "Error: x"}',
]  # fmt: skip
"""Texts of results whose call worked."""
