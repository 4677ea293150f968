"""How far a long computation has come."""

from collections.abc import Callable


def reporter(progress: bool | Callable[[int, int], None], size: int, unit: str) -> Callable[[int | None], None]:
    """Told how many more are done, or None at the end; shows a bar, or calls ``progress`` with (done, in all)."""
    done = 0
    if callable(progress):

        def tell(more: int | None) -> None:
            nonlocal done
            if more is not None:
                done += more
                progress(done, size)

        return tell
    if not progress:
        return lambda _: None
    from tqdm import tqdm  # which numpyro brings along

    bar = tqdm(total=size, unit=f" {unit}", unit_scale=True)

    def show(more: int | None) -> None:
        if more is None:
            bar.close()
        else:
            bar.update(more)

    return show
