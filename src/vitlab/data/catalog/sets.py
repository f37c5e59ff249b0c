"""The catalog of public datasets: their files, checksums, licences, splits, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vitlab.config.serialize import Json, to_json
from vitlab.errors import DataError, did_you_mean

Arrangement = Literal[
    "as fetched", "unpacked", "pets", "flowers102", "dtd", "caltech101", "sun397", "clevr", "kitti"
]  # how the files are prepared; `vitlab.data.catalog.fetch` has a function for each

_TFDS = "TensorFlow Datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a dataset: its name, its addresses in the order of trying, bytes, and published checksum.

    `checksum` is `sha256:...` or `md5:...`, or None; `said_by` names who publishes it, or says why there is none. `token` is sent
    to the addresses for access, and to no host that they redirect to.
    """

    name: str
    addresses: tuple[str, ...]
    size: int | None
    checksum: str | None
    said_by: str = _TFDS
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """A public dataset.

    `counts` are images per split; `split` says who made the splits and how; `spelling` is what `open_dataset` takes after the
    download, with `{folder}` for the folder, or None if the format is not supported. `by_hand` says what to do for a dataset
    without a direct address; `public` is False for one that nobody can have, which is described and not fetched.
    """

    name: str
    title: str
    classes: int
    pixels: str
    counts: dict[str, int]
    files: tuple[RemoteFile, ...] = ()
    page: str
    licence: str
    citation: str
    split: str
    spelling: str | None
    arrangement: Arrangement = "as fetched"
    by_hand: str | None = None
    public: bool = True
    remarks: tuple[str, ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes to download, or None if unknown or if there is nothing to download."""
        sizes = [file.size for file in self.files]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def alike(address: str, rows: Sequence[tuple[str, int, str]], *, mirrors: Sequence[str] = ()) -> tuple[RemoteFile, ...]:
    """Files with a common start of addresses and names; a row is the rest of the name, the bytes and the SHA-256."""
    start = address.rpartition("/")[2]
    return tuple(
        RemoteFile(
            name=start + end,
            addresses=tuple(place + end for place in (address, *mirrors)),
            size=size,
            checksum=f"sha256:{digest}",
        )
        for end, size, digest in rows
    )


# Datasets of the paper's tables, MNIST and Fashion-MNIST.

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
            " val/<wnid>/ by the labels of the development kit; then give that folder as the data"
        ),
    ),
    PublicSet(
        name="imagenet21k",
        title="ImageNet-21k (fall 2011)",
        classes=21_841,
        pixels="about 400x350",
        counts={"train": 14_197_122},
        page="https://image-net.org/download",
        licence="ImageNet terms of access: non-commercial research and education",
        citation="Deng et al. ImageNet: A Large-Scale Hierarchical Image Database. CVPR, 2009.",
        split="no official splits; `--val-fraction` holds images out. The paper removes the images of its test sets",
        spelling="{folder}",
        by_hand=(
            "register at https://image-net.org/download and fetch the tar files of the fall 2011 release, or of winter 2021 with"
            " 13,153,500 images of 19,167 classes; unpack the tar of each class to {folder}/<wnid>/"
        ),
        remarks=("the paper counts 21k classes and 14M images; its released checkpoints have a head of 21,843",),
    ),
    PublicSet(
        name="jft",
        title="JFT-300M",
        classes=18_291,
        pixels="photographs from the web",
        counts={"train": 303_000_000},
        page="https://arxiv.org/abs/1707.02968",
        licence="none: internal to Google",
        citation="Sun et al. Revisiting Unreasonable Effectiveness of Data in Deep Learning Era. ICCV, 2017.",
        split="none published; labels are automatic, more than one for an image, and about 20 % of them are wrong",
        spelling=None,
        by_hand="JFT-300M was never released; `vitlab plan MODEL --recipe jft` needs no data",
        public=False,
        remarks=("the paper counts 303M images and 18k classes",),
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
        split="one list of labels for each validation image, in the order of file names; 3,163 lists are empty and not scored",
        spelling=None,
        remarks=("labels for the images of `imagenet`, used by evaluation; it is not a set of images",),
    ),
)


# The other datasets of VTAB.

_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_SUN = "https://vision.princeton.edu/projects/2010/SUN/"
_PCAM = "https://zenodo.org/record/2546921/files/camelyonpatch_level_2_split_"
_NORB = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/smallnorb-5x"
_SPRITES = "https://raw.githubusercontent.com/google-deepmind/dsprites-dataset/master/"
_KITTI = "https://s3.eu-central-1.amazonaws.com/avg-kitti/"

VTAB_SETS: tuple[PublicSet, ...] = (
    PublicSet(
        name="svhn",
        title="Street View House Numbers, cropped digits",
        classes=10,
        pixels="32x32 colour",
        counts={"train": 73_257, "test": 26_032},
        files=alike(
            _SVHN,
            [
                ("train_32x32.mat", 182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
                ("test_32x32.mat", 64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
            ],
        ),
        page=_SVHN,
        licence="for non-commercial use only",
        citation="Netzer et al. Reading digits in natural images with unsupervised feature learning. NIPS workshop, 2011.",
        split="official train and test; the 531,131 easier images of `extra` are left out, as in VTAB",
        spelling="svhn:{folder}",
    ),
    PublicSet(
        name="caltech101",
        title="Caltech-101",
        classes=102,
        pixels="about 300x200",
        counts={"all": 9_144},
        files=(
            RemoteFile(
                name="caltech-101.zip",
                addresses=("https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip?download=1",),
                size=137_414_764,
                checksum="sha256:331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
            ),
        ),
        page="https://data.caltech.edu/records/mzrjq-6wc02",
        licence="CC BY 4.0",
        citation="Li, Andreeto, Ranzato and Perona. Caltech 101. CaltechDATA, 2022; Fei-Fei et al., CVPR workshop 2004.",
        split="none official; VTAB trains on 30 images of each of the 102 classes (background included), drawn at random",
        spelling="{folder}/images",
        arrangement="caltech101",
    ),
    PublicSet(
        name="dtd",
        title="Describable Textures",
        classes=47,
        pixels="300 to 640 px",
        counts={"train": 1_880, "val": 1_880, "test": 1_880},
        files=alike(
            _OXFORD + "dtd/download/",
            [("dtd-r1.0.1.tar.gz", 625_239_812, "e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205")],
        ),
        page=_OXFORD + "dtd/",
        licence="made available for research purposes",
        citation="Cimpoi, Maji, Kokkinos, Mohamed and Vedaldi. Describing textures in the wild. CVPR 2014.",
        split="the first of ten official divisions (train1, val1, test1), as in VTAB",
        spelling="{folder}/labels.csv",
        arrangement="dtd",
    ),
    PublicSet(
        name="sun397",
        title="SUN397 scenes",
        classes=397,
        pixels="at least 200x200",
        counts={"all": 108_754},
        files=(
            *alike(_SUN, [("SUN397.tar.gz", 39_077_296_924, "f404130965a7ad77bed5ececc71e720ab50f3cc1e1bb257257610d38f3b928ec")]),
            *alike(
                _SUN + "download/",
                [("Partitions.zip", 18_293_705, "e3311ea5f812d4cc6faef194688343d1111f6cd6f70f2c62f393c2b8d6ba1ec9")],
            ),
        ),
        page="https://vision.princeton.edu/projects/2010/SUN/",
        licence="none stated; for academic research",
        citation="Xiao, Hays, Ehinger, Oliva and Torralba. SUN database. CVPR 2010.",
        split="ten official divisions of 50 + 50 images a class (Partitions.zip); labels.csv lists all images undivided",
        spelling="{folder}/labels.csv",
        arrangement="sun397",
    ),
    PublicSet(
        name="eurosat",
        title="EuroSAT, RGB",
        classes=10,
        pixels="64x64 colour",
        counts={"all": 27_000},
        files=(
            RemoteFile(
                name="EuroSAT_RGB.zip",
                addresses=("https://zenodo.org/records/7711810/files/EuroSAT_RGB.zip?download=1",),
                size=94_658_721,
                checksum="md5:f46e308c4d50d4bf32fedad2d3d62f3b",
                said_by="Zenodo",
            ),
        ),
        page="https://zenodo.org/records/7711810",
        licence="MIT",
        citation="Helber, Bischke, Dengel and Borth. EuroSAT. IEEE J-STARS, 2019.",
        split="none official; VTAB takes the first 60 %, next 20 % and last 20 % of TensorFlow Datasets' order",
        spelling="{folder}/EuroSAT_RGB.zip",
    ),
    PublicSet(
        name="resisc45",
        title="NWPU-RESISC45",
        classes=45,
        pixels="256x256 colour",
        counts={"all": 31_500},
        files=(
            RemoteFile(
                name="NWPU-RESISC45.rar",
                addresses=(),
                size=None,
                checksum="md5:d824acb73957502b00efd559fc6cfbbb",
                said_by="torchgeo",
            ),
        ),
        page="https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs",
        licence="none stated; for research",
        citation="Cheng, Han and Lu. Remote sensing image scene classification. Proc. IEEE, 2017.",
        split="none official",
        spelling="{folder}",
        by_hand=(
            "download NWPU-RESISC45.rar in a browser from https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs and unpack it (7z x):"
            " it holds one folder for each class; then give that folder as the data"
        ),
    ),
    PublicSet(
        name="pcam",
        title="PatchCamelyon",
        classes=2,
        pixels="96x96 colour",
        counts={"train": 262_144, "val": 32_768, "test": 32_768},
        files=alike(
            _PCAM,
            [
                ("train_x.h5.gz", 6_421_353_462, "d619e741468a7ab35c7e4a75e6821b7e7e6c9411705d45708f2a0efc8960656c"),
                ("train_y.h5.gz", 21_378, "b74126d2c01b20d3661f9b46765d29cf4e4fba6faba29c8e0d09d406331ab75a"),
                ("valid_x.h5.gz", 805_965_320, "f82ee1670d027b4ec388048d9eabc2186b77c009655dae76d624c0ecb053ccb2"),
                ("valid_y.h5.gz", 3_038, "ce1ae30f08feb468447971cfd0472e7becd0ad96d877c64120c72571439ae48c"),
                ("test_x.h5.gz", 800_875_929, "79174c2201ad521602a5888be8f36ee10875f37403dd3f2086caf2182ef87245"),
                ("test_y.h5.gz", 3_040, "0a522005fccc8bbd04c5a117bfaf81d8da2676f03a29d7499f71d0a0bd6068ef"),
            ],
        ),
        page="https://zenodo.org/records/2546921",
        licence="CC0 1.0",
        citation="Veeling, Linmans, Winkens, Cohen and Welling. Rotation equivariant CNNs for digital pathology. MICCAI 2018.",
        split="official train, valid and test",
        spelling="pcam:{folder}",
        remarks=("HDF5, which needs h5py: pip install vitlab[hdf5]; packed files are unpacked once into the cache folder, 9 GB",),
    ),
    PublicSet(
        name="dsprites",
        title="dSprites",
        classes=16,
        pixels="64x64 black and white",
        counts={"all": 737_280},
        files=(
            RemoteFile(
                name="dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz",
                addresses=(_SPRITES + "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz",),
                size=None,
                checksum=None,
                said_by="no publisher's sum of the npz is known (TensorFlow Datasets reads the HDF5 file)",
            ),
        ),
        page="https://github.com/google-deepmind/dsprites-dataset",
        licence="Apache-2.0, of its repository (unverified)",
        citation="Matthey, Higgins, Hassabis and Lerchner. dSprites. 2017.",
        split="none official; VTAB takes 80 % train, 10 % val, 10 % test; x position and orientation in 16 bins",
        spelling=None,
        remarks=("no labels until a task is chosen: `vitlab evaluate --vtab` reads it for x position and for orientation",),
    ),
    PublicSet(
        name="smallnorb",
        title="small NORB",
        classes=18,
        pixels="96x96 grey, two cameras",
        counts={"train": 24_300, "test": 24_300},
        files=alike(
            _NORB,
            [
                (
                    "46789x9x18x6x2x96x96-training-dat.mat.gz",
                    131_896_188,
                    "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
                ),
                (
                    "46789x9x18x6x2x96x96-training-cat.mat.gz",
                    348,
                    "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
                ),
                (
                    "46789x9x18x6x2x96x96-training-info.mat.gz",
                    71_052,
                    "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
                ),
                (
                    "01235x9x18x6x2x96x96-testing-dat.mat.gz",
                    130_799_817,
                    "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
                ),
                (
                    "01235x9x18x6x2x96x96-testing-cat.mat.gz",
                    347,
                    "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
                ),
                (
                    "01235x9x18x6x2x96x96-testing-info.mat.gz",
                    10_428,
                    "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
                ),
            ],
        ),
        page="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
        licence="for research; may not be sold",
        citation="LeCun, Huang and Bottou. Learning methods for generic object recognition. CVPR 2004.",
        split="official training and testing; VTAB halves testing into val and test; azimuth (18) or elevation (9) is the class",
        spelling=None,
        remarks=("NORB's own binary matrices: `vitlab evaluate --vtab` reads them for azimuth and for elevation",),
    ),
    PublicSet(
        name="kitti",
        title="KITTI objects, distance to the closest vehicle",
        classes=4,
        pixels="1242x375 colour",
        counts={"train": 6_347, "val": 423, "test": 711},
        files=alike(
            _KITTI,
            [
                ("data_object_image_2.zip", 12_569_945_557, "351c5a2aa0cd9238b50174a3a62b846bc5855da256b82a196431d60ff8d43617"),
                ("data_object_label_2.zip", 5_601_213, "4efc76220d867e1c31bb980bbf8cbc02599f02a9cb4350effa98dbb04aaed880"),
                ("devkit_object.zip", 63_778, "cfde67e531832618ea0fd4844f91e34a45068025e2bef79e278cb812dc2537d0"),
            ],
        ),
        page="https://www.cvlibs.net/datasets/kitti/",
        licence="CC BY-NC-SA 3.0",
        citation="Geiger, Lenz and Urtasun. Are we ready for autonomous driving? CVPR 2012.",
        split="none official for the 7,481 labelled images; by drive, as TensorFlow Datasets and so VTAB divides them",
        spelling="{folder}/labels.csv",
        arrangement="kitti",
    ),
    PublicSet(
        name="clevr",
        title="CLEVR v1.0, objects and their distance",
        classes=8,
        pixels="480x320 colour",
        counts={"train": 70_000, "val": 15_000},
        files=alike(
            "https://dl.fbaipublicfiles.com/clevr/",
            [("CLEVR_v1.0.zip", 19_021_600_724, "5cd61cf1096ed20944df93c9adb31e74d189b8459a94f54ba00090e5c59936d1")],
        ),
        page="https://cs.stanford.edu/people/jcjohns/clevr/",
        licence="CC BY 4.0",
        citation="Johnson et al. CLEVR: a diagnostic dataset for compositional language and visual reasoning. CVPR 2017.",
        split="official train and val; the test images have no scenes; VTAB tests on val",
        spelling="{folder}/count.csv",
        arrangement="clevr",
        remarks=("{folder}/distance.csv is the second VTAB task: 6 classes of the distance to the closest object",),
    ),
    PublicSet(
        name="dmlab",
        title="DMLab frames",
        classes=6,
        pixels="480x360 colour",
        counts={"train": 65_550, "val": 22_628, "test": 22_735},
        files=alike(
            "https://storage.googleapis.com/dmlab-vtab/",
            [("dmlab.tar.gz", 3_017_022_789, "638b18fa69a5d61bbc310cd0b87ac603a39f41de0fdb07b6e77de274a24480a4")],
        ),
        page="https://github.com/google-research/task_adaptation",
        licence="not stated",
        citation="Zhai et al. The Visual Task Adaptation Benchmark. arXiv:1910.04867, 2019.",
        split="official train, validation and test",
        spelling="dmlab:{folder}",
        arrangement="unpacked",
    ),
    PublicSet(
        name="retinopathy",
        title="Kaggle Diabetic Retinopathy Detection",
        classes=5,
        pixels="up to 5184x3456",
        counts={"train": 35_126, "val": 10_906, "test": 42_670},
        page="https://www.kaggle.com/c/diabetic-retinopathy-detection/data",
        licence="rules of the Kaggle competition",
        citation="Kaggle and EyePACS. Kaggle diabetic retinopathy detection, 2015.",
        split="official train; the public part of the former test set is val, the private part is test",
        spelling="retinopathy:{folder}",
        by_hand=(
            "accept the rules at https://www.kaggle.com/c/diabetic-retinopathy-detection and download it there; unpack the images"
            " to train/ and test/, and put trainLabels.csv and retinopathy_solution.csv beside them. The eyes are scaled and"
            " evened out as in VTAB (btgraham-300) whenever they are read"
        ),
    ),
)


# Sizes and SHA-256 sums are those that TensorFlow Datasets publishes for the same addresses, or the publisher's own (Zenodo,
# CaltechDATA, ImageNet), which `said_by` names. For a file without a known sum, `fetch` records the sum of the first download.

SETS: tuple[PublicSet, ...] = (*PAPER_SETS, *VTAB_SETS)


def find_set(name: str) -> PublicSet:
    """The dataset of this name; DataError with a suggestion if there is none."""
    known = {entry.name: entry for entry in SETS}
    if name not in known:
        raise DataError(
            f"the catalog has no dataset called {name!r}",
            hint=did_you_mean(name, list(known)) or "vitlab data list shows them all",
        )
    return known[name]


def set_facts(entry: PublicSet, *, json: bool) -> dict[str, Json]:
    """All that is known of a set; as text its files are a line each and what is not there is left out."""
    facts: dict[str, Json] = {
        "name": entry.name,
        "title": entry.title,
        "images": dict(entry.counts),
        "classes": entry.classes,
        "pixels": entry.pixels,
        "bytes": entry.size,
        "page": entry.page,
        "licence": entry.licence,
        "citation": entry.citation,
        "split": entry.split,
        "data": entry.spelling,
        "by_hand": entry.by_hand,
        "remarks": list(entry.remarks),
    }
    if json:
        return facts | {"files": to_json(entry.files)}
    facts["data"] = "not read yet" if entry.spelling is None else entry.spelling.replace("{folder}", f"data/{entry.name}")
    facts["remarks"] = [remark.replace("{folder}", f"data/{entry.name}") for remark in entry.remarks]
    for number, file in enumerate(entry.files, start=1):
        size = "size not known" if file.size is None else f"{file.size:,} bytes"
        where = file.addresses[0] if file.addresses else file.name
        sum_ = f"{file.checksum} ({file.said_by})" if file.checksum else f"no checksum: {file.said_by}"
        facts[f"file_{number}"] = f"{where}  {size}  {sum_}"
    return {key: value for key, value in facts.items() if value not in (None, [], {})}
