"""Save with AsyncCheckpointIO on a slow disk while the weight changes: what is in the file?

Needs torch and pytorch-lightning, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
import time
from typing import Any

import pytorch_lightning
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.plugins.io import AsyncCheckpointIO


class Slow(TorchCheckpointIO):  # type: ignore[misc]
    """A disk that answers after half a second."""

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        time.sleep(0.5)
        super().save_checkpoint(*args, **options)


print("pytorch-lightning", pytorch_lightning.__version__)
path = tempfile.mkdtemp() + "/saved.ckpt"
plugin = AsyncCheckpointIO(Slow())
if hasattr(plugin, "setup"):
    plugin.setup()
weight = torch.zeros(1)
plugin.save_checkpoint({"state_dict": {"weight": weight}, "global_step": 10}, path)
weight += 1  # the next step of the optimizer
plugin.teardown()  # waits for the disk
file = torch.load(path)
loaded = file["state_dict"]["weight"].item()
print(f"saved at step {file['global_step']} with weight 0; the file has weight {loaded:g}")
print("WRONG: that of a later step" if loaded else "right: that of the save")
raise SystemExit(3 if loaded != 0 else 0)
