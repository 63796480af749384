"""Advisors: what stands around the model and around each tool."""
