"""Retrieval from public memory data sets, with hardwon, BM25, exact vector search, mem0 and LangMem in one run."""
