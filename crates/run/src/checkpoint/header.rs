//! The safetensors header: a length, then JSON with the offsets of every tensor in the data. Decoding checks that the
//! tensors cover the data exactly and agree with their shapes.

use super::TensorInfo;
use gulliver_graph::dtype::DType;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Bytes of the little-endian header length at the start of the file.
pub const LENGTH_BYTES: u64 = 8;

/// The largest header the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The key the format reserves for metadata.
const METADATA: &str = "__metadata__";

/// A decoded header.
#[derive(Debug)]
pub struct Header {
    /// Tensors in the order of their data, which follows the header without gaps.
    pub tensors: Vec<(String, StoredTensor)>,
    /// The metadata; may be empty.
    pub metadata: BTreeMap<String, String>,
}

/// An element type of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredType {
    /// Name in the format, such as `F64`.
    pub name: &'static str,
    /// Bytes of one element.
    pub size: usize,
    /// The corresponding type of Gulliver, if there is one.
    pub dtype: Option<DType>,
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name.to_ascii_lowercase())
    }
}

/// Every element type of the format.
const STORED_TYPES: &[StoredType] = &[
    element("F32", 4, Some(DType::F32)),
    element("F16", 2, Some(DType::F16)),
    element("BF16", 2, Some(DType::BF16)),
    element("I64", 8, Some(DType::I64)),
    element("I32", 4, Some(DType::I32)),
    element("U8", 1, Some(DType::U8)),
    element("BOOL", 1, Some(DType::Bool)),
    element("F64", 8, None),
    element("I8", 1, None),
    element("I16", 2, None),
    element("U16", 2, None),
    element("U32", 4, None),
    element("U64", 8, None),
    element("F8_E4M3", 1, None),
    element("F8_E5M2", 1, None),
];

const fn element(name: &'static str, size: usize, dtype: Option<DType>) -> StoredType {
    StoredType { name, size, dtype }
}

/// Description of one tensor.
#[derive(Debug)]
pub struct StoredTensor {
    /// Element type.
    pub element: StoredType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of its data: the product of the shape times the element size.
    pub bytes: usize,
}

/// The name of `dtype` in the format.
fn dtype_name(dtype: DType) -> String {
    dtype.name().to_ascii_uppercase()
}

/// The encoded header, length included, for tensors stored one after another.
pub fn encode(tensors: &[&TensorInfo], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, String> {
    let mut entries = Vec::with_capacity(tensors.len());
    let mut start = 0u64;
    for (name, dtype, shape) in tensors {
        if *name == METADATA {
            return Err(format!("a tensor may not be named `{METADATA}`"));
        }
        let elements: usize = shape.iter().product();
        let end = start + (elements * dtype.size()) as u64;
        let shape = shape.iter().map(|&extent| extent as u64).collect();
        entries.push((name, Entry { dtype: dtype_name(*dtype), shape, data_offsets: (start, end) }));
        start = end;
    }

    let json = |text: serde_json::Result<String>| text.map_err(|e| e.to_string());
    let mut text = format!("{{\"{METADATA}\":{}", json(serde_json::to_string(metadata))?);
    for (name, entry) in &entries {
        text += &format!(",{}:{}", json(serde_json::to_string(name))?, json(serde_json::to_string(entry))?);
    }
    text.push('}');
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let length = text.len() as u64;
    if length > MAX_HEADER_BYTES {
        return Err(format!("names and metadata take {length} bytes; the format allows {MAX_HEADER_BYTES}"));
    }
    Ok([&length.to_le_bytes()[..], text.as_bytes()].concat())
}

/// Checks that a file of `file_bytes` can hold a header of this length.
pub fn check_length(length: u64, file_bytes: u64) -> Result<usize, String> {
    let room = file_bytes.saturating_sub(LENGTH_BYTES);
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "not a safetensors file: a header of {length} bytes (the format allows {MAX_HEADER_BYTES})"
        ));
    }
    if length > room {
        return Err(format!("truncated: a header of {length} bytes, but only {room} bytes follow"));
    }
    usize::try_from(length).map_err(|_| format!("a header of {length} bytes is too large for this machine"))
}

/// Decodes the JSON `text` in front of `data_bytes` bytes of tensor data.
pub fn decode(text: &[u8], data_bytes: u64) -> Result<Header, String> {
    let text = std::str::from_utf8(text).map_err(|e| format!("the header is not text: {e}"))?;
    let raw: Raw = serde_json::from_str(text).map_err(|e| format!("malformed header: {e}"))?;

    let mut entries = raw.entries;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut tensors = Vec::with_capacity(entries.len());
    let mut position = 0;
    for (name, entry) in entries {
        let (start, end) = entry.data_offsets;
        if end < start {
            return Err(format!("tensor `{name}` ends at byte {end} of the data, before its start {start}"));
        }
        if end > data_bytes {
            return Err(format!(
                "truncated or out of range: tensor `{name}` ends at byte {end} of the data, \
                 which has {data_bytes} bytes"
            ));
        }
        if start != position {
            let fault = if start < position { "overlaps the one before" } else { "leaves a gap before it" };
            return Err(format!(
                "tensor `{name}` starts at byte {start} of the data, not {position}: {fault}"
            ));
        }
        position = end;
        let place = check_entry(&name, entry)?;
        tensors.push((name, place));
    }
    if position != data_bytes {
        return Err(format!("{} bytes after the last tensor belong to no tensor", data_bytes - position));
    }
    Ok(Header { tensors, metadata: raw.metadata })
}

