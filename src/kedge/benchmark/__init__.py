"""Benchmarks: scenarios, plans, scores and records."""
