"""The catalogue, first page: the sets of the paper's tables, and MNIST beside Fashion-MNIST."""

from __future__ import annotations

from vitlab.data.public.public_set import PublicSet, RemoteFile, alike

_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_MNIST_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"

PAPER_SETS: tuple[PublicSet, ...] = (
    PublicSet(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        pixels="32x32 colour",
        counts={"train": 50_000, "test": 10_000},
        files=alike(
            _TORONTO,
            [("cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")],
        ),
        page=_TORONTO + "cifar.html",
        licence="none stated; the authors ask to be cited",
        citation="Krizhevsky. Learning multiple layers of features from tiny images. Technical report, 2009.",
        split="official train and test; the paper holds out 2 % of train to choose settings",
        spelling="cifar10:{folder}/unpacked",
        arrangement="unpacked",
    ),
    PublicSet(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        pixels="32x32 colour",
        counts={"train": 50_000, "test": 10_000},
        files=alike(
            _TORONTO,
            [("cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec")],
        ),
        page=_TORONTO + "cifar.html",
        licence="none stated; the authors ask to be cited",
        citation="Krizhevsky. Learning multiple layers of features from tiny images. Technical report, 2009.",
        split="official train and test; the paper holds out 2 % of train to choose settings",
        spelling="cifar100:{folder}/unpacked",
        arrangement="unpacked",
        remarks=("cifar100-coarse:{folder}/unpacked reads the same files with their 20 superclasses",),
    ),
    PublicSet(
        name="flowers102",
        title="Oxford Flowers-102",
        classes=102,
        pixels="about 500 px short side",
        counts={"train": 1_020, "val": 1_020, "test": 6_149},
        files=alike(
            _OXFORD + "flowers/102/",
            [
                ("102flowers.tgz", 344_862_509, "2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246"),
                ("imagelabels.mat", 502, "4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d"),
                ("setid.mat", 14_989, "46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd"),
            ],
        ),
        page=_OXFORD + "flowers/102/",
        licence="none stated",
        citation="Nilsback and Zisserman. Automated flower classification over a large number of classes. ICVGIP 2008.",
        split="official train, val and test (setid.mat); the paper trains on train and val, and holds out 10 % of them to choose",
        spelling="{folder}/labels.csv",
        arrangement="flowers102",
    ),
    PublicSet(
        name="pets",
        title="Oxford-IIIT Pets",
        classes=37,
        pixels="about 400 px",
        counts={"train": 3_680, "test": 3_669},
        files=alike(
            _OXFORD + "pets/data/",
            [
                ("images.tar.gz", 791_918_971, "67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d"),
                ("annotations.tar.gz", 19_173_078, "52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91"),
            ],
        ),
        page=_OXFORD + "pets/",
        licence="CC BY-SA 4.0",
        citation="Parkhi, Vedaldi, Zisserman and Jawahar. Cats and dogs. CVPR 2012.",
        split="official trainval (called train) and test; the paper holds out 10 % of train to choose settings",
        spelling="{folder}/labels.csv",
        arrangement="pets",
    ),
    PublicSet(
        name="fashion-mnist",
        title="Fashion-MNIST",
        classes=10,
        pixels="28x28 grey",
        counts={"train": 60_000, "test": 10_000},
        files=alike(
            _FASHION,
            [
                ("train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                ("train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                ("t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                ("t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ],
        ),
        page="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        citation="Xiao, Rasul and Vollgraf. Fashion-MNIST: a novel image dataset for benchmarking. arXiv:1708.07747, 2017.",
        split="official train and test",
        spelling="fashion-mnist:{folder}",
        remarks=("Debian has the same files as its package dataset-fashion-mnist",),
    ),
    PublicSet(
        name="mnist",
        title="MNIST",
        classes=10,
        pixels="28x28 grey",
        counts={"train": 60_000, "test": 10_000},
        files=alike(
            _MNIST,
            [
                ("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                ("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                ("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                ("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ],
            mirrors=[_MNIST_MIRROR],
        ),
        page="http://yann.lecun.com/exdb/mnist/",
        licence="none stated on its page (often said to be CC BY-SA 3.0: unverified)",
        citation="LeCun, Bottou, Bengio and Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.",
        split="official train and test",
        spelling="mnist:{folder}",
        remarks=("the official page refuses most downloads; this is the mirror of the Common Visual Data Foundation",),
    ),
    PublicSet(
        name="imagenet",
        title="ImageNet-1k (ILSVRC 2012)",
        classes=1000,
        pixels="about 400x350",
        counts={"train": 1_281_167, "val": 50_000},
        files=(
            RemoteFile(
                name="ILSVRC2012_img_train.tar",
                addresses=(),
                size=147_897_477_120,
                checksum="md5:1d675b47d978889d74fa0da5fadfb00e",
                said_by="image-net.org",
            ),
            RemoteFile(
                name="ILSVRC2012_img_val.tar",
                addresses=(),
                size=6_744_924_160,
                checksum="md5:29b22e2961454d5413ddabcf34fc5622",
                said_by="image-net.org",
            ),
        ),
        page="https://image-net.org/download",
        licence="ImageNet terms of access: non-commercial research and education",
        citation="Russakovsky et al. ImageNet Large Scale Visual Recognition Challenge. IJCV, 2015.",
        split="official train; val serves as the test set; the paper holds out 1 % of train to choose settings",
        spelling="{folder}",
        by_hand=(
            "register at https://image-net.org/download and fetch ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar; unpack the"
            " tar of each class of the first to train/<wnid>/ (1,000 folders n01440764 to n15075141), and sort the second into"
            " val/<wnid>/ by the labels of the development kit; then --data FOLDER reads it"
        ),
    ),
    PublicSet(
        name="imagenet-real",
        title="ImageNet ReaL labels",
        classes=1000,
        pixels="labels only",
        counts={"val": 50_000},
        files=alike(
            "https://raw.githubusercontent.com/google-research/reassessed-imagenet/master/",
            [("real.json", 388_478, "d83e9bff374c631aae8439eb064c7019acc56e1b3bc3f56b8380c2a710b0220b")],
        ),
        page="https://github.com/google-research/reassessed-imagenet",
        licence="Apache-2.0",
        citation="Beyer, Henaff, Kolesnikov, Zhai and van den Oord. Are we done with ImageNet? arXiv:2006.07159, 2020.",
        split="one list of labels for each validation picture, in the order of file names; 3,163 lists are empty and not scored",
        spelling=None,
        remarks=("labels for the pictures of `imagenet`, used by evaluation; it is not a set of pictures",),
    ),
)
