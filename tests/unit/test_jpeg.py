"""JPEG files decoded by libjpeg-turbo for training: equal to PIL's output, with PIL as fallback."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from slipway.data.archive import Names
from trainer.data.sets.files import FolderFiles
from trainer.data.sets.imagefolder import IMAGENET, ImageFolder
from trainer.data.sets.jpeg import decode_jpeg, with_rows

SIZE = 32
MIDDLE = np.array([[0.3, 0.5, 0.5, 0.5, 0.9], [0.9, 0.2, 0.1, 0.8, 0.1]], dtype=np.float32)


def smooth(width, height, mode="RGB"):
    """Return an image without sharp edges."""
    rows, columns = np.linspace(0, 3, height)[:, None], np.linspace(0, 3, width)[None]
    planes = [127 + 100 * np.sin(rows * (1 + plane / 2) + columns) for plane in range(3)]
    return Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8)).convert(mode)


def jpeg(width, height, mode="RGB", **options):
    file = io.BytesIO()
    smooth(width, height, mode).save(file, "JPEG", **options)
    return file.getvalue()


def folder_of(path, decoder, *, flip=True, max_pixels=10**8):
    return ImageFolder(
        FolderFiles(path.parent, Names([path.name])),
        np.zeros(2, dtype=np.int64),
        torch.zeros(2, dtype=torch.int64),
        ("a",),
        SIZE,
        IMAGENET,
        False,
        resized_crop=True,
        flip=flip,
        max_pixels=max_pixels,
        decoder=decoder,
    )


def both(path, **options):
    """Return the output of both decoders for two crops of an image."""
    return [folder_of(path, name, **options).fetch(np.arange(2), MIDDLE) for name in ("pil", "simplejpeg")]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("shape", [(400, 300), (90, 130), (60, 45), (1300, 900)])
def test_decoded_images_are_close_to_pil(tmp_path, shape, mode):
    smooth(*shape, mode).save(tmp_path / "a.jpg", quality=95)
    pil, fast = both(tmp_path / "a.jpg")
    difference = (pil.images.int() - fast.images.int()).abs().float()
    assert difference.mean() < 4
    assert not pil.images.equal(fast.images), "the decoders must differ"


def test_images_are_mirrored_by_fifth_draw(tmp_path):
    smooth(400, 300).save(tmp_path / "a.jpg", quality=95)
    mirrored, plain = (both(tmp_path / "a.jpg", flip=flip)[1].images for flip in (True, False))
    assert mirrored[0].equal(plain[0])
    assert mirrored[1].equal(plain[1].flip(-1))


@pytest.mark.parametrize(("suffix", "mode"), [("png", "RGB"), ("bmp", "RGB"), ("jpg", "CMYK")])
def test_unsupported_formats_are_decoded_by_pil(tmp_path, suffix, mode):
    smooth(90, 130, mode).save(tmp_path / f"a.{suffix}")
    pil, fast = both(tmp_path / f"a.{suffix}")
    assert pil.images.equal(fast.images)
    assert pil.bad == fast.bad == []


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated_file_gives_same_result_as_pil(tmp_path, share):
    data = jpeg(90, 130)
    (tmp_path / "a.jpg").write_bytes(data[: int(share * len(data))])
    pil, fast = both(tmp_path / "a.jpg")
    assert (pil.bad, pil.reasons) == (fast.bad, fast.reasons)
    assert pil.images.equal(fast.images)


def test_jpeg_with_too_many_pixels_is_not_decoded(tmp_path):
    smooth(90, 130).save(tmp_path / "a.jpg")
    pil, fast = both(tmp_path / "a.jpg", max_pixels=9000)
    assert pil.reasons == fast.reasons
    assert [re.findall(r"\d+", reason) for reason in pil.reasons] == [["90", "130", "9000"]] * 2


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_large_image_is_decoded_at_reduced_scale(scale, monkeypatch):
    import simplejpeg  # noqa: PLC0415

    shapes = []

    def watched(*arguments, **options):
        pixels = real(*arguments, **options)
        shapes.append(pixels.shape)
        return pixels

    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched)
    file = io.BytesIO(jpeg(scale * SIZE + 3, scale * SIZE + 3))
    found = decode_jpeg(file, SIZE, lambda width, height: (0, 0, width, height))
    assert found.shape == (3, SIZE, SIZE)
    assert shapes[0][0] == pytest.approx((scale * SIZE + 3) / scale, abs=1)


class TestPartialDecoding:
    """Decoding only the rows down to the crop's lower edge gives the same rows."""

    @pytest.mark.parametrize("mode", ["RGB", "L"])
    @pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
    @pytest.mark.parametrize("edge", [400, 70, 33])
    def test_partial_decoding_matches_full_decoding(self, monkeypatch, mode, options, edge):
        file = io.BytesIO(jpeg(400, 300, mode, quality=90, **options))
        for lower in (edge * 0.75 / 2, edge * 0.75 - 0.4, 300):
            box = (5.5, lower - edge / 3, 5.5 + edge / 2, lower) if lower > edge / 3 else (0, 0, edge / 2, lower)
            file.seek(0)
            found = decode_jpeg(file, SIZE, lambda *_: box)  # noqa: B023 -- called at once
            with monkeypatch.context() as patch:
                patch.setattr("trainer.data.sets.jpeg.with_rows", lambda *_: None)
                file.seek(0)
                whole = decode_jpeg(file, SIZE, lambda *_: box)  # noqa: B023
            assert found.equal(whole)

    def test_with_rows_changes_height_in_header(self):
        with Image.open(io.BytesIO(with_rows(jpeg(400, 300, comment="ÿÀ" * 9), 64))) as image:
            assert image.size == (400, 64)

    @pytest.mark.parametrize(
        "change",
        [lambda data: data[:-2], lambda data: data[: len(data) // 2], lambda data: data[:40], lambda data: data[:3]],
    )
    def test_possibly_truncated_file_is_not_decoded_partially(self, change):
        assert with_rows(change(jpeg(400, 300)), 64) is None

    def test_fill_bytes_before_marker_are_accepted(self):
        data = jpeg(400, 300)
        at = data.index(b"\xff\xc0")
        files = [io.BytesIO(each) for each in (data, data[:at] + b"\xff\xff" + data[at:])]
        plain, filled = (decode_jpeg(file, SIZE, lambda *_: (0, 0, 100, 100)) for file in files)
        assert filled.equal(plain)

    def test_truncation_is_detected_despite_preview_in_header(self):
        exif = Image.Exif()
        exif[0x927C] = jpeg(20, 20)  # as cameras store a preview there
        data = jpeg(400, 300, exif=exif)
        assert data.index(b"\xff\xd9") < data.rindex(b"\xff\xc0")
        assert with_rows(data, 64)
        for length in (data.rindex(b"\xff\xc0") + 30, data.rindex(b"\xff\xda") + 40):
            assert with_rows(data[:length], 64) is None

    def test_damaged_byte_never_raises(self):
        data, generator = jpeg(90, 130), np.random.default_rng(1)
        for number in [*range(700), *generator.integers(700, len(data), 100)]:
            damaged = bytearray(data)
            damaged[number] = generator.integers(256)
            for content in (damaged, damaged[: number + 1]):
                decode_jpeg(io.BytesIO(content), SIZE, lambda *_: (0, 0, 20, 20))
