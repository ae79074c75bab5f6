"""Encoders: pixels and prompts into one space of unit features."""
