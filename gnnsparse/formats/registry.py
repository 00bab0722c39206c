"""The registry of presets: named parameters of the blocked format, and what each format can compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gnnsparse.errors import bad_value
from gnnsparse.formats.policy import WindowPolicy, packed_kernel
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import Precision
from gnnsparse.registry import Names, Option, Registry, check_options

if TYPE_CHECKING:
    from gnnsparse.formats.blocked import BlockedMatrix

#: The precisions that Tensor Cores have: those of the window kernel.
TENSOR_PRECISIONS = (Precision.TF32, Precision.FP16, Precision.BF16)


@dataclass(frozen=True)
class Preset:
    """A named set of parameters of the blocked format.

    Attributes:
        spec: the parameters; its name is the preset's name.
        source: the paper and the section they are taken from.
        panels: the heights of panels that a caller may choose, each with the rows of a window at that
            height; empty: the height is that of `spec`.
        adapt: changes the parameters for a precision and a density, nnz / (rows * columns); None: they
            depend on neither.
        choose_panel: returns the height of panels, a key of `panels`, for a density if the caller chooses
            none; None: the height of `spec`.
        ops: the products that the format has: "spmm", and "sddmm", with which go edge values, the softmax
            over edges and attention.
        precisions: the precisions that the format has.
        added: those among them that the paper does not have and this project adds: bf16, which runs by the
            instructions of fp16.
        exclusive: whether products of the operand run in this format, or raise. False: the plan chooses
            among the format and others.
        paper_bytes: computes the bytes of a matrix by the formula of the format's paper, with offsets and
            indices of 32 bits and nothing that the paper does not store; None: there is no paper.
        public: whether `prepare` accepts the name. False: a form that only kernels use, made when a plan
            first needs it.
        policy: the policy of the window kernel that the format's paper describes.
        adapt_policy: changes the policy for a precision; None: it depends on none.
        options: what a caller may set by `prepare(..., format_options=...)`: names of fields of the
            parameters, each with the values it accepts.
    """

    spec: FormatSpec
    source: str
    panels: Mapping[int, int] = field(default_factory=dict)
    adapt: Callable[[FormatSpec, Precision, float], FormatSpec] | None = None
    choose_panel: Callable[[float], int] | None = None
    ops: tuple[str, ...] = ("spmm",)
    precisions: tuple[Precision, ...] = TENSOR_PRECISIONS
    added: tuple[Precision, ...] = ()
    exclusive: bool = True
    paper_bytes: Callable[[BlockedMatrix], int] | None = None
    public: bool = True
    policy: WindowPolicy = field(default_factory=WindowPolicy)
    adapt_policy: Callable[[WindowPolicy, Precision], WindowPolicy] | None = None
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for panel in self.panels:
            self.with_panel(panel)
        if not self.precisions or not set(self.added) <= set(self.precisions):
            bad_value("precisions", f"of {self.spec.name}: accepted: at least one, those in `added` included")
        if "spmm" not in self.ops or not set(self.ops) <= set(OPS):
            bad_value("ops", f"of {self.spec.name}: got {self.ops}; accepted: spmm, with or without sddmm")
        known = {f.name for f in fields(FormatSpec)}
        for name in self.options:
            if name not in known:
                bad_value("options", f"got {name!r} for {self.spec.name}; accepted: a field of FormatSpec")

    def with_panel(self, panel: int) -> FormatSpec:
        """Return the parameters with panels of `panel` rows, a key of `panels`."""
        return replace(self.spec, panel=panel, window=self.panels[panel])

    def policy_for(self, precision: Precision) -> WindowPolicy:
        """Return the paper's policy in a precision, or the default one if there is no such kernel."""
        policy = self.policy if self.adapt_policy is None else self.adapt_policy(self.policy, precision)
        if packed_kernel(self.spec):
            return policy
        return WindowPolicy() if policy.why_not(precision, self.spec.encoding, 16) else policy


#: The products that a format can have.
OPS = ("spmm", "sddmm")

#: The presets by name.
PRESETS: Registry[Preset] = Registry("format")

#: Formats that `prepare` accepts by name. "csr" has no blocked arrays; "auto" lets the plan choose.
FORMAT_NAMES = Names(PRESETS, "auto", "csr", where=lambda preset: preset.public)


