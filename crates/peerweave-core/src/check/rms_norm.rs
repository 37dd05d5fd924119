//! Checks the arguments of an all-reduce with RMSNorm, and converts the call to an operation.

use super::collective::{CollectiveExtras, collective};
use super::{Prepared, apart, argument, team};
use crate::Result;
use crate::arguments::rms_norm::ErasedScale;
use crate::arguments::span::Span;
use crate::backend::error::{MisuseKind, misuse};
use crate::backend::{CollectiveKind, Kept, NormScale, Quantization, RmsNorm, Special};
use crate::bounds::{length, wrong_value};
use crate::world::team::Team;

/// The arguments of an all-reduce with RMSNorm, with their element types erased.
pub(crate) struct NormCall<'a> {
    /// The input. If `output` is `None`, the result replaces the input.
    pub(crate) input: Span<'a>,
    pub(crate) residual: Span<'a>,
    pub(crate) output: Option<Span<'a>>,
    pub(crate) weight: Span<'a>,
    pub(crate) epsilon: f32,
    /// The scale by which the result is divided before quantisation. The scale is one number for
    /// all rows, or memory for one computed scale per row. `None` if the result is not quantised.
    pub(crate) scale: Option<ErasedScale<'a>>,
}

/// Checks an all-reduce with RMSNorm. Returns the operation, and a list of the owners of its
/// memory. The list is separate, because a [`Prepared`] holds at most three owners.
pub(crate) fn rms_norm<'a>(call: &'static str, of: &Team, given: NormCall<'a>) -> Result<(Prepared<'a>, Kept)> {
    let NormCall { input, residual, output, weight, epsilon, scale } = given;
    team(call, of)?;
    let first = if output.is_some() { "input" } else { "buffer" };
    let rows = match &scale {
        Some(ErasedScale::Rows(rows)) => Some(*rows),
        _ => None,
    };
    let named =
        [(first, Some(input)), ("residual", Some(residual)), ("output", output), ("weight", Some(weight)), ("scales", rows)];
    let present = || named.iter().filter_map(|(name, span)| Some((*name, span.as_ref()?)));
    present().try_for_each(|(name, span)| argument(call, &of.inner.shared, name, span))?;
    let hidden = weight.len;
    if hidden == 0 || hidden > RmsNorm::MOST_HIDDEN {
        let found = format!("{hidden} elements");
        return Err(wrong_value(call, "weight", found, "1 to 16777215 elements (the length of a row)"));
    }
    if !input.len.is_multiple_of(hidden) {
        let found = format!("{} elements", input.len);
        let expected = "a multiple of the length of `weight` (the length of a row)";
        return Err(wrong_value(call, first, found, expected));
    }
    length(call, "residual", residual.len, input.len)?;
    if let Some(output) = &output {
        length(call, "output", output.len, input.len)?;
    }
    if let Some(rows) = &rows {
        length(call, "scales", rows.len, input.len / hidden)?;
    }
    if !(epsilon.is_normal() && epsilon > 0.0) {
        return Err(wrong_value(call, "epsilon", epsilon, "a positive, finite number that is not subnormal"));
    }
    if let Some(ErasedScale::Static(scale)) = scale
        && !(scale > 0.0 && scale.is_finite() && (1.0 / scale).is_finite())
    {
        return Err(wrong_value(call, "scale", scale, "a positive, finite number whose inverse is finite"));
    }
    if let Some(output) = &output {
        apart(call, &["input", "output"], &input, output)?;
    }
    // Compares each pair of buffers of which the operation writes at least one. Input and output
    // were compared above.
    for (index, (name, span)) in present().enumerate() {
        for (other, second) in present().skip(index + 1) {
            let compared = (name, other) == ("input", "output");
            let both_read = matches!(name, "input" | "weight") && other == "weight";
            if !compared && !both_read && span.overlaps(second) {
                let advice = "pass separate buffers";
                return Err(misuse(call, MisuseKind::Overlap { first: name, second: other, advice }));
            }
        }
    }
    let quantization = scale.zip(output).map(|(scale, output)| Quantization {
        dtype: output.dtype,
        scale: match scale {
            ErasedScale::Static(scale) => NormScale::Static(scale),
            ErasedScale::Rows(rows) => NormScale::Rows(rows.place),
        },
    });
    let element_bytes = input.element_bytes();
    let norm = RmsNorm { residual: residual.place, weight: weight.place, hidden, epsilon, element_bytes, quantization };
    let pools = &of.inner.shared.pools;
    let extras = CollectiveExtras { special: Some(pools.specials.share(Special::RmsNorm(norm))), ..CollectiveExtras::NONE };
    let mut held = pools.kept();
    held.extend(present().map(|(_, span)| span.owner.hold()));
    let recv = output.unwrap_or(input);
    let prepared = collective(CollectiveKind::AllReduceRmsNorm, of, input.dtype, input.len, Some(&input), Some(&recv), extras);
    Ok((prepared, held))
}
