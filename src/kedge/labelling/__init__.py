"""Label images or features: adapt, Stream, classify, and what their results can do."""
