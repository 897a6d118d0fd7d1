"""Choose an action: from past returns, or with a chat model."""
