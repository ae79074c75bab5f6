"""Label a batch of images from their features. The features in this example are simulated."""

import kedge

features = kedge.simulate(n=200, k=50, k_eff=5, seed=1)  # or kedge.FeatureSet.load("features.safetensors")

result = kedge.adapt(features)  # or kedge.adapt(image_features, text_features), two arrays
print(f"{result.changed} of {len(features)} labels changed")
print(f"about {result.info['effective_classes']:.0f} of {features.head.k} classes are in this batch")
print(f"accuracy, zero-shot: {features.zero_shot_accuracy():.0%}, on simulated features")
print(f"accuracy, adapted:   {float((result.labels == features.labels).float().mean()):.0%}")
