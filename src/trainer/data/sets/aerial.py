"""Generated pictures of 21 land-use classes, in imitation of the UC Merced Land Use data set.

The class names are those of Y. Yang and S. Newsam, Bag-of-visual-words and spatial extensions for land-use
classification, ACM GIS 2010. The pictures are patterns: results on them do not carry over to photographs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Colour = tuple[int, int, int]
Pattern = Callable[[Floats, Floats], Floats]
"""Maps two coordinates (from -1 to 1 before a random rotation) to the weight of the feature's color, from 0 to 1."""
NOISE = 14.0
"""Standard deviation of the noise on each pixel, on a scale of 255."""

GRASS, CROP, FOREST, SAND, WATER = (96, 134, 72), (150, 160, 84), (40, 72, 40), (206, 186, 140), (58, 92, 118)
ASPHALT, CONCRETE, ROOF, EARTH = (92, 92, 96), (176, 174, 168), (158, 88, 70), (150, 128, 96)


class Look(NamedTuple):
    """Look of a class: a pattern in one color on a ground of another."""

    ground: Colour
    feature: Colour
    pattern: Pattern


def _stripes(number: float, width: float = 0.5) -> Pattern:
    return lambda u, _: _on(np.cos(np.pi * number * u) > 1 - 2 * width)


def _blocks(number: float, width: float) -> Pattern:
    lines = _stripes(number, width)
    return lambda u, v: lines(u, v) * lines(v, u)


def _discs(number: float, radius: float) -> Pattern:
    def distance(place: Floats) -> Floats:
        return (place * number / 2 + 0.5) % 1 - 0.5

    return lambda u, v: _on(np.hypot(distance(u), distance(v)) < radius)


def _band(width: float, bend: float = 0.0) -> Pattern:
    return lambda u, v: _on(np.abs(v - bend * np.sin(np.pi * u)) < width)


def _side(u: Floats, v: Floats) -> Floats:
    return _on(v > 0.15 * np.sin(2 * np.pi * u))


def _cross(u: Floats, v: Floats) -> Floats:
    return np.maximum(_band(0.18)(u, v), _band(0.18)(v, u))


def _diamond(size: float) -> Pattern:
    return lambda u, v: _on(np.abs(u) + np.abs(v) < size)


def _rectangle(width: float, height: float, left: float = 0.0) -> Pattern:
    return lambda u, v: _on((np.abs(u + left) < width) & (np.abs(v) < height))


def _plane(u: Floats, v: Floats) -> Floats:
    return np.maximum(_rectangle(0.7, 0.12)(u, v), _rectangle(0.14, 0.6, left=0.1)(u, v))


def _on(where: NDArray[np.bool_]) -> Floats:
    return where.astype(np.float64)


LOOKS = {
    "agricultural": Look(CROP, EARTH, _stripes(8)),
    "airplane": Look(ASPHALT, (235, 235, 235), _plane),
    "baseballdiamond": Look(GRASS, EARTH, _diamond(0.6)),
    "beach": Look(WATER, SAND, _side),
    "buildings": Look(ASPHALT, CONCRETE, _blocks(2, 0.7)),
    "chaparral": Look(SAND, FOREST, _discs(7, 0.25)),
    "denseresidential": Look(GRASS, ROOF, _blocks(7, 0.6)),
    "forest": Look(FOREST, GRASS, _discs(9, 0.2)),
    "freeway": Look(GRASS, ASPHALT, _stripes(1.2, 0.5)),
    "golfcourse": Look(GRASS, SAND, _discs(2, 0.2)),
    "harbor": Look(WATER, (230, 230, 230), _stripes(7, 0.35)),
    "intersection": Look(CONCRETE, ASPHALT, _cross),
    "mediumresidential": Look(GRASS, ROOF, _blocks(4, 0.5)),
    "mobilehomepark": Look(ASPHALT, (225, 220, 210), _blocks(9, 0.6)),
    "overpass": Look(EARTH, CONCRETE, _cross),
    "parkinglot": Look(ASPHALT, (200, 60, 60), _blocks(12, 0.5)),
    "river": Look(FOREST, WATER, _band(0.25, 0.4)),
    "runway": Look(GRASS, CONCRETE, _band(0.2)),
    "sparseresidential": Look(EARTH, ROOF, _blocks(2, 0.3)),
    "storagetanks": Look(EARTH, (235, 235, 235), _discs(3, 0.35)),
    "tenniscourt": Look(GRASS, (60, 110, 160), _rectangle(0.75, 0.4)),
}
"""Looks by class, in alphabetical order."""


def draw(look: Look, edge: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return a picture uint8 [edge, edge, 3] with random rotation, shift, scale, brightness and noise."""
    line = np.linspace(-1, 1, edge)
    x, y = np.meshgrid(line, line)
    angle, scale = generator.uniform(0, 2 * np.pi), generator.uniform(0.85, 1.15)
    x, y = x + generator.uniform(-0.15, 0.15), y + generator.uniform(-0.15, 0.15)
    share = look.pattern(
        scale * (np.cos(angle) * x + np.sin(angle) * y), scale * (np.cos(angle) * y - np.sin(angle) * x)
    )
    ground, feature = (np.array(colour) for colour in (look.ground, look.feature))
    picture = ground + share[..., None] * (feature - ground)
    picture = picture * generator.uniform(0.8, 1.2) + generator.normal(0, NOISE, picture.shape)
    return picture.round().clip(0, 255).astype(np.uint8)
