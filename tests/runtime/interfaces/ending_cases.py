"""Ways in which a run ends, for the tests of every door: the fields of the last message, and what they say."""

UNFINISHED_REASONS = [
    "length", "max_tokens", "MAX_TOKENS", "FinishReason.MAX_TOKENS", "content_filter", "content-filter", "refusal",
    "pause_turn", "model_context_window_exceeded", "tool_calls", "tool_use", "SAFETY", "a_new_reason", "cancelled",
    "model_length", "guardrail_intervened", "MALFORMED_FUNCTION_CALL", "insufficient_system_resource", "REASON_MAX_LEN",
    "load", "ERROR_TOXIC",
]  # fmt: skip
COMPLETED_REASONS = [
    "stop", "STOP", "FinishReason.STOP", "end_turn", "stop_sequence", "stopstop", "eos", "", None,
    "FINISH_REASON_STOP", "EndTurn", "endoftext", "FINISH", "COMPLETE",
]  # fmt: skip
STATUSES = [
    "incomplete", "cancelled", "failed", "queued", "in_progress", "pending", "interrupted", "aborted", "error",
    "paused", "stopped", "killed", "partially_completed", "awaiting_input", "deadline_exceeded", "error_max_turns",
    "TimedOut", "not_finished",
]  # fmt: skip

LIMITS = [
    "Model call limits exceeded: run limit (3/3)", "'search' tool call limit reached: run limit exceeded (3/2 calls).",
    "Tool call limit reached: thread limit exceeded (5/4 calls).", "Agent stopped due to max iterations.",
    "Sorry, need more steps to process this request.", "API Error: 529 overloaded",
    "Agent stopped due to iteration limit or time limit.", "Maximum number of turns 10 reached.", "Reached max steps.",
    "Max iterations of 20 reached! Partial answer: 4", "Error: Reached max turns (5)", "Max turns (10) exceeded",
    "Tool call limit exceeded. Do not call 'act' again.", "I have run out of steps.", "Stopped after 9 iterations.",
    "The maximum number of turns (10) has been reached, so I have to stop here.", "Error code: 429 - {'error': {}}",
    "I stopped because the maximum number of iterations was reached.", "Rate limit exceeded, please try again later.",
    "Request timed out.", "Operation cancelled by user.", "[Conversation interrupted by user]", "Internal server error",
    "User aborted the request", "stream disconnected before completion", "Context window exceeded", "LLM call failed",
    "This model's maximum context length is 8192 tokens.", "Waiting for approval...", "Run cancelled",
    "Awaiting your confirmation to proceed.", "I'm sorry, but I can't assist with that.",
    "Request was aborted.", "I have used up my budget for this task.", "I was not able to finish: see page 2.",
]  # fmt: skip
"""Answers that a framework writes in the place of the model."""

OPEN_ANSWERS = [
    "I was not able to complete the refund because the API kept failing.", "The task could not be completed.", "TODO",
    "I've hit my usage limit. Please try again tomorrow.", "I'm still waiting for the build to finish.",
    "Unfortunately, I couldn't finish the migration.", "Je n'ai pas pu terminer la tâche.",
    "処理を完了できませんでした。", "Sorry, I can't help with that.",
    "No he podido completar la tarea.", "Ich konnte die Prüfung nicht abschließen.",
    "Should I proceed?", "Sure! Which account should I use?", "Proceed? [y/N]", "Soll ich fortfahren?", "是否继续？",
    "¿Cuál es su número de pedido?", "Voulez-vous que je continue ?", "Hello! How can I assist you?", "続けますか？",
    "I need more information.", "To continue, I need the tracking number.", "Please provide your customer ID.",
    "Bitte geben Sie Ihre Kundennummer an.", "Necesito más información.", "J'ai besoin de votre adresse.",
    "请提供订单号。",
    "Мне нужна дополнительная информация.", "注文番号を教えてください。", "Approval needed.", "Ho bisogno di un'email.",
    "Let me check...", "Hmm, that did not work. Let me try again.", "Order 7 was sent. Let me check its status.",
    "The tests fail in two places. Now I'll fix the second one.", "Now I'll run the tests.", "One moment please.",
    "Checking the stock...", "Let me fix the rest:", "Ich werde jetzt die Datenbank abfragen.", "让我检查一下。",
    "Сейчас проверю статус заказа.", "Voy a comprobar el pedido.", "確認いたします。", "확인하겠습니다.",
    "Posso verificar isso?",
    "null", "undefined", "{}", "[{}]", '{"answer": null}', '{"answer": "", "data": {}}', "```json\n{}\n```", '""',
    "```python\n```", "<answer></answer>", "Final Answer:", "Thought: I should look\nAction: search[Paris]",
]  # fmt: skip
"""Whole texts that only ask, say what is to come or missing, or are empty."""
CLOSED_ANSWERS = [
    "The customer cannot be refunded because the ticket was flown; I told them so.",
    "I couldn't find any open tickets.",
    "I could not reproduce the error. It was fixed in 2.1.", "No he podido encontrar facturas de mayo.",
    "I've cancelled the order. Is there anything else I can help you with?", "What is a monad? A monoid.", "Yes",
    "Here is the translation: \"Soll ich fortfahren?\"", "Dear Bob,\nwhich account should I use?",
    "None of them match.",
    "Let me explain: the lockfile was stale.", "I will remember that.", "I'll be happy to help again.", "sure",
    "I need to inform you that it has shipped.", "Please restart the server.", "Please find the report attached.",
    "Let me know how it goes!", "Now the tests pass.", "Next, press the red button.", "One minute has 60 seconds.",
    "To proceed, click Next.", "Waiting for the bus took an hour.", "1, 2, 3, ...", "The capital is Paris...", "OK.",
    "The value is null.", '{"count": 0}', '{"items": []}', '{"ok": false}', '[null, 4]', "[1]", "x = {}",
    "SELECT * FROM orders WHERE id = ?", "https://example.com/?q=1", "Erledigt. Kann ich sonst helfen?",
    "我们需要三天。",
    "正在运行的服务有三个。", "Нужно перезапустить сервер.", "Un momento histórico fue la caída.",
    "已取消。还需要什么吗？",
]  # fmt: skip
"""Whole texts that answer, however much they look like the others."""

