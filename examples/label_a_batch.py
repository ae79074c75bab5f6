"""Label a batch of images from their features, and see which labels changed. The features here are simulated."""

import kedge

features = kedge.simulate(n=200, k=50, k_eff=5, seed=1)  # or kedge.FeatureSet.load("features.safetensors")

result = kedge.adapt(features)  # or kedge.adapt(image_features, text_features), two arrays
before = result.zero_shot.argmax(1)
print(f"{int((result.labels != before).sum())} of {len(features)} labels changed")
print(f"about {result.info['effective_classes']:.0f} of {features.head.k} classes are in this batch")
print(f"right before: {float((before == features.labels).float().mean()):.0%}, on simulated features")
print(f"right after:  {float((result.labels == features.labels).float().mean()):.0%}")
