from __future__ import annotations

import io
import json
import pickle
import re
import resource
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from shardloader.errors import DecodeError, MissingExtraError, UsageError
from shardloader.reading.decode import DEFAULT_DECODERS, RawArray, located, resolve
from shardloader.reading.images import MAX_PIXELS, Jpeg, Png

DEFAULT = resolve("default")


def npy(array: np.ndarray, **options) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def image_file(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(pixels: np.ndarray, mode: str | None = None, **options) -> bytes:
    image = Image.fromarray(pixels)
    return image_file(image.convert(mode) if mode else image, "PNG", **options)


def palette_png() -> tuple[bytes, np.ndarray]:
    indices = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    image = Image.new("P", (3, 2))
    image.putdata(indices.ravel().tolist())
    image.putpalette([9, 8, 7, 10, 20, 30, 255, 0, 128])
    return image_file(image, "PNG"), indices


@pytest.mark.parametrize("field", ["txt", "text", "transcript", "TXT", "en.txt"])
def test_text_is_strict_utf8(field: str) -> None:
    assert DEFAULT.decode(field, "日本語 🐱".encode()) == "日本語 🐱"
    with pytest.raises(DecodeError, match=f"{field}.*2 bytes.*utf-8"):
        DEFAULT.decode(field, b"\xff\xfe")


def test_json_is_decoded_and_says_where_it_is_broken() -> None:
    assert DEFAULT.decode("json", b'{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(DecodeError, match=r"'meta\.jsn'.*line 1 column 2"):
        DEFAULT.decode("meta.jsn", b"{")


def test_json_nested_without_end_is_an_error_of_the_data() -> None:
    with pytest.raises(DecodeError, match="RecursionError"):
        DEFAULT.decode("json", b"[" * 200_000)


@pytest.mark.parametrize("field", ["cls", "cls2", "class", "count", "index", "inx", "id"])
def test_whole_numbers_are_decimal(field: str) -> None:
    assert DEFAULT.decode(field, b"-12\n") == -12
    for bad in (b"", b"1_000", b"cat", "٣".encode(), b"1.5", b"0x1"):
        with pytest.raises(DecodeError, match="is no integer"):
            DEFAULT.decode(field, bad)


def test_a_number_of_absurd_length_is_an_error_of_the_data() -> None:
    with pytest.raises(DecodeError, match="limit"):
        DEFAULT.decode("cls", b"9" * 10_000)


@given(
    hnp.arrays(
        dtype=st.one_of(
            hnp.scalar_dtypes(),
            st.just(np.dtype([("a", "<i2"), ("b", ">f8", (2,))])),
            st.just(np.dtype("<U3")),
        ),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
        elements=None,
    ),
    st.booleans(),
)
def test_a_numpy_array_reads_back_the_same_and_owns_its_memory(array, fortran) -> None:
    array = np.asarray(array, order="F" if fortran else "C")
    data = bytearray(npy(array))
    back = DEFAULT.decode("npy", memoryview(data))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable
    data[:] = bytes(len(data))
    assert back.tobytes() == array.tobytes()


def test_numpy_reads_files_whose_field_names_are_not_latin() -> None:
    array = np.zeros(2, np.dtype([("é猫", "<i4")]))
    with pytest.warns(UserWarning, match="format 3.0"):
        data = npy(array)
    assert DEFAULT.decode("npy", data).dtype == array.dtype


def test_python_objects_in_an_array_are_never_unpickled() -> None:
    data = npy(np.array([object], dtype=object), allow_pickle=True)
    with pytest.raises(DecodeError, match="Python objects"):
        DEFAULT.decode("npy", data)


@pytest.mark.parametrize("cut", [0, 5, 9, 40, 130, 151])
def test_a_cut_array_is_an_error_of_the_data(cut: int) -> None:
    with pytest.raises(DecodeError, match="'npy'"):
        DEFAULT.decode("npy", npy(np.arange(3))[:cut])


def test_an_array_that_claims_more_than_is_there_allocates_nothing() -> None:
    data = npy(np.arange(3)).replace(b"(3,)", b"(300000000000000,)")
    with pytest.raises(DecodeError):
        DEFAULT.decode("npy", data)


def npy_of(header: str, version: int, numbers: bytes = b"") -> bytes:
    text = header.encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + length + text + numbers


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    "claim",
    [
        "{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000,)}",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (100000000000,)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (100000000000,)}",
        "{'descr': '|V1000000000000', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 4)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-1, -4)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (0.5,)}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': 1}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': 'no', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<i8', 'shape': (1,)}",
        "__import__('os').abort()",
        "[" * 5000,
        "[" * 20000,
        "-" * 9000 + "1",
    ],
)
def test_what_an_array_claims_is_held_against_what_is_there(version, claim) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory_in_use() + (1 << 30), before[1]))
    try:
        with pytest.raises(DecodeError) as caught:
            DEFAULT.decode("npy", npy_of(claim, version, bytes(8)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "MemoryError" not in str(caught.value)


def test_want_of_memory_is_no_fault_of_the_data() -> None:
    def greedy(_: bytes) -> object:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        resolve({"bin": greedy}).decode("bin", b"x")


def _memory_in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def test_a_header_of_another_version_is_refused() -> None:
    with pytest.raises(DecodeError, match="versions 1 to 3"):
        DEFAULT.decode("npy", npy_of("{}", 4))


def test_a_jpeg_is_rgb_whatever_it_is_stored_as() -> None:
    for mode in ("RGB", "L", "CMYK"):
        image = Image.new("RGB", (40, 30), (200, 200, 200)).convert(mode)
        pixels = DEFAULT.decode("jpg", image_file(image, "JPEG"))
        assert pixels.shape == (30, 40, 3)
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable
        assert np.abs(pixels.astype(int) - 200).max() <= 3, mode


def test_a_cut_jpeg_is_an_error_of_the_data() -> None:
    rng = np.random.default_rng(0)
    data = image_file(Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")
    for cut in (0, 10, len(data) // 2):
        with pytest.raises(DecodeError, match="'jpeg'"):
            DEFAULT.decode("jpeg", data[:cut])


def test_a_png_keeps_its_channels() -> None:
    rng = np.random.default_rng(0)
    for channels in (1, 2, 3, 4):
        pixels = rng.integers(0, 255, (5, 7, channels), np.uint8)
        data = png(pixels[:, :, 0] if channels == 1 else pixels)
        np.testing.assert_array_equal(DEFAULT.decode("png", data), pixels)


def test_a_png_of_16_bits_keeps_them() -> None:
    pixels = np.array([[0, 1, 256], [40_000, 65_535, 7]], np.uint16)
    back = DEFAULT.decode("png", png(pixels))
    assert back.dtype == np.uint16
    np.testing.assert_array_equal(back[:, :, 0], pixels)
    rgb = resolve({"png": "rgb"}).decode("png", png(pixels))
    np.testing.assert_array_equal(rgb, np.repeat((pixels >> 8)[:, :, None], 3, axis=2))


def test_a_png_of_one_bit_is_black_and_white() -> None:
    bits = np.array([[True, False, True]])
    data = image_file(Image.fromarray(bits), "PNG")
    np.testing.assert_array_equal(DEFAULT.decode("png", data)[:, :, 0], [[255, 0, 255]])
    np.testing.assert_array_equal(DEFAULT.decode("mask.png", data), [[1, 0, 1]])


def test_a_palette_is_looked_up_in_an_image_and_its_indices_are_kept_in_a_mask() -> None:
    data, indices = palette_png()
    colours = np.array([[9, 8, 7], [10, 20, 30], [255, 0, 128]], np.uint8)
    np.testing.assert_array_equal(DEFAULT.decode("png", data), colours[indices])
    np.testing.assert_array_equal(DEFAULT.decode("seg.png", data), indices)
    np.testing.assert_array_equal(resolve({"png": "rgb"}).decode("png", data), colours[indices])


def test_a_colour_image_is_no_mask() -> None:
    with pytest.raises(DecodeError, match="a mask has one channel"):
        DEFAULT.decode("seg.png", png(np.zeros((2, 2, 3), np.uint8)))


def test_a_palette_with_transparency_has_four_channels() -> None:
    image = Image.new("P", (3, 2))
    image.putpalette([1, 2, 3])
    back = DEFAULT.decode("png", image_file(image, "PNG", transparency=0))
    assert back.shape == (2, 3, 4)
    assert back[0, 0].tolist() == [1, 2, 3, 0]


def test_rgb_drops_alpha_and_repeats_grey() -> None:
    table = resolve({"png": "rgb"})
    grey_alpha = np.full((2, 2, 2), (77, 0), np.uint8)
    np.testing.assert_array_equal(table.decode("png", png(grey_alpha)), np.full((2, 2, 3), 77))


def huge_png() -> bytes:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    crc = struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + crc


def huge_jpeg() -> bytes:
    data = bytearray(image_file(Image.new("L", (8, 8)), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


@pytest.mark.parametrize(
    ("field", "data"),
    [("png", huge_png()), ("seg.png", huge_png()), ("jpg", huge_jpeg())],
    ids=["png", "seg.png", "jpg"],
)
def test_an_image_bomb_is_refused_by_its_header(field: str, data: bytes) -> None:
    with pytest.raises(DecodeError, match=f"more than the {MAX_PIXELS}"):
        DEFAULT.decode(field, data)


def png_with_a_late_header() -> bytes:
    """A PNG that begins with another chunk, where a glance would see a small image."""
    chunk = b"tEXt" + struct.pack(">II", 1, 1) + b"k\0v"
    other = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = b"IDAT" + zlib.compress(b"")
    body = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return huge_png()[:8] + other + huge_png()[8:] + body


def test_a_png_whose_size_comes_late_is_measured_too() -> None:
    with pytest.raises(DecodeError, match=f"more than the {MAX_PIXELS}"):
        DEFAULT.decode("png", png_with_a_late_header())


def test_a_limit_of_pixels_is_stated_and_can_be_moved_for_a_field() -> None:
    pixels = np.zeros((10, 20, 3), np.uint8)
    images = {"jpg": image_file(Image.fromarray(pixels), "JPEG"), "png": png(pixels)}
    for field, kind in (("jpg", Jpeg), ("png", Png)):
        assert resolve({field: kind(max_pixels=200)}).decode(field, images[field]).shape == (
            10,
            20,
            3,
        )
        with pytest.raises(DecodeError, match=r"more than the 199 .*max_pixels=\.\.\."):
            resolve({field: kind(max_pixels=199)}).decode(field, images[field])
        with pytest.raises(UsageError, match="max_pixels"):
            kind(max_pixels=0)
    assert resolve({"png": Png("mask", max_pixels=MAX_PIXELS * 4)}) != resolve({"png": Png()})
    with pytest.raises(UsageError, match="one of png, rgb, mask"):
        Png("jpeg")


def test_above_the_default_limit_an_image_is_read_without_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # of the process, which is not asked
    assert resolve({"png": Png(max_pixels=4)}).decode("png", png(np.ones((2, 2), np.uint8))).shape[
        :2
    ] == (
        2,
        2,
    )
    assert DEFAULT.decode("png", png(np.zeros((40, 2), np.uint8))).shape == (40, 2, 1)


@pytest.mark.parametrize("field", ["png", "jpg", "seg.png"])
@pytest.mark.parametrize("data", [b"", b"<html>404</html>" * 4, b"\x89PNG\r\n\x1a\n" + bytes(30)])
def test_what_is_no_image_is_an_error_of_the_data(field: str, data: bytes) -> None:
    with pytest.raises(DecodeError, match=repr(field)):
        DEFAULT.decode(field, data)


@pytest.mark.parametrize(
    ("field", "package"), [("jpg", "simplejpeg"), ("png", "PIL"), ("seg.png", "PIL")]
)
def test_a_missing_library_names_the_extra(field, package, monkeypatch) -> None:
    data = png(np.zeros((2, 2), np.uint8))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardloader\[images\]'"):
        DEFAULT.decode(field, data)


@pytest.mark.parametrize("field", ["bin", "bytes", "pickle", "pyd", "pt", "pth", "xyz", "seg.PT"])
def test_what_has_no_decoder_comes_as_bytes_and_nothing_is_unpickled(field: str) -> None:
    data = pickle.dumps({"a": 1})
    assert DEFAULT.decode(field, memoryview(data)) == data
    assert type(DEFAULT.decode(field, memoryview(data))) is bytes


def test_without_decoding_every_field_is_bytes() -> None:
    assert resolve(None).decode("json", b"{}") == b"{}"


def test_own_decoders_are_laid_over_the_default() -> None:
    table = resolve({"JPG": len, "cls": "text", "txt": None, "left.txt": len})
    assert table.decode("jpg", b"abc") == 3
    assert table.decode("cls", b"cat") == "cat"
    assert table.decode("txt", b"x") == b"x"
    assert table.decode("json", b"1") == 1
    with pytest.raises(DecodeError):
        table.decode("jpeg", b"abc")


def test_a_whole_field_goes_before_its_extension() -> None:
    table = resolve({"txt": "bytes", "left.txt": "text"})
    assert table.decode("left.txt", b"x") == "x"
    assert table.decode("right.txt", b"x") == b"x"


def test_the_callers_extension_goes_before_the_defaults_field() -> None:
    assert resolve({"png": "bytes"}).decode("seg.png", b"x") == b"x"
    assert DEFAULT_DECODERS.keys() >= {"seg.png", "png"}


def test_what_a_callers_decoder_raises_names_the_field_and_keeps_its_cause() -> None:
    nothing: dict[str, int] = {}
    with pytest.raises(DecodeError, match=r"'abc'.*KeyError.*no such") as caught:
        resolve({"abc": lambda _: nothing["no such"]}).decode("abc", b"")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "wrong", ["rgb8", 3, {"jpg": "pil"}, {".jpg": "jpeg"}, {"": "text"}, {3: "text"}, {"a": 3}]
)
def test_a_wrong_option_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        resolve(wrong)


def test_a_table_and_its_error_cross_to_another_process() -> None:
    table = pickle.loads(pickle.dumps(resolve({"jpg": "bytes"})))
    assert table == resolve({"jpg": "bytes"})
    with pytest.raises(DecodeError) as caught:
        table.decode("json", b"{")
    error = pickle.loads(pickle.dumps(located(caught.value, shard="a.tar", key="k", offset=512)))
    for part in ("'a.tar'", "'k'", "512", "'json'", "line 1"):
        assert part in str(error)


@given(st.sampled_from(sorted(DEFAULT_DECODERS)), st.binary(max_size=300))
def test_any_bytes_are_a_value_or_an_error_of_the_data(field: str, data: bytes) -> None:
    try:
        DEFAULT.decode(field, data)
    except DecodeError as error:
        refused = str(error)
    else:
        refused = repr(field)
    assert repr(field) in refused


def test_a_callers_decoder_gets_bytes_and_is_named_where_it_fails() -> None:
    table = resolve({"json": json.loads, "cls": lambda data: 1 // 0})
    assert table.decode("json", memoryview(b'{"a": 1}')) == {"a": 1}
    with pytest.raises(DecodeError, match=r"field 'cls' \(1 bytes\) its decode= raised ZeroDiv"):
        table.decode("cls", memoryview(b"7"))


def a_jpeg(height: int, width: int) -> bytes:
    return image_file(Image.new("RGB", (width, height), (200, 30, 60)), "JPEG")


@pytest.mark.parametrize(
    ("min_size", "shape"),
    [
        ((224, 224), (250, 375, 3)),  # 4/8: 3/8 would be 188 high
        ((500, 750), (500, 750, 3)),
        ((1, 1), (63, 94, 3)),  # 1/8, rounded up
        ((2000, 10), (500, 750, 3)),  # an image that is smaller comes as it is
        ((10, 300), (250, 375, 3)),
    ],
)
def test_a_jpeg_is_decoded_at_the_smallest_scale_that_has_the_size(min_size, shape) -> None:
    table = resolve({"jpg": Jpeg(min_size=min_size)})
    pixels = table.decode("jpg", a_jpeg(500, 750))
    assert (pixels.shape, pixels.dtype) == (shape, np.uint8)
    assert abs(pixels.astype(int) - [200, 30, 60]).max() < 6


@pytest.mark.parametrize("min_size", [224, (224,), (0, 224), (224, 224, 3), ("a", 1)])
def test_a_size_that_is_no_height_and_width_is_refused(min_size) -> None:
    with pytest.raises(UsageError, match=r"^Jpeg\(min_size=\)"):
        Jpeg(min_size=min_size)


@pytest.mark.parametrize("dtype", ["uint16", ">u2", np.int8, np.dtype("<f4"), "bool"])
def test_bare_numbers_are_read_in_the_declared_dtype_and_shape(dtype) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    decoder = RawArray(dtype, (2, 3))
    got = resolve({"bin": decoder}).decode("bin", array.tobytes())
    assert got.dtype == array.dtype
    assert got.flags.writeable
    assert (got == array).all()
    assert pickle.loads(pickle.dumps(decoder)) == decoder


def test_bare_numbers_of_another_length_are_bad_data() -> None:
    table = resolve({"bin": RawArray("uint16", (2048,))})
    with pytest.raises(DecodeError, match=r"takes 4096 bytes, and 4095 are there"):
        table.decode("bin", bytes(4095))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("O", (2,)), ("S0", (2,)), ("nonsense", (2,)), ("u2", 5), ("u2", (0,)), ("u2", (2.0,))],
)
def test_a_declaration_that_makes_no_sense_is_refused(dtype, shape) -> None:
    with pytest.raises(UsageError, match=r"^RawArray\((dtype|shape)=\)"):
        RawArray(dtype, shape)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it has 0 bytes"),
        (b"<html>Not found</html>", "it looks like HTML"),
        (b"\x89PNG\r\n\x1a\n", "it begins as a PNG does: name its decoder"),
        (b"RIFF....WEBP", "it begins as a WebP does"),
        (b"RIFF....WAVE", "it begins as a WAV does"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"what else", "it begins b'what else'"),
    ],
)
@pytest.mark.parametrize("field", ["jpg", "png"])
def test_what_is_no_image_is_told_by_what_it_seems_to_be(field, data, says):
    if field == "png" and data.startswith(b"\x89PNG"):
        data, says = b"\xff\xd8\xff\xe0", "it begins as a JPEG does"
    with pytest.raises(DecodeError, match=re.escape(says)):
        resolve("default").decode(field, data)


def test_a_shape_within_the_kind_of_number_is_no_array():
    header = b"{'descr': '3<f8', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24)
    with pytest.raises(DecodeError, match="the shape stands apart from the kind of number"):
        resolve("default").decode("npy", data)
