"""Fine-tuning as in the paper: Table 4 and B.1.1, each set's own steps and rates, at 384 px with a new head of zeros.

What they leave open is from the authors' code: inception crops and flips, test pictures squashed to a square, and a warm-up of
500 steps (100 of 500), counted in batches of 512. On other data than the paper's, the rules of `scale.py` apply.
"""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.augment import Augment
from vitlab.config.feed import feeding
from vitlab.config.ingredients import fitted_model, precision_of, start_of, whole_patches, workers_of
from vitlab.config.loader import LoaderConfig
from vitlab.config.model import ViTConfig
from vitlab.config.paper_tables import TABLE_4
from vitlab.config.run import RunConfig, RunData
from vitlab.config.scale import every, finetuning_batch, rate_for, steps_like, steps_of, warmup_of
from vitlab.config.source import SplitRule
from vitlab.config.train import Average, Optimizer, Schedule, TrainConfig
from vitlab.config.wish import Wish

_BATCH = 512
_SIZE = 384
_WARMUP = 500


def finetune_imagenet(wish: Wish) -> RunConfig:
    """Fine-tune on ImageNet-1k at 384 px: Table 4, 20,000 steps of 512, cosine. Rates .003 .01 .03 .06 with --sweep, .03 without.

    Command: vitlab finetune imagenet/ --recipe finetune-imagenet --from l16.npz --sweep
    Time: not measured here; `--dry-run` says what it would take.
    Score: Table 5 without averaging, from ImageNet-21k: B/16 83.97, B/32 81.28, L/16 85.15, L/32 80.99. Not run here.
    """
    return _table_4("finetune-imagenet", wish)


def finetune_imagenet_table2(wish: Wish) -> RunConfig:
    """The same as Table 2 has it (section 4.1): 512 px, 518 for a patch of 14, weights averaged with factor 0.9999.

    Command: vitlab finetune imagenet/ --recipe finetune-imagenet-table2 --from h14.safetensors
    Time: not measured here.
    Score: H/14 from JFT 88.55, L/16 from JFT 87.76, L/16 from ImageNet-21k 85.30. Not run here.
    """
    start = start_of("finetune-imagenet-table2", wish)
    side = 518 if isinstance(start.model, ViTConfig) and start.model.step[0] == 14 else 512
    sized = wish if wish.image_size is not None else replace(wish, image_size=whole_patches(start.model, side))
    run = _table_4("finetune-imagenet", sized)
    return replace(run, name="finetune-imagenet-table2", train=replace(run.train, average=Average(decay=0.9999)))


def finetune_cifar10(wish: Wish) -> RunConfig:
    """Fine-tune on CIFAR-10 at 384 px: Table 4, 10,000 steps of 512. Rates .001 .003 .01 .03 with --sweep, .01 without.

    Command: vitlab finetune cifar10:cifar-10-batches-bin --recipe finetune-cifar10 --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 98.95, B/32 98.79, L/16 99.16, L/32 99.13. Not run here.
    """
    return _table_4("finetune-cifar10", wish)


def finetune_cifar100(wish: Wish) -> RunConfig:
    """Fine-tune on CIFAR-100 at 384 px: Table 4, 10,000 steps of 512. Rates .001 .003 .01 .03 with --sweep, .03 without.

    Command: vitlab finetune cifar100:cifar-100-binary --recipe finetune-cifar100 --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 91.67, B/32 91.97, L/16 93.44, L/32 93.04. Not run here.
    """
    return _table_4("finetune-cifar100", wish)


def finetune_pets(wish: Wish) -> RunConfig:
    """Fine-tune on Oxford-IIIT Pets at 384 px: Table 4, 500 steps of 512. Rates .001 .003 .01 .03 with --sweep, .01 without.

    Command: vitlab finetune pets/ --recipe finetune-pets --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 94.43, B/32 93.02, L/16 94.73, L/32 93.09. Not run here.
    """
    return _table_4("finetune-pets", wish)


def finetune_flowers(wish: Wish) -> RunConfig:
    """Fine-tune on Oxford Flowers-102 at 384 px: Table 4, 500 steps of 512. Rates .001 .003 .01 .03 with --sweep, .01 without.

    Command: vitlab finetune flowers/ --recipe finetune-flowers --from b16.npz --sweep
    Time: not measured here.
    Score: Table 5 from ImageNet-21k: B/16 99.38, B/32 99.11, L/16 99.61, L/32 99.19. Not run here.
    """
    return _table_4("finetune-flowers", wish)


def finetune_vtab(wish: Wish) -> RunConfig:
    """Fine-tune on a VTAB-1k task at 384 px: Table 4, 2,500 steps of 512 at rate 0.01, one setting for all tasks.

    Command: vitlab finetune task/ --recipe finetune-vtab --from l16.npz
    Time: not measured here.
    Score: Table 9, mean over 19 tasks: H/14 from JFT 77.6, L/16 from JFT 76.3, L/16 from ImageNet-21k 72.7. Not run here.
    """
    return _table_4("finetune-vtab", wish)


def _table_4(name: str, wish: Wish) -> RunConfig:
    row, start = TABLE_4[name], start_of(name, wish)
    data = wish.data or row.data
    size = wish.image_size or whole_patches(start.model, _SIZE)
    model = fitted_model(start.model, size, data.classes)
    batch = wish.batch_size or finetuning_batch(data.pictures, most=_BATCH)
    like = steps_like(row.steps, pictures=data.pictures, reference=row.data.pictures)
    steps = wish.steps or (round(like * _BATCH / batch) if wish.epochs is None else steps_of(wish.epochs, data.pictures, batch))
    tests = "test" in data.parts
    fed, _ = feeding(replace(start.preprocess, resize="squash", interpolation="tf-bilinear"), model, resized=True)
    return RunConfig(
        name=name,
        model=model,
        data=RunData(
            source=data.source,
            train_split="train+val" if tests else "train",  # B.1.1: the final run learns from all training pictures
            evaluate_split="test" if tests else "val" if "val" in data.parts else None,
            rule=wish.rule or SplitRule(val=row.dev),
            augment=Augment(image_size=size, interpolation="tf-bilinear"),
            loader=LoaderConfig(batch_size=batch, seed=wish.seed, workers=workers_of(wish.machine)),
        ),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(
                kind="sgd",
                lr=wish.lr or rate_for(row.lr, batch=batch, reference=_BATCH, kind="sgd"),
                momentum=0.9,
                clip=1.0,
            ),
            schedule=Schedule(kind="cosine", warmup=warmup_of(steps, share=0.2, most=round(_WARMUP * _BATCH / batch))),
            loss="sigmoid" if data.multi_label else "softmax",
            precision=precision_of(wish.machine),
            save_every=every(steps, times=10),
            seed=wish.seed,
        ),
        preprocess=fed,
        start=start.path,
    )
