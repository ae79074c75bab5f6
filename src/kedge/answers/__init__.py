"""What follows from the probabilities of a batch: the classes found, a review order, strangers, a verdict."""
