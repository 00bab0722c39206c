"""The registry of presets: named parameters of the blocked format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from gnnsparse.errors import bad_value
from gnnsparse.formats.policy import WindowPolicy
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import Precision
from gnnsparse.registry import Names, Registry

__all__ = ["FORMAT_NAMES", "PRESETS", "Preset", "format_spec", "register_preset"]

#: Changes a preset's parameters for a precision and a density, nnz / (rows * columns).
Adapt = Callable[[FormatSpec, Precision, float], FormatSpec]
#: Changes a preset's policy for a precision.
AdaptPolicy = Callable[[WindowPolicy, Precision], WindowPolicy]


@dataclass(frozen=True)
class Preset:
    """A named set of parameters of the blocked format.

    Attributes:
        spec: the parameters; its name is the preset's name.
        source: the paper and the section they are taken from.
        panels: the heights of panels that a caller may choose, each with the rows of a window at that
            height; empty: the height is that of `spec`.
        adapt: changes the parameters for a precision and a density; None: they depend on neither.
        public: whether `prepare` accepts the name. False: a form that only kernels use, made when a plan
            first needs it.
        policy: the policy of the window kernel that the format's paper describes.
        adapt_policy: changes the policy for a precision; None: it depends on none.
    """

    spec: FormatSpec
    source: str
    panels: Mapping[int, int] = field(default_factory=dict)
    adapt: Adapt | None = None
    public: bool = True
    policy: WindowPolicy = field(default_factory=WindowPolicy)
    adapt_policy: AdaptPolicy | None = None

    def __post_init__(self) -> None:
        for panel in self.panels:
            self.with_panel(panel)

    def with_panel(self, panel: int) -> FormatSpec:
        """Returns the parameters with panels of `panel` rows, a key of `panels`."""
        return replace(self.spec, panel=panel, window=self.panels[panel])

    def policy_for(self, precision: Precision) -> WindowPolicy:
        """Returns the paper's policy in a precision, or the default one if there is no such kernel."""
        policy = self.policy if self.adapt_policy is None else self.adapt_policy(self.policy, precision)
        return WindowPolicy() if policy.why_not(precision, self.spec.encoding, 16) else policy


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
    policy: WindowPolicy | None = None,
    adapt_policy: AdaptPolicy | None = None,
) -> Preset:
    """Registers a preset under the name of `spec`; the arguments are the attributes of Preset.

    Raises:
        ValueError: the name is taken, or a height in `panels` does not go with the parameters.
    """
    if spec.name in ("auto", "csr"):
        bad_value("format", f"got {spec.name!r} to register; accepted: a name that is not taken")
    preset = Preset(spec, source, panels or {}, adapt, public, policy or WindowPolicy(), adapt_policy)
    PRESETS.register(spec.name, preset)
    return preset


def format_spec(
    name: str, precision: Precision | str = Precision.FP16, density: float = 0.0, panel: int | None = None
) -> FormatSpec:
    """Returns the parameters of a preset for a precision, a density and a height of panels.

    Args:
        name: name of a registered preset, public or not.
        precision: the precision; me-bcrs, for example, has blocks of 8 columns at 16 bits and of 4 at 32.
        density: nnz / (rows * columns); cvse, for example, has vectors of 16 rows from 0.1 on, else of 8.
        panel: rows of a panel, for presets that have several heights; None: the preset's default.

    Raises:
        TypeError: `name` or `precision` is of another type.
        ValueError: there is no such preset or precision, or the preset has no such height.
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
