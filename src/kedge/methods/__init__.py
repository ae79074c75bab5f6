"""Methods: one paper, one file. `contract` says what a method is, `registry` which there are."""
