"""The page and the HTTP service: `kedge serve`."""
