"""A photograph of 24 megapixels, and whether a page goes on while it reads one."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

# The frames that the page drew while it read an image, from the call that decodes it to its end.
COUNT_FRAMES = """() => {
    let frames = 0;
    const tick = () => { frames++; requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
    const decode = window.createImageBitmap.bind(window);
    window.framesWhileReading = [];
    window.createImageBitmap = async (...given) => {
        const before = frames;
        const bitmap = await decode(...given);
        window.framesWhileReading.push(frames - before);
        return bitmap;
    };
}"""
SHOWN = "all => all.map((image) => Math.max(image.naturalWidth, image.naturalHeight))"


def write_large(path: Path) -> Path:
    """Write a photograph of 24 megapixels that lies on its side."""
    image = Image.effect_noise((600, 400), 60).convert("RGB").resize((6000, 4000))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, quality=90, exif=exif)
    return path