fn check_entry(name: &str, entry: Entry) -> Result<StoredTensor, String> {
    let Some(&element) = STORED_TYPES.iter().find(|element| element.name == entry.dtype) else {
        let known: Vec<&str> = STORED_TYPES.iter().map(|element| element.name).collect();
        return Err(format!(
            "tensor `{name}` has element type `{}`; supported are {}",
            entry.dtype,
            known.join(", ")
        ));
    };
    let (start, end) = entry.data_offsets;
    let fits = || -> Option<StoredTensor> {
        let shape: Vec<usize> =
            entry.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect::<Option<_>>()?;
        let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))?;
        let bytes = elements.checked_mul(element.size)?;
        (bytes as u64 == end - start).then_some(StoredTensor { element, shape, bytes })
    };
    fits().ok_or_else(|| {
        format!(
            "tensor `{name}`: {element} {:?} does not take the {} bytes given to it",
            entry.shape,
            end - start
        )
    })
}

/// A tensor in the JSON.
#[derive(Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The JSON object; duplicate names are refused.
struct Raw {
    entries: Vec<(String, Entry)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_map(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw { entries: Vec::new(), metadata: BTreeMap::new() };
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("`{name}` appears twice")));
            }
            if name == METADATA {
                raw.metadata = map.next_value()?;
            } else {
                let entry =
                    map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
                raw.entries.push((name, entry));
            }
        }
        Ok(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_named() {
        let entry = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
        };
        let good = entry("F32", "[2]", "[0,8]");
        for (header, data_bytes, expected) in [
            ("".to_string(), 0, "malformed header: EOF"),
            ("[]".to_string(), 0, "expected an object of tensors"),
            ("{}".to_string(), 3, "3 bytes after the last tensor belong to no tensor"),
            (format!(r#"{{"a":{good}}}"#), 12, "4 bytes after the last tensor belong to no tensor"),
            (format!(r#"{{"a":{good}}}"#), 7, "tensor `a` ends at byte 8 of the data, which has 7 bytes"),
            (format!(r#"{{"a":{good},"a":{good}}}"#), 8, "`a` appears twice"),
            (
                format!(r#"{{"a":{good},"b":{good}}}"#),
                8,
                "tensor `b` starts at byte 0 of the data, not 8: overlaps",
            ),
            (format!(r#"{{"a":{}}}"#, entry("F32", "[1]", "[4,8]")), 8, "leaves a gap"),
            (format!(r#"{{"a":{}}}"#, entry("F32", "[2]", "[8,0]")), 8, "before its start"),
            (format!(r#"{{"a":{}}}"#, entry("F32", "[3]", "[0,8]")), 8, "f32 [3] does not take the 8 bytes"),
            (
                format!(r#"{{"a":{}}}"#, entry("F99", "[2]", "[0,8]")),
                8,
                "element type `F99`; supported are F32",
            ),
            (format!(r#"{{"a":{}}}"#, entry("f32", "[2]", "[0,8]")), 8, "element type `f32`"),
            (
                format!(r#"{{"a":{}}}"#, entry("F32", "[4294967296,4294967296]", "[0,0]")),
                0,
                "does not take the 0 bytes",
            ),
            (format!(r#"{{"a":{}}}"#, entry("F32", "[-1]", "[0,8]")), 8, "tensor `a`: invalid value"),
            (
                r#"{"a":{"dtype":"F32","shape":[2]}}"#.to_string(),
                8,
                "tensor `a`: missing field `data_offsets`",
            ),
            (r#"{"__metadata__":{"step":3}}"#.to_string(), 0, "expected a string"),
            ("[".repeat(100_000), 0, "malformed header"),
        ] {
            let error = decode(header.as_bytes(), data_bytes).unwrap_err();
            assert!(error.contains(expected), "{header:.80}\n got      {error}\n expected {expected}");
        }
    }

    #[test]
    fn every_type_here_is_one_of_the_format() {
        for dtype in DType::ALL {
            let element = STORED_TYPES.iter().find(|element| element.name == dtype_name(dtype)).unwrap();
            assert_eq!((element.size, element.dtype), (dtype.size(), Some(dtype)));
        }
    }

    #[test]
    fn lengths() {
        assert_eq!(check_length(8, 16), Ok(8));
        assert!(check_length(9, 16).unwrap_err().starts_with("truncated"));
        assert!(check_length(u64::MAX, 16).unwrap_err().starts_with("not a safetensors file"));
        assert!(check_length(MAX_HEADER_BYTES + 1, u64::MAX).is_err());
        assert!(check_length(0, 0).is_ok());
    }
}
