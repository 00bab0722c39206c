"""The registry of presets: the blocked format under the names of the papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from gnnsparse.errors import bad_value
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import Precision
from gnnsparse.registry import Names, Registry

__all__ = ["FORMAT_NAMES", "PRESETS", "Preset", "format_spec", "register_preset"]

#: What a preset's parameters become for a precision and a density, nnz / (rows * columns).
Adapt = Callable[[FormatSpec, Precision, float], FormatSpec]


@dataclass(frozen=True)
class Preset:
    """Parameters of the blocked format under a name.

    Attributes:
        spec: the parameters; its name is that of the preset.
        source: the paper and the section they are taken from.
        panels: heights that a caller may ask for, with the rows of a window at each; none: the height is
            that of `spec`.
        adapt: changes the parameters where they depend on the precision or on the density; None: they
            don't.
        public: whether `prepare` accepts the name. False: the kernels' own form, which is made when a plan
            first wants it.
    """

    spec: FormatSpec
    source: str
    panels: Mapping[int, int] = field(default_factory=dict)
    adapt: Adapt | None = None
    public: bool = True

    def __post_init__(self) -> None:
        for panel in self.panels:
            self.with_panel(panel)

    def with_panel(self, panel: int) -> FormatSpec:
        """The parameters with panels of one of the heights in `panels`."""
        return replace(self.spec, panel=panel, window=self.panels[panel])


#: The presets by name.
PRESETS: Registry[Preset] = Registry("format")

#: Formats that `prepare` accepts by name. "csr" has no blocked arrays; "auto" lets the plan choose.
FORMAT_NAMES = Names(PRESETS, "auto", "csr", where=lambda preset: preset.public)


def register_preset(
    spec: FormatSpec,
    source: str,
    *,
    panels: Mapping[int, int] | None = None,
    adapt: Adapt | None = None,
    public: bool = True,
) -> Preset:
    """Registers a preset under the name of its parameters; the arguments are the attributes of Preset.

    Raises:
        ValueError: the name is taken, or a height in `panels` does not go with the parameters.
    """
    if spec.name in ("auto", "csr"):
        bad_value("format", f"got {spec.name!r} to register; accepted: a name that is not taken")
    preset = Preset(spec, source, panels or {}, adapt, public)
    PRESETS.register(spec.name, preset)
    return preset


def format_spec(
    name: str, precision: Precision | str = Precision.FP16, density: float = 0.0, panel: int | None = None
) -> FormatSpec:
    """The parameters of a preset.

    Args:
        name: of a registered preset, public or not.
        precision: some presets depend on it: me-bcrs has blocks of 8 columns at 16 bits and of 4 at 32.
        density: nnz / (rows * columns). Some presets depend on it: cvse takes vectors of 16 rows from 0.1
            on and of 8 below.
        panel: rows that share a column list, where the preset leaves the choice.

    Raises:
        ValueError: there is no such preset, or it has no such panel.
    """
    precision = Precision.parse(precision)
    preset = PRESETS[PRESETS.check(name)]
    if panel is not None and panel not in preset.panels:
        _refuse_panel(name, panel)
    spec = preset.spec if panel is None else preset.with_panel(panel)
    return spec if preset.adapt is None else preset.adapt(spec, precision, density)


def _refuse_panel(name: str, panel: int) -> NoReturn:
    accepted = ", ".join(
        f"{' or '.join(map(str, preset.panels))} for {other}"
        for other, preset in PRESETS.items()
        if preset.panels
    )
    bad_value("panel", f"got {panel} for {name}; accepted: {accepted}")
