"""TENT: entropy minimisation at test time, over the encoder's normalisation layers.

Wang, Shelhamer, Liu, Olshausen, Darrell, "Tent: Fully Test-Time Adaptation by Entropy Minimization", ICLR 2021.

Gradient steps reduce the mean entropy of a batch's zero-shot predictions, over the weights and biases θ of the
normalisation layers:

    x(θ) = encoder(images; θ),   ŷ_i = softmax(τ x_i tᵀ),   θ ← θ − η · Adam or SGD( ∇ (1/n) Σ_i H(ŷ_i) )

`steps` times per batch. Then the batch is labelled by z = ŷ with the new θ. The next batch starts from this θ.

| symbol | code             | shape | meaning                                                        |
|--------|------------------|-------|----------------------------------------------------------------|
| θ      | `theta`          |       | weights and biases of the LayerNorms of the visual tower       |
| g      | `gradients`      |       | gradients of the mean entropy                                  |
| η      | `learning_rate`  |       | 0.001                                                          |
| m, v   | `first`, `second`|       | Adam's averages of g and g²; for SGD, m is the velocity        |

The encoder is never changed. Its forward pass uses θ instead of its own parameters (`torch.func.functional_call`) and
copies of its buffers, and the state holds θ. So nothing has to be restored after an error, and two streams may share
one encoder.

Deviations
- from the paper: LayerNorm instead of BatchNorm, which CLIP's visual transformers do not have; η and 10 steps per batch
  as in the StatA paper. The paper uses Adam, and SGD with momentum 0.9 for ImageNet: both are available.
- from the authors' program: the program labels a batch by the forward pass before the last step, which saves one pass;
  here a batch is labelled after its steps, as in the other online methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..arrays import check_unit_rows
from ..errors import InputError
from ..features.text_head import TextHead
from .contract import Batch, State, Step, Traits, check_form
from .settings import Configured, setting
from .solve.cache import entropy

ADAM = (0.9, 0.999, 1e-8)  # β₁, β₂ and ε, as in torch and in the paper


@dataclass(frozen=True)
class Tent(Configured):
    """TENT; the defaults are those of the StatA paper's comparison."""

    name: ClassVar[str] = "tent"
    traits: ClassVar[Traits] = Traits(paper="TENT", year=2021, scope="batch", memory="stream", needs="encoder")

    learning_rate: float = setting(0.001, "η; 0 is zero-shot", low=0, high=1.0)
    steps: int = setting(10, "gradient steps per batch", low=0, high=500)
    optimiser: Literal["adam", "sgd"] = setting("adam", "Adam, or SGD with momentum")
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=0.999)

    def init(self, head: TextHead) -> State | None:
        """An empty state: θ starts from the encoder of the first batch."""
        return {}

    def check_state(self, state: State | None, head: TextHead) -> None:
        """Raise InputError unless a state is empty, or has θ, two averages of the same shapes, and the step count."""
        if not state:
            return
        theta = _part(state, "theta")
        form = {f"{which}.{name}": p for which in ("theta", "first", "second") for name, p in theta.items()}
        check_form(state, {**form, "taken": torch.tensor(0)})
        if state["taken"] < 0 or any(bool((v < 0).any()) for v in _part(state, "second").values()):
            raise InputError("the state has a negative number of steps or a negative mean square. Start a new stream.")

    def step(self, state: State | None, batch: Batch) -> Step:
        """Take the gradient steps on a batch, then label it."""
        assert state is not None
        assert batch.encoder is not None
        self.check_state(state, batch.head)
        encode = _encoder(batch)
        own = {name: p.detach() for name, p in _norms(batch.encoder).items()}
        carried = _part(state, "theta") or own
        if {name: (p.dtype, p.shape) for name, p in carried.items()} != {n: (p.dtype, p.shape) for n, p in own.items()}:
            raise InputError("this stream was started with another encoder: its LayerNorms differ. Reset the stream.")
        theta = {name: p.clone() for name, p in carried.items()}
        first, second = (
            {name: state.get(f"{which}.{name}", torch.zeros_like(p)) for name, p in theta.items()}
            for which in ("first", "second")
        )
        taken = int(state.get("taken", torch.tensor(0)))
        path = []  # the mean entropy before each step
        for count in range(taken + 1, taken + self.steps + 1):
            loss, gradients = _gradients(encode, theta, batch.head)
            path.append(loss)
            for name, g in gradients.items():
                theta[name], first[name], second[name] = self._stepped(theta[name], g, first[name], second[name], count)
        with torch.no_grad():
            z = Batch(encode(theta), batch.head).log_zero_shot.exp()
        new = {"taken": torch.tensor(taken + self.steps)}
        for which, values in (("theta", theta), ("first", first), ("second", second)):
            new |= {f"{which}.{name}": value for name, value in values.items()}
        return Step(new, z, {"entropy": path, "adapted": len(theta)})

    def _stepped(self, p: Tensor, g: Tensor, m: Tensor, v: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The parameter and both averages after step number `count`."""
        if self.optimiser == "sgd":
            m = self.momentum * m + g
            return p - self.learning_rate * m, m, v
        b1, b2, eps = ADAM
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        size = (v / (1 - b2**count)).sqrt() + eps
        return p - self.learning_rate / (1 - b1**count) * m / size, m, v


def _part(state: State, which: str) -> dict[str, Tensor]:
    """The tensors of one kind in a state ("theta", "first" or "second"), by their names in the encoder."""
    return {name.removeprefix(f"{which}."): p for name, p in state.items() if name.startswith(f"{which}.")}


def _norms(encoder: nn.Module) -> dict[str, nn.Parameter]:
    """Weights and biases of the LayerNorms, by their names in the encoder."""
    found = {
        f"{path}.{name}" if path else name: p
        for path, module in encoder.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, p in module.named_parameters(recurse=False)
    }
    if not found:
        raise InputError(
            f"tent adapts LayerNorm weights, and this {type(encoder).__name__} has none. Pass a visual transformer."
        )
    return found


def _encoder(batch: Batch) -> Callable[[dict[str, Tensor]], Tensor]:
    """A function θ → unit features (n×d) of the batch's images. It does not change the encoder."""
    encoder, like = batch.encoder, batch.features
    assert encoder is not None
    if encoder.training:
        raise InputError("tent needs an encoder in evaluation mode: dropout would be random. Call encoder.eval().")

    def encode(theta: dict[str, Tensor]) -> Tensor:
        buffers = {name: b.clone() for name, b in encoder.named_buffers()}
        x: Tensor = torch.func.functional_call(encoder, {**theta, **buffers}, (batch.images,)).to(like)
        if x.shape != like.shape:
            raise InputError(
                f"the encoder gave features of shape {tuple(x.shape)} for images whose features have shape "
                f"{tuple(like.shape)}. Pass the images of these features, and the encoder they come from."
            )
        if not bool(x.isfinite().all()):
            raise InputError(
                "the encoder gave NaN or infinite features. Choose a smaller learning_rate, or check "
                "the images for NaN."
            )
        check_unit_rows(x.detach(), "encoder(images)")
        return x

    return encode


def _gradients(
    encode: Callable[[dict[str, Tensor]], Tensor], theta: dict[str, Tensor], head: TextHead
) -> tuple[float, dict[str, Tensor]]:
    """The mean entropy at θ and its gradients, even under `torch.no_grad`."""
    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_() for name, p in theta.items()}
        loss = entropy(Batch(encode(leaves), head).log_zero_shot).mean()
        # A norm that the images do not pass through (in a text tower) has gradient 0.
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return float(loss.detach()), dict(zip(leaves, found, strict=True))
