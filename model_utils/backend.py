"""Backend of a network: the form in which its layers are built. Whoever builds a network names it."""

from enum import StrEnum

FUSED_LAYERS_CHOICES = ("auto", "always", "never")  # values of fused_layers: use of the C++ layers


class Backend(StrEnum):
    """Form of the layers; all compute the same.

    AUTO: the first that suits MindSpore's device: FUSED, COMPOSED or ACCELERATOR.
    FUSED: C++ for CPUs (src/nn/fused_layers.py).
    COMPOSED: MindSpore's operations as they suit a CPU; what is exported needs no library.
    ACCELERATOR: MindSpore's operations as they suit GPUs and Ascend.
    """

    AUTO = "auto"
    FUSED = "fused"
    COMPOSED = "composed"
    ACCELERATOR = "accelerator"

    @classmethod
    def of(cls, target: str, fused_layers: str) -> "Backend":
        """Return the backend for a device (CPU, GPU or Ascend) and one of FUSED_LAYERS_CHOICES."""
        if target != "CPU":
            return cls.ACCELERATOR
        return {"auto": cls.AUTO, "always": cls.FUSED, "never": cls.COMPOSED}[fused_layers]

    @property
    def is_for_cpu(self) -> bool:
        """True if the layers are built for a CPU."""
        if self is Backend.AUTO:
            import mindspore as ms

            return ms.get_context("device_target") == "CPU"
        return self is not Backend.ACCELERATOR
