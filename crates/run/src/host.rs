//! Tensors in host memory: batches, checkpoints, and values written to or read from devices, which copy them.

pub mod initial;
pub mod resident;

use gulliver_graph::dtype::DType;

/// Elements of a [`HostTensor`], one vector per element type (f16 and bf16 as raw bits).
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// f16 bit patterns.
    F16(Vec<u16>),
    /// bf16 bit patterns.
    BF16(Vec<u16>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// Bytes.
    U8(Vec<u8>),
    /// One byte each, 0 or 1.
    Bool(Vec<u8>),
}

/// A dense row-major tensor; the number of elements always equals the product of the shape.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: HostData,
}

macro_rules! each {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            HostData::F32($v) => $body,
            HostData::F16($v) => $body,
            HostData::BF16($v) => $body,
            HostData::I64($v) => $body,
            HostData::I32($v) => $body,
            HostData::U8($v) => $body,
            HostData::Bool($v) => $body,
        }
    };
}

impl HostTensor {
    /// `None` if the element count does not match the shape.
    pub fn new(shape: &[usize], data: HostData) -> Option<HostTensor> {
        let count = shape.iter().try_fold(1usize, |a, &b| a.checked_mul(b))?;
        let len = each!(&data, v => v.len());
        (len == count).then(|| HostTensor { shape: shape.to_vec(), data })
    }

    /// All zero.
    pub fn zeros(dtype: DType, shape: &[usize]) -> HostTensor {
        let n = shape.iter().product();
        let data = match dtype {
            DType::F32 => HostData::F32(vec![0.0; n]),
            DType::F16 => HostData::F16(vec![0; n]),
            DType::BF16 => HostData::BF16(vec![0; n]),
            DType::I64 => HostData::I64(vec![0; n]),
            DType::I32 => HostData::I32(vec![0; n]),
            DType::U8 => HostData::U8(vec![0; n]),
            DType::Bool => HostData::Bool(vec![0; n]),
        };
        HostTensor { shape: shape.to_vec(), data }
    }

    /// From little-endian bytes; `None` if the length does not match.
    pub fn from_le_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<HostTensor> {
        let size = shape.iter().try_fold(dtype.size(), |a, &b| a.checked_mul(b))?;
        if bytes.len() != size {
            return None;
        }
        let mut tensor = HostTensor::zeros(dtype, shape);
        tensor.as_bytes_mut().copy_from_slice(bytes);
        swap_if_big_endian(dtype, tensor.as_bytes_mut());
        Some(tensor)
    }

    /// Little-endian bytes, the form checkpoints and fingerprints use.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        each!(&self.data, v => v.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The elements as bytes in memory order.
    pub fn as_bytes(&self) -> &[u8] {
        each!(&self.data, v => {
            // SAFETY: every element type is plain numbers without padding.
            unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), std::mem::size_of_val(v.as_slice())) }
        })
    }

    /// The elements as mutable bytes in memory order; every bit pattern is valid.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        each!(&mut self.data, v => {
            // SAFETY: every element type is plain numbers without padding, for which all bits are valid.
            unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), std::mem::size_of_val(v.as_slice())) }
        })
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &HostData {
        &self.data
    }

    /// The elements, mutable. Their number must not change.
    pub fn data_mut(&mut self) -> &mut HostData {
        &mut self.data
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match &self.data {
            HostData::F32(_) => DType::F32,
            HostData::F16(_) => DType::F16,
            HostData::BF16(_) => DType::BF16,
            HostData::I64(_) => DType::I64,
            HostData::I32(_) => DType::I32,
            HostData::U8(_) => DType::U8,
            HostData::Bool(_) => DType::Bool,
        }
    }

    /// Whether all elements are finite.
    pub fn is_finite(&self) -> bool {
        all_finite(self.dtype(), self.as_bytes())
    }

    /// The elements if they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            HostData::F32(v) => Some(v),
            _ => None,
        }
    }

    /// The elements if they are i64.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.data {
            HostData::I64(v) => Some(v),
            _ => None,
        }
    }
}

/// Converts between little-endian bytes and memory order.
pub(crate) fn swap_if_big_endian(dtype: DType, bytes: &mut [u8]) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
}

/// Floats as bytes in memory order.
pub fn as_bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: every byte of an f32 is a byte.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

/// Whether all elements, given as bytes in memory order, are finite.
pub fn all_finite(dtype: DType, bytes: &[u8]) -> bool {
    let halves = || bytes.as_chunks().0.iter().map(|&b| u16::from_ne_bytes(b));
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().all(|&b| f32::from_ne_bytes(b).is_finite()),
        DType::F16 => halves().all(|x| half::f16::from_bits(x).is_finite()),
        DType::BF16 => halves().all(|x| half::bf16::from_bits(x).is_finite()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_for_every_dtype() {
        for dtype in DType::ALL {
            let bytes: Vec<u8> = (0..6 * dtype.size() as u8).collect();
            let t = HostTensor::from_le_bytes(dtype, &[2, 3], &bytes).unwrap();
            assert_eq!((t.dtype(), t.to_le_bytes()), (dtype, bytes));
            assert!(HostTensor::from_le_bytes(dtype, &[2, 4], &t.to_le_bytes()).is_none());
            assert_eq!(HostTensor::zeros(dtype, &[2, 3]).to_le_bytes().len(), 6 * dtype.size());
        }
    }
}
