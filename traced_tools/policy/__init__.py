"""Policies: rules that allow or deny tool calls by tool, caller and arguments."""
