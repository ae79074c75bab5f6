"""For people: images or features in, labels out."""
