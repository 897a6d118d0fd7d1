"""Hooks by which coding agents (Claude Code, Codex, Cursor) recall, get warnings, and record by themselves."""
