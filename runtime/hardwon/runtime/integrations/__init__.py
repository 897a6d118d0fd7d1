"""Plug experience into LangChain and LangGraph applications."""
