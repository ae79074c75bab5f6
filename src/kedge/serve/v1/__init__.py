"""The service for programs, under /v1: label a batch, or a stream of batches."""
