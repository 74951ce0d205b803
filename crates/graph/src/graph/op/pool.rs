//! Shared by the pooling operators: their spec lines, their parts in a cut, small samples.

use super::window::{PoolWindow, WindowTarget, spatial, window_text};
use super::{OpError, attribute};
use crate::dim::Dim;
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;

/// What the line of a pooling operator is made of beside its windows: the axes they slide along, their
/// taps, and the clause that gives the taps their extents. Taps stay whole: parts along them help no one.
pub(crate) struct PoolText {
    pub(crate) axes: String,
    pub(crate) taps: String,
    pub(crate) with: String,
}

impl PoolText {
    pub(crate) fn new(window: &[PoolWindow]) -> Result<PoolText, OpError> {
        let (axes, taps) = spatial(window.len())?;
        for w in window {
            w.check()?;
        }
        let with: Vec<String> = taps.iter().zip(window).map(|(r, w)| format!("{r}={}", w.kernel)).collect();
        Ok(PoolText { axes: axes.join(" "), taps: taps.join(" "), with: with.join(" ") })
    }
}

/// The windows as an operand; each with the extent of its dimension where one is given.
pub(crate) fn pool_indices(window: &[PoolWindow], size: Option<&[Dim]>) -> Result<String, OpError> {
    let (axes, taps) = spatial(window.len())?;
    let index = |(d, w): (usize, &PoolWindow)| {
        let size = size.and_then(|s| s.get(d));
        window_text(&w.steps(), axes[d], &format!("{}!", taps[d]), size)
    };
    Ok(window.iter().enumerate().map(index).collect::<Vec<_>>().join(" "))
}

/// The windows as an operand that they are scattered into.
pub(crate) fn pool_targets(window: &[PoolWindow], into: &[WindowTarget]) -> Result<String, OpError> {
    if into.len() != window.len() {
        return attribute(format!("{} extents for {} windows", into.len(), window.len()));
    }
    let place = |(w, t): (&PoolWindow, &WindowTarget)| PoolWindow { low: t.low, ..*w };
    let placed: Vec<PoolWindow> = window.iter().zip(into).map(place).collect();
    let size: Vec<Dim> = into.iter().map(|t| t.size.clone()).collect();
    pool_indices(&placed, Some(&size))
}

/// Where the gradient of a pooled value [n, c, spatial…] goes: exactly where its windows came from.
pub(crate) fn pool_source(window: &[PoolWindow], shape: &[Dim]) -> Vec<WindowTarget> {
    window.iter().zip(&shape[2..]).map(|(w, size)| WindowTarget { low: w.low, size: size.clone() }).collect()
}

/// The targets as one part of a cut sees them.
pub(crate) fn pool_targets_within(part: &Part) -> Vec<WindowTarget> {
    let seen = part.outputs[0].iter().zip(&part.output_windows[0]);
    seen.filter_map(|(region, w)| w.map(|w| WindowTarget { low: w.low, size: region.len().into() })).collect()
}

/// Extents of all loops of a pooling spec whose taps and windows are known.
pub(crate) fn loop_extents(spec: &Spec, ins: &[&Tensor]) -> Vec<usize> {
    let dims: Vec<Vec<Dim>> =
        ins.iter().map(|t| t.shape.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>()).collect();
    let dims: Vec<&[Dim]> = dims.iter().map(Vec::as_slice).collect();
    let extents = spec.extents(&dims).expect("types were checked when the node was built");
    extents.iter().map(|e| e.as_const().expect("bound shapes") as usize).collect()
}

/// Small pooling cases: windows and the shape of x.
pub(crate) fn pool_cases() -> Vec<(Vec<PoolWindow>, Vec<usize>)> {
    let window = |kernel, stride, low, high| PoolWindow { kernel, stride, low, high };
    vec![
        (vec![window(2, 2, 0, 0), window(2, 2, 0, 0)], vec![2, 3, 6, 5]),
        (vec![window(3, 2, 1, 1), window(3, 2, 1, 1)], vec![1, 2, 8, 7]),
        (vec![window(3, 1, 1, 0), window(1, 3, 0, 0)], vec![1, 2, 5, 9]),
        (vec![window(2, 3, -1, 1)], vec![2, 2, 9]),
        (vec![window(2, 1, 1, 0), window(2, 2, 0, 0), window(2, 2, 1, 1)], vec![1, 2, 3, 4, 4]),
    ]
}