UNFINISHED_MESSAGES = [
    *({"content": "It is", "finish_reason": reason} for reason in UNFINISHED_REASONS),
    *({"content": "It is", "stop_reason": reason} for reason in UNFINISHED_REASONS),
    *({"content": "It is", "status": status} for status in STATUSES),
    *({"content": text} for text in (*LIMITS, *OPEN_ANSWERS)),
    {"content": "It is", "response_metadata": {"finish_reason": "length"}},
    {"content": "It is", "response_metadata": {"stop_reason": "max_tokens"}},
    {"content": "It is", "response_metadata": {"status": "incomplete", "incomplete_details": {"reason": "x"}}},
    {"content": "", "additional_kwargs": {"refusal": "I can't."}},
    {"content": "No.", "refusal": "I can't."},
    {"content": [{"type": "refusal", "refusal": "I can't."}]},
    {"content": "It is", "response_metadata": {"done": False}},
    {"content": "It is", "response_metadata": {"generation_info": {"finish_reason": "length"}}},
    {"content": "It is", "response_metadata": {"choices": [{"finish_reason": "length"}]}},
    {"content": [{"type": "thinking", "thinking": "Where is it?"}]},
    {
        "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "2", "name": "act", "input": {}},
        ]
    },
    {"content": "\u200b"},
    *({"content": text} for text in ("...", "[]", "<|im_end|>", "(no content)", "[truncated]", "—", "<|eot_id|> ...")),
    *({"content": text} for text in ("<think>I should call", "<think>\nSo\n</think>\n\n", "<thinking>a</thinking>")),
    {"content": 'Let me look.\n<tool_call>{"name": "act"}\n</tool_call>'},
    {"content": [{"type": "text", "text": '[TOOL_CALLS][{"name": "act"}]'}]},
    {"content": "<function=act>{}</function>"},
    {"content": "<｜tool▁calls▁begin｜>act"},
    {"content": ""},
    {"content": None},
    {"content": "Let me look.", "invalid_tool_calls": [{"name": "act", "args": "{", "id": "9", "error": "not JSON"}]},
]
"""Fields of a last message of the assistant that is no whole answer."""

COMPLETED_MESSAGES = [
    *({"content": "Done.", "finish_reason": reason} for reason in COMPLETED_REASONS),
    *({"content": "Done.", "stop_reason": reason} for reason in COMPLETED_REASONS),
    {"content": "Done.", "refusal": None, "status": "completed", "response_metadata": {"finish_reason": "stop"}},
    *({"content": text} for text in CLOSED_ANSWERS),
    {"content": "The call limit was not reached, and nothing failed."},
    {"content": "The maximum number of steps is now 5, and the API error is gone."},
    {"content": "I did finish it, and used up all the paint."},
    {"content": "The delivery time exceeded expectations."},
    {"content": [{"type": "thinking", "thinking": "Where is it?"}, {"type": "text", "text": "Done."}]},
    {"content": [{"type": "text", "text": "Done."}]},
    *({"content": text} for text in ("42", "✅", "👍", "是", "≥", "None", "<b>Done</b>", "<think>a</think>Done.")),
    {"content": "The rate limit is 5 per minute, and requests that timed out are sent again."},
    {"content": "Waiting time is 5 minutes. The approval is in the file."},
    {"content": "I'm sorry to hear that; the order was cancelled, and the request for a refund is sent."},
    {"content": "Models write `<tool_call>` in such a text."},
    {"content": "An example:\n```\n<tool_call>{}</tool_call>\n```"},
    {"content": "The model's context window is 8192 tokens."},
]
