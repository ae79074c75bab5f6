"""Encoders: images and prompts to unit features in one space."""
