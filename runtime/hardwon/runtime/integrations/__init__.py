"""Integrations that add experience to LangChain and LangGraph applications."""
