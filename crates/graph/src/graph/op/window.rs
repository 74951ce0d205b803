//! Sliding windows as the convolution and pooling operators share them: the index text of a window
//! and what a window becomes inside one part of a cut.

use super::{OpError, attribute};
use crate::dim::Dim;
use crate::spec::WindowPadding;
use serde::{Deserialize, Serialize};

/// A convolution's window along one spatial dimension: output `h` reads `stride·h + dilation·r - low`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvWindow {
    /// Elements between neighbouring outputs.
    pub stride: usize,
    /// Elements between neighbouring taps.
    pub dilation: usize,
    /// Padding before the first element; negative skips elements.
    pub low: i64,
    /// Padding after the last element; negative leaves elements unread.
    pub high: i64,
}

/// A pooling window along one spatial dimension: output `h` reads `stride·h + r - low`, `r < kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWindow {
    /// Taps.
    pub kernel: usize,
    /// Elements between neighbouring outputs.
    pub stride: usize,
    /// Padding before the first element; negative skips elements.
    pub low: i64,
    /// Padding after the last element; negative leaves elements unread.
    pub high: i64,
}

/// The place of a window in an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowTarget {
    /// Positions of the window before the first element of the output.
    pub low: i64,
    /// Extent of the output.
    pub size: Dim,
}

/// Names of the spatial axes and of the taps along them.
pub(crate) fn spatial(dims: usize) -> Result<(&'static [&'static str], &'static [&'static str]), OpError> {
    match dims {
        1 => Ok((&["h"], &["r"])),
        2 => Ok((&["h", "w"], &["r", "s"])),
        3 => Ok((&["d", "h", "w"], &["q", "r", "s"])),
        _ => attribute(format!("windows over {dims} dimensions; 1, 2 or 3 are possible")),
    }
}

/// The text `stride*axis+dilation*tap-low|high{size}`.
pub(crate) fn window_text(window: &ConvWindow, axis: &str, tap: &str, size: Option<&Dim>) -> String {
    let ConvWindow { stride, dilation, low, high } = window;
    let size = size.map_or(String::new(), |s| format!("{{{s}}}"));
    format!("{stride}*{axis}+{dilation}*{tap}{:+}|{high}{size}", -low)
}

impl ConvWindow {
    /// The same steps with the padding that one part of a cut sees.
    pub(crate) fn within(&self, seen: Option<WindowPadding>) -> ConvWindow {
        let seen = seen.unwrap_or(WindowPadding { low: self.low, high: self.high });
        ConvWindow { low: seen.low, high: seen.high, ..*self }
    }

    pub(crate) fn check(&self) -> Result<(), OpError> {
        if self.stride == 0 || self.dilation == 0 {
            return attribute(format!(
                "stride {} and dilation {} must be above 0",
                self.stride, self.dilation
            ));
        }
        Ok(())
    }
}

impl PoolWindow {
    /// The same steps with the padding that one part of a cut sees.
    pub(crate) fn within(&self, seen: Option<WindowPadding>) -> PoolWindow {
        let seen = seen.unwrap_or(WindowPadding { low: self.low, high: self.high });
        PoolWindow { low: seen.low, high: seen.high, ..*self }
    }

    /// As a convolution's window.
    pub(crate) fn steps(&self) -> ConvWindow {
        ConvWindow { stride: self.stride, dilation: 1, low: self.low, high: self.high }
    }

    pub(crate) fn check(&self) -> Result<(), OpError> {
        if self.stride == 0 || self.kernel == 0 {
            return attribute(format!("stride {} and kernel {} must be above 0", self.stride, self.kernel));
        }
        Ok(())
    }
}
