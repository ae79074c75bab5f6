"""Labels in the formats of other programs: one file per program, and `kinds`, the table of them."""
