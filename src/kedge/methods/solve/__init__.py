"""Mathematics that several methods share, and the compiled solver."""
