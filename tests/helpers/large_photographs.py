"""A photograph of 24 megapixels, and whether a page goes on while it reads one."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

# Whether the page had a turn while it read a picture: what is posted before comes first, unless the page itself reads.
COUNT_TURNS = """() => {
    const decode = window.createImageBitmap.bind(window);
    window.turnsWhileReading = [];
    window.createImageBitmap = async (...given) => {
        let turns = 0;
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => { turns++; };
        port2.postMessage(null);
        const bitmap = await decode(...given);
        window.turnsWhileReading.push(turns);
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