def register_preset(spec: FormatSpec, source: str, **attributes: Any) -> Preset:
    """Register a preset under the name of `spec`.

    Args:
        spec: the parameters.
        source: the paper and the section they are taken from.
        attributes: further attributes of Preset.

    Raises:
        TypeError: Preset has no such attribute.
        ValueError: the name is taken, or an attribute does not go with the parameters.
    """
    if spec.name in ("auto", "csr"):
        bad_value("format", f"got {spec.name!r} to register; accepted: a name that is not taken")
    preset = Preset(spec, source, **attributes)
    PRESETS.register(spec.name, preset)
    return preset


def format_spec(
    name: str, precision: Precision | str = Precision.FP16, density: float = 0.0, panel: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> FormatSpec:  # fmt: skip
    """Return the parameters of a preset for a precision, a density and a height of panels.

    Args:
        name: name of a registered preset, public or not.
        precision: the precision; me-bcrs, for example, has blocks of 8 columns at 16 bits and of 4 at 32.
        density: nnz / (rows * columns); cvse, for example, has vectors of 16 rows from 0.1 on, else of 8.
        panel: rows of a panel, for presets that have several heights; None: the preset's choice.
        options: options of the preset, such as {"threshold": 4} for rs-tile; None: none.

    Raises:
        TypeError: `name`, `precision` or an option is of another type.
        ValueError: there is no such preset or precision, the preset has no such height or option, or an
            option is out of range.
    """
    precision = Precision.parse(precision)
    preset = PRESETS[PRESETS.check(name)]
    if panel is not None and panel not in preset.panels:
        heights = {other: known.panels for other, known in PRESETS.items() if known.panels}
        accepted = ", ".join(f"{' or '.join(map(str, rows))} for {other}" for other, rows in heights.items())
        bad_value("panel", f"got {panel} for {name}; accepted: {accepted}")
    if panel is None and preset.choose_panel is not None:
        panel = preset.choose_panel(density)
    spec = preset.spec if panel is None else preset.with_panel(panel)
    spec = replace(spec, **check_options("format_options", name, preset.options, options))
    return spec if preset.adapt is None else preset.adapt(spec, precision, density)


def exclusive_preset(name: str) -> Preset | None:
    """Return the preset called `name` if products of an operand in it run in that format alone."""
    preset = PRESETS.get(name)
    return preset if preset is not None and preset.exclusive else None


def operations(name: str) -> tuple[str, ...]:
    """Return the products that operands in a format have, "csr" and "auto" included."""
    preset = PRESETS.get(name)
    return ("spmm", "sddmm") if preset is None else preset.ops


def check_precision(name: str, precision: Precision) -> None:
    """Raise ValueError if a format does not have a precision.

    Args:
        name: name of a format, "csr" and "auto" included.
        precision: arithmetic of the products.
    """
    preset = PRESETS.get(name)
    if preset is None or precision in preset.precisions:
        return
    has = ", ".join(p.value for p in preset.precisions if p not in preset.added)
    added = ", ".join(p.value for p in preset.added)
    bad_value(
        "precision",
        f"got '{precision.value}' with the format {name} ({preset.source}), whose paper has {has}"
        f"{f', to which this project adds {added}' if added else ''}; accepted: "
        f"{', '.join(p.value for p in preset.precisions)}, or format='auto' or 'csr', which have all",
    )


def require_operation(argument: str, name: str, what: str, op: str | None) -> None:
    """Raise ValueError if a format is exclusive and has no operation that an argument asks for.

    Args:
        argument: the argument's name in the error.
        name: name of the operand's format.
        what: the operation in words, such as "edge values".
        op: the product that the operation is made of: "spmm" or "sddmm"; None: no exclusive format has it.
    """
    preset = exclusive_preset(name)
    if preset is None or op in preset.ops:
        return
    others = [n for n in FORMAT_NAMES if exclusive_preset(n) is None or (op and op in operations(n))]
    bad_value(
        argument,
        f"asks for {what}, which the format {name} ({preset.source}) does not have; accepted: an operand "
        f"that was prepared with format={' or '.join(map(repr, others))}",
    )
