"""Features: what an encoder makes of images and class names, in memory and in files."""
