"""Which images, with which labels and class names; and their pixels."""
