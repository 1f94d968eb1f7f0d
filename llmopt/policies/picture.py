"""Render an episode of a policy as an animated GIF."""

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
from llmopt.policies.scaling import title_of
from llmopt.policies.words.describe import step_seconds
from llmopt.util.files import write_bytes_atomically
from llmopt.util.text import a_type

FRAMES = 100
WIDTH = 320  # pixels
CAPTION = 16  # pixels


def choose_renderer() -> None:
    """Select off-screen rendering if there is no display.

    Call it before the first environment renders.
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
    except (gym.error.Error, ImportError) as error:
        raise LLMOptError(
            f"{title} cannot be rendered ({error}): {install_hint('bench')} installs the renderers"
        ) from error
    finally:
        env.close()
    file = Path(path).expanduser()
    if not file.absolute().parent.is_dir():  # never create a misspelt folder
        raise StorageError(f"cannot write {path}: there is no folder {file.parent}")
    write_bytes_atomically(file, data)


def policy_gif(
    env: gym.Env[Any, Any], act: Callable[[Any], Any], seed: int, step_cap: int, caption: str = ""
) -> bytes:
    """Render one episode of a policy as a GIF of at most `FRAMES` evenly spaced frames.

    It plays in simulated time (``render_fps``, else ``dt`` or ``tau``, else 30 steps a second), but
    in no more than about 11 seconds.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise LLMOptError(f"a GIF needs Pillow: {install_hint('bench')}") from error
    # A frame may take as long as 100 steps: run once for the length, then render few frames.
    first = episode(env, act, seed, step_cap)
    wanted = {*np.linspace(0, first.length - 1, min(FRAMES - 1, first.length)).round().tolist()}
    steps = itertools.count()
    frames: list[Any] = []

    def picture() -> Any:
        try:
            return _picture(env.render(), caption)
        except NotImplementedError:
            raise LLMOptError(
                f"{title_of(env)} renders no picture: it needs a method render() and must accept "
                "render_mode='rgb_array' (if a function makes it, as an argument of the function)"
            ) from None

    def drawn(observation: Any) -> Any:
        if next(steps) in wanted:
            frames.append(picture())
        return act(observation)

    again = episode(env, drawn, seed, step_cap)
    if again.error is not None and first.error is None:
        raise again.error  # of the rendering
    frames.append(picture())
    fps = float(env.metadata.get("render_fps") or 1 / (step_seconds(env) or 1 / 30))
    # Viewers show each frame for at least 20 ms.
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


def _picture(frame: Any, caption: str) -> Any:
    """Convert a ``(height, width, 3)`` frame to a picture of at most `WIDTH` pixels.

    A caption, if there is one, is a line of text below it.
    """
    from PIL import Image, ImageDraw

    if not isinstance(frame, np.ndarray):
        raise LLMOptError(
            f"render() returned {a_type(frame)}, no picture: the environment must accept "
            'render_mode="rgb_array" (if a function makes it, as an argument of the function)'
        )
    image: Any = Image.fromarray(frame.astype(np.uint8))
    if image.width > WIDTH:
        size = (WIDTH, round(image.height * WIDTH / image.width))
        image = image.resize(size, Image.Resampling.LANCZOS)
    if not caption:
        return image
    framed = Image.new("RGB", (image.width, image.height + CAPTION), "white")
    framed.paste(image)
    ImageDraw.Draw(framed).text((4, image.height + 2), caption, fill="black")
    return framed


def follow(env: gym.Env[Any, Any]) -> None:
    """Render a MuJoCo environment through its tracking camera, if it has one."""
    inner: Any = env.unwrapped
    renderer = getattr(inner, "mujoco_renderer", None)
    if renderer is None or getattr(renderer, "camera_id", 0) not in (None, -1):
        return
    import mujoco

    camera = mujoco.mj_name2id(inner.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:
        renderer.camera_id = camera
