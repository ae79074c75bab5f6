"""Images: their paths, labels and class names, and their pixels."""
