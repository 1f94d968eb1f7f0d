"""A policy at work, as an animated GIF."""

from __future__ import annotations

import ctypes.util
import io
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.errors import LLMOptError, StorageError, install_hint
from llmopt.policies.episode import episode
from llmopt.util.files import write_bytes_atomically
from llmopt.util.text import a_type

FRAMES = 100
WIDTH = 320  # pixels
CAPTION = 16  # pixels


def choose_renderer() -> None:
    """Let pictures be drawn without a screen; nothing changes where there is one.

    It must run before the first environment renders.
    """
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if ctypes.util.find_library("EGL"):
            os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def write_gif(
    path: str | os.PathLike[str],
    make: Callable[[str], gym.Env[Any, Any]],
    title: str,
    act: Callable[[Any], Any],
    seed: int,
    step_cap: int,
) -> None:
    """Write one episode of a policy as an animated GIF; see `policy_gif`."""
    choose_renderer()
    env = make("rgb_array")
    try:
        follow(env)
        data = policy_gif(env, act, seed, step_cap)
    except NotImplementedError as error:
        raise LLMOptError(
            f"{title} renders no picture: it needs a method render() and must take "
            "render_mode='rgb_array' (a function that makes it, as an argument of that name)"
        ) from error
    except (gym.error.Error, ImportError) as error:
        raise LLMOptError(
            f"{title} cannot be drawn ({error}): {install_hint('bench')} brings the renderers"
        ) from error
    finally:
        env.close()
    if not Path(path).absolute().parent.is_dir():  # a folder that is misspelt is not made
        raise StorageError(f"cannot write {path}: there is no folder {Path(path).parent}")
    write_bytes_atomically(Path(path), data)


def policy_gif(
    env: gym.Env[Any, Any], act: Callable[[Any], Any], seed: int, step_cap: int, caption: str = ""
) -> bytes:
    """Render one episode of a policy as a GIF: at most `FRAMES` frames, evenly spread.

    It plays in the episode's own time, but in no more than about 11 seconds.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise LLMOptError(f"a GIF needs Pillow: {install_hint('bench')}") from error
    # A frame may cost a hundred steps: run once to learn the length, then draw few.
    first = episode(env, act, seed, step_cap)
    wanted = {*np.linspace(0, first.length - 1, min(FRAMES - 1, first.length)).round().tolist()}
    steps = itertools.count()
    frames: list[Any] = []

    def drawn(observation: Any) -> Any:
        if next(steps) in wanted:
            frames.append(_captioned(_shrink(env.render()), caption))
        return act(observation)

    again = episode(env, drawn, seed, step_cap)
    if again.error is not None and first.error is None:
        raise again.error  # of the drawing
    frames.append(_captioned(_shrink(env.render()), caption))
    fps = float(env.metadata.get("render_fps") or 30)
    # A viewer shows no frame for less than 20 ms.
    pause = int(np.clip(1000 * first.length / max(len(wanted), 1) / fps, 20, 100))
    palette = [f.quantize(128, dither=Image.Dither.NONE) for f in frames]
    buffer = io.BytesIO()
    palette[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=palette[1:],
        duration=[pause] * (len(palette) - 1) + [1000],
        loop=0,
        optimize=False,
    )
    return buffer.getvalue()


def _shrink(frame: Any) -> Any:
    """Turn a rendered ``(height, width, 3)`` frame into a picture no wider than `WIDTH`."""
    from PIL import Image

    if not isinstance(frame, np.ndarray):
        raise LLMOptError(
            f"render() gave {a_type(frame)}, no picture: the environment must take "
            'render_mode="rgb_array" (a function that makes it, as an argument of that name)'
        )
    image = Image.fromarray(frame.astype(np.uint8))
    if image.width > WIDTH:
        size = (WIDTH, round(image.height * WIDTH / image.width))
        image = image.resize(size, Image.Resampling.LANCZOS)
    return image


def _captioned(image: Any, caption: str) -> Any:
    """Return a picture with a line of text below it; as it is for an empty one."""
    from PIL import Image, ImageDraw

    if not caption:
        return image
    framed = Image.new("RGB", (image.width, image.height + CAPTION), "white")
    framed.paste(image)
    ImageDraw.Draw(framed).text((4, image.height + 2), caption, fill="black")
    return framed


def follow(env: gym.Env[Any, Any]) -> None:
    """Let a MuJoCo environment be seen through its camera that follows the body, if it has one."""
    inner: Any = env.unwrapped
    renderer = getattr(inner, "mujoco_renderer", None)
    if renderer is None or getattr(renderer, "camera_id", 0) not in (None, -1):
        return
    import mujoco

    camera = mujoco.mj_name2id(inner.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:
        renderer.camera_id = camera
