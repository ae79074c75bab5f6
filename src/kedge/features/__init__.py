"""Features: the output of an encoder for images and class names, in memory and in files."""
