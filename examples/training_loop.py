"""Train a Vision Transformer with a loop of your own: vitlab's model and data, PyTorch for everything else.

python examples/training_loop.py --data pets/ --model ViT-S/16 --image-size 224 --out model.safetensors
"""

from __future__ import annotations

from pathlib import Path

import torch
import tyro
from torch.nn import functional as F
from torch.utils.data import DataLoader

import vitlab
from vitlab.config import Preprocess


def main(
    data: str = "digits",
    model: str = "ViT-Mini/8",
    image_size: int = 32,
    epochs: int = 10,
    batch_size: int = 64,
    lr: float = 1e-3,
    out: Path = Path("model.safetensors"),
) -> None:
    """Train a model with a loop of your own, save it as a checkpoint, and evaluate that."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    preprocess = Preprocess(image_size=(image_size, image_size), resize_to=image_size)
    train = vitlab.open_dataset(data, split="train+val", image_size=image_size)
    batches = DataLoader(train, batch_size, shuffle=True, drop_last=True)
    net = vitlab.create_model(model, num_classes=len(train.labels), image_size=image_size).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=epochs * len(batches))

    for epoch in range(epochs):
        net.train()
        for images_BHWC, labels_B, _ in batches:
            images_BCHW = (images_BHWC.to(device).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5  # as Preprocess says
            loss = F.cross_entropy(net(images_BCHW), labels_B.to(device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}")

    checkpoint = vitlab.Checkpoint(model=net.eval(), config=net.config, preprocess=preprocess, labels=train.labels)
    vitlab.save(checkpoint, out)
    print(vitlab.evaluate(out, data, split="test"))


if __name__ == "__main__":
    tyro.cli(main)
