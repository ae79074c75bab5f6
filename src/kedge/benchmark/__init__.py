"""For science: scenarios, plans, scores and records."""
