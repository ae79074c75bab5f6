"""The same work on more than one machine, with Ray: extraction, benchmarks, and one joint solve."""
