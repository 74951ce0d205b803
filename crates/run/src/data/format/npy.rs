//! NumPy arrays: .npy files and members of .npz archives. Rows stay in the file until a batch
//! needs them.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::FileBytes;
use super::words::{few, short};
use super::zip;
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_counts, class_tensor, tensor};
use crate::host::{HostData, HostTensor};

/// Supported element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NpyType {
    /// 32-bit float.
    F4,
    /// 64-bit float, rounded to 32 bits in batches.
    F8,
    /// 32-bit integer.
    I4,
    /// 64-bit integer.
    I8,
    /// Byte.
    U1,
    /// Boolean.
    B1,
}

impl NpyType {
    fn parse(descr: &str) -> Option<NpyType> {
        // "|": byte order does not apply; "=": the byte order of this machine.
        match descr.trim_start_matches(['<', '|', '=']) {
            "f4" => Some(NpyType::F4),
            "f8" => Some(NpyType::F8),
            "i4" => Some(NpyType::I4),
            "i8" => Some(NpyType::I8),
            "u1" => Some(NpyType::U1),
            "b1" => Some(NpyType::B1),
            _ => None,
        }
    }

    /// The elements as f64; exact for all types but large i8.
    fn values(self, bytes: &[u8]) -> impl Iterator<Item = f64> {
        bytes.chunks_exact(self.size()).map(move |c| match (self, c) {
            (NpyType::F4, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (NpyType::I4, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
            (NpyType::F8, _) => f64::from_bits(eight(c)),
            (NpyType::I8, _) => eight(c) as i64 as f64,
            _ => c.first().copied().unwrap_or_default().into(),
        })
    }

    fn size(self) -> usize {
        match self {
            NpyType::F8 | NpyType::I8 => 8,
            NpyType::F4 | NpyType::I4 => 4,
            NpyType::U1 | NpyType::B1 => 1,
        }
    }
}

/// A little-endian number of eight bytes.
fn eight(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// An array whose first axis is the example.
pub struct NpyArray {
    /// File and member, for messages.
    pub path: PathBuf,
    /// Extents.
    pub shape: Vec<usize>,
    /// Element type.
    pub element: NpyType,
    bytes: Arc<FileBytes>,
    data: Range<usize>,
}

impl NpyArray {
    /// A .npy file, or the member `key` of a .npz archive.
    pub fn open(path: &Path, key: &str) -> Result<NpyArray, DataError> {
        let bytes = Arc::new(FileBytes::open(path)?);
        if !bytes.starts_with(b"PK")? {
            let all = 0..bytes.len();
            return NpyArray::parse(path.into(), bytes, all);
        }
        let members = zip::members(path, &bytes)?;
        let wanted = format!("{key}.npy");
        let Some(member) = members.iter().find(|m| m.name == wanted || m.name == key) else {
            let names: Vec<&str> = members.iter().map(|m| m.name.trim_end_matches(".npy")).collect();
            let what = format!("has no array `{}`; it has: {}", short(key), few(&names));
            return Err(DataError::file(path, what));
        };
        let inner = PathBuf::from(format!("{}[{key}]", path.display()));
        match zip::content(path, &bytes, member)? {
            zip::ZipContent::Stored(range) => NpyArray::parse(inner, bytes, range),
            zip::ZipContent::Inflated(content) => {
                let all = 0..content.len();
                let content = FileBytes::owned(&inner, content);
                NpyArray::parse(inner, Arc::new(content), all)
            }
        }
    }

    /// Whether a file is a .npz archive.
    pub fn is_archive(path: &Path) -> Result<bool, DataError> {
        FileBytes::open(path)?.starts_with(b"PK")
    }

    /// The member `key` of a .npz archive, if it has one.
    pub fn find(path: &Path, key: &str) -> Result<Option<NpyArray>, DataError> {
        let names = zip::members(path, &FileBytes::open(path)?)?;
        match names.iter().any(|m| m.name.trim_end_matches(".npy") == key) {
            true => NpyArray::open(path, key).map(Some),
            false => Ok(None),
        }
    }

    fn parse(path: PathBuf, bytes: Arc<FileBytes>, range: Range<usize>) -> Result<NpyArray, DataError> {
        // Most bytes of a header that are read.
        const LONGEST: usize = 1 << 20;
        let file = bytes.read(range.start..range.end.min(range.start.saturating_add(LONGEST)))?;
        let bad = |offset: usize, what: &str| DataError::at(&path, offset as u64, what);
        if !file.starts_with(b"\x93NUMPY") {
            return Err(bad(0, "is not a .npy array"));
        }
        let (start, length) = match file.get(6..12) {
            Some([1, _, a, b, ..]) => (10, u16::from_le_bytes([*a, *b]) as usize),
            Some([2 | 3, _, a, b, c, d]) => (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
            Some(_) => return Err(bad(6, "unknown .npy version; 1 to 3 are read")),
            None => return Err(bad(file.len(), "file ends within its header")),
        };
        let header = file
            .get(start..)
            .and_then(|rest| rest.get(..length))
            .ok_or_else(|| bad(8, "header reaches beyond the end of the file"))?;
        let header = std::str::from_utf8(header).map_err(|_| bad(start, "header is not text"))?;
        let descr = field(header, "descr").map(|v| v.trim_matches(['\'', '"']));
        let descr = descr.ok_or_else(|| bad(start, "header has no `descr`"))?;
        if descr.starts_with('>') {
            return Err(bad(start, "big-endian array; save it with `a.astype(a.dtype.newbyteorder('<'))`"));
        }
        let element = NpyType::parse(descr).ok_or_else(|| {
            bad(start, &format!("element type `{}`; only f4, f8, i4, i8, u1 and b1 are read", short(descr)))
        })?;
        match field(header, "fortran_order") {
            Some("False") => {}
            Some("True") => {
                return Err(bad(start, "Fortran order; save it with `numpy.ascontiguousarray(a)`"));
            }
            _ => return Err(bad(start, "header has no `fortran_order`")),
        }
        let shape = field(header, "shape").and_then(parse_shape);
        let shape = shape.ok_or_else(|| bad(start, "header has no readable `shape`"))?;
        let promised = shape.iter().try_fold(element.size(), |a, &b| a.checked_mul(b)).unwrap_or(usize::MAX);
        let data = range.start + start + length..range.end;
        let shown = short(&format!("{shape:?}"));
        if promised != data.len() {
            let what =
                format!("shape {shown} promises {promised} bytes of data, the file has {}", data.len());
            return Err(bad(start + length, &what));
        }
        if shape.is_empty() || shape.contains(&0) {
            return Err(bad(start, &format!("shape {shown} has no examples")));
        }
        drop(file);
        Ok(NpyArray { path, shape, element, bytes, data })
    }

    /// Elements per example.
    fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Bytes per example.
    fn size(&self) -> usize {
        self.width() * self.element.size()
    }

    /// The bytes of one example.
    fn row(&self, i: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let start = self.data.start + i * self.size();
        self.bytes.read(start..start + self.size())
    }

    /// Calls `each` with the values of these examples, given in ascending order. Reads many rows at once.
    fn each_row(
        &self,
        rows: impl Iterator<Item = usize>,
        mut each: impl FnMut(usize, &mut dyn Iterator<Item = f64>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let at_once = ((256 << 10) / self.size().max(1)).max(1);
        let (mut first, mut block) = (0, Cow::Borrowed(&[][..]));
        for i in rows {
            if block.is_empty() || i < first || i >= first + at_once {
                first = i;
                let end = self.shape[0].min(first + at_once);
                block = self
                    .bytes
                    .read(self.data.start + first * self.size()..self.data.start + end * self.size())?;
            }
            let row = &block[(i - first) * self.size()..(i - first + 1) * self.size()];
            each(i, &mut self.element.values(row))?;
        }
        Ok(())
    }

    /// Refuses numbers that are not finite in single precision.
    fn check_finite(&self) -> Result<(), DataError> {
        if !matches!(self.element, NpyType::F4 | NpyType::F8) {
            return Ok(());
        }
        self.each_row(0..self.shape[0], |i, values| {
            match values.enumerate().find(|(_, v)| !(*v as f32).is_finite()) {
                None => Ok(()),
                Some((at, value)) => {
                    let what = format!("number {at} of example {i} is {value}; all must be finite");
                    Err(DataError::file(&self.path, what))
                }
            }
        })
    }

    /// Every example as a class below `classes`, or below one more than the largest label.
    fn classes(&self, classes: Option<usize>) -> Result<NpyTarget, DataError> {
        let limit = classes.map_or(f64::from(u32::MAX), |n| n as f64);
        let mut ids = Vec::with_capacity(self.shape[0]);
        self.each_row(0..self.shape[0], |i, values| {
            for label in values {
                if !(0.0..limit).contains(&label) {
                    let what = format!("label {label} of example {i} is not in 0..{limit}");
                    return Err(DataError::file(&self.path, what));
                }
                ids.push(label as u32);
            }
            Ok(())
        })?;
        let largest = ids.iter().max().map_or(0, |&id| id as usize);
        Ok(NpyTarget::Classes(ids, classes.unwrap_or(largest + 1)))
    }

    /// Examples as i64 if the elements are integers and `as_float` is not set, else as f32.
    fn gather(&self, indices: &[usize], as_float: bool) -> Result<HostTensor, DataError> {
        let shape = [&[indices.len()], &self.shape[1..]].concat();
        Ok(tensor(&shape, self.elements(indices, as_float)?))
    }

    fn elements(&self, indices: &[usize], as_float: bool) -> Result<HostData, DataError> {
        let count = indices.len() * self.width();
        if as_float || matches!(self.element, NpyType::F4 | NpyType::F8) {
            let mut out = Vec::with_capacity(count);
            for &i in indices {
                out.extend(self.element.values(&self.row(i)?).map(|v| v as f32));
            }
            return Ok(HostData::F32(out));
        }
        let mut out = Vec::with_capacity(count);
        for &i in indices {
            match self.element {
                NpyType::I8 => out.extend(self.row(i)?.chunks_exact(8).map(|c| eight(c) as i64)),
                _ => out.extend(self.element.values(&self.row(i)?).map(|v| v as i64)),
            }
        }
        Ok(HostData::I64(out))
    }
}

/// The text of a value in the header's Python dictionary.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{name}'"))? + name.len() + 2;
    let value = header.get(at..)?.trim_start().strip_prefix(':')?.trim_start();
    let end = match value.starts_with('(') {
        true => value.find(')')? + 1,
        false => value.find([',', '}'])?,
    };
    Some(value[..end].trim())
}

fn parse_shape(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?;
    inner.split(',').map(str::trim).filter(|n| !n.is_empty()).map(|n| n.parse().ok()).collect()
}

/// "y" of a data set of arrays.
enum NpyTarget {
    /// A class per example, and the number of classes: y `[b]` i64.
    Classes(Vec<u32>, usize),
    /// Numbers: y `[b, numbers]` f32.
    Numbers(NpyArray),
    /// Integers, unchanged: i64.
    Whole(NpyArray),
}

/// x and y from two arrays. Float and byte x become f32, normalised if `normalise` is set; integer x becomes i64.
pub struct NpyDataset {
    x: NpyArray,
    target: Option<NpyTarget>,
    /// Mean and deviation of x; `None` to leave x as it is.
    pub normalise: Option<(f32, f32)>,
}

impl NpyDataset {
    /// Both must have the same number of examples and only numbers that are finite in single precision. If y has one
    /// integer per example, it is a class.
    pub fn new(x: NpyArray, y: NpyArray, classes: Option<usize>) -> Result<NpyDataset, DataError> {
        if x.shape[0] != y.shape[0] {
            let what = format!("{} examples, but {} has {}", y.shape[0], x.path.display(), x.shape[0]);
            return Err(DataError::file(&y.path, what));
        }
        y.check_finite()?;
        let target = match y.element {
            NpyType::F4 | NpyType::F8 => NpyTarget::Numbers(y),
            _ if y.shape.len() == 1 => y.classes(classes)?,
            _ => NpyTarget::Whole(y),
        };
        Ok(NpyDataset { target: Some(target), ..NpyDataset::unlabelled(x)? })
    }

    /// x alone.
    pub fn unlabelled(x: NpyArray) -> Result<NpyDataset, DataError> {
        x.check_finite()?;
        Ok(NpyDataset { x, target: None, normalise: None })
    }

    /// Mean and standard deviation (1 if zero) of all x of these examples, given in ascending order.
    pub fn statistics(&self, rows: &[u32]) -> Result<(f32, f32), DataError> {
        let count = (rows.len() * self.x.width()).max(1) as f64;
        let rows = || rows.iter().map(|&i| i as usize);
        let mut sum = 0.0;
        self.x.each_row(rows(), |_, values| {
            values.for_each(|v| sum += v);
            Ok(())
        })?;
        let (mean, mut squares) = (sum / count, 0.0);
        self.x.each_row(rows(), |_, values| {
            values.for_each(|v| squares += (v - mean) * (v - mean));
            Ok(())
        })?;
        let deviation = (squares / count).sqrt();
        Ok((mean as f32, if deviation > 1e-12 { deviation as f32 } else { 1.0 }))
    }
}

impl Dataset for NpyDataset {
    fn len(&self) -> usize {
        self.x.shape[0]
    }

    fn class(&self, i: usize) -> Option<u32> {
        match &self.target {
            Some(NpyTarget::Classes(ids, _)) => ids.get(i).copied(),
            _ => None,
        }
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.len())?;
        let mut x = self.x.gather(indices, self.x.element == NpyType::U1 || self.normalise.is_some())?;
        if let (HostData::F32(values), Some((mean, std))) = (x.data_mut(), self.normalise) {
            values.iter_mut().for_each(|v| *v = (*v - mean) / std);
        }
        let y = match &self.target {
            Some(NpyTarget::Classes(ids, _)) => Some(class_tensor(indices.iter().map(|&i| ids[i]))),
            Some(NpyTarget::Numbers(y)) => {
                Some(tensor(&[indices.len(), y.width()], y.elements(indices, true)?))
            }
            Some(NpyTarget::Whole(y)) => Some(y.gather(indices, false)?),
            None => None,
        };
        Ok(Batch::with_target(x, y))
    }

    fn info(&self) -> DataInfo {
        let (classes, targets) = match &self.target {
            Some(NpyTarget::Classes(_, classes)) => (Some(*classes), None),
            Some(NpyTarget::Numbers(y)) => (None, Some(y.width())),
            Some(NpyTarget::Whole(_)) | None => (None, None),
        };
        DataInfo {
            examples: self.len(),
            classes,
            targets,
            class_counts: class_counts(self, classes),
            shape: self.x.shape[1..].to_vec(),
            mean: self.normalise.map(|(mean, _)| mean).into_iter().collect(),
            std: self.normalise.map(|(_, std)| std).into_iter().collect(),
            ..DataInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::{ScratchDir, torture};

    fn npy(version: u8, descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut out = b"\x93NUMPY".to_vec();
        out.extend([version, 0]);
        match version {
            1 => out.extend((header.len() as u16).to_le_bytes()),
            _ => out.extend((header.len() as u32).to_le_bytes()),
        }
        out.extend(header.bytes());
        out.extend(data);
        out
    }

    fn le<const N: usize>(values: &[[u8; N]]) -> Vec<u8> {
        values.concat()
    }

    #[test]
    fn every_element_type_is_read() {
        let dir = ScratchDir::new();
        let table: [(&str, Vec<u8>, HostData); 6] = [
            ("<f4", le(&[1.5f32.to_le_bytes(), (-2f32).to_le_bytes()]), HostData::F32(vec![1.5, -2.0])),
            ("<f8", le(&[1.5f64.to_le_bytes(), 0.1f64.to_le_bytes()]), HostData::F32(vec![1.5, 0.1])),
            ("<i4", le(&[7i32.to_le_bytes(), (-1i32).to_le_bytes()]), HostData::I64(vec![7, -1])),
            ("<i8", le(&[i64::MAX.to_le_bytes(), (-1i64).to_le_bytes()]), HostData::I64(vec![i64::MAX, -1])),
            ("|u1", vec![255, 3], HostData::I64(vec![255, 3])),
            ("|b1", vec![1, 0], HostData::I64(vec![1, 0])),
        ];
        for (descr, data, expected) in table {
            for version in [1, 2] {
                let path = dir.write("a.npy", &npy(version, descr, false, "(2,)", &data));
                let array = NpyArray::open(&path, "x").unwrap();
                assert_eq!(array.gather(&[0, 1], false).unwrap().data(), &expected, "{descr}");
            }
        }
    }

    #[test]
    fn npz_members_form_batches() {
        let dir = ScratchDir::new();
        let x = npy(1, "<f4", false, "(3, 2)", &le(&[1f32, 2., 3., 4., 5., 6.].map(f32::to_le_bytes)));
        let y = npy(1, "<i8", false, "(3,)", &le(&[0i64, 2, 1].map(i64::to_le_bytes)));
        let path = dir.write("a.npz", &zip::tests::archive(&[("x.npy", &x), ("y.npy", &y)]));
        let open = || NpyDataset::new(NpyArray::open(&path, "x")?, NpyArray::open(&path, "y")?, None);
        let mut set = open().unwrap();
        let b = set.batch(&[2, 0]).unwrap();
        assert_eq!(b.get("x").unwrap().as_f32().unwrap(), [5., 6., 1., 2.]);
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [1, 0]);
        assert_eq!((set.info().classes, set.info().shape), (Some(3), vec![2]));
        set.normalise = Some(set.statistics(&[0, 1, 2]).unwrap());
        assert_eq!(set.normalise.unwrap().0, 3.5);
        assert!((set.batch(&[0]).unwrap().get("x").unwrap().as_f32().unwrap()[0] + 1.4638501).abs() < 1e-6);
        let message = NpyArray::open(&path, "z").err().unwrap().to_string();
        assert!(message.contains("it has: x, y"), "{message}");
        let few = NpyArray::open(&path, "y").unwrap();
        assert!(NpyDataset::new(few, NpyArray::open(&path, "y").unwrap(), Some(2)).is_err());
    }

    #[test]
    fn wrong_arrays_are_errors_with_advice() {
        let dir = ScratchDir::new();
        for (bytes, part) in [
            (npy(1, "<f4", true, "(2,)", &[0; 8]), "ascontiguousarray"),
            (npy(1, ">f4", false, "(2,)", &[0; 8]), "newbyteorder"),
            (npy(1, "<c8", false, "(1,)", &[0; 8]), "`<c8`"),
            (npy(1, "<f4", false, "(3,)", &[0; 8]), "promises 12 bytes"),
            (npy(2, "<f4", false, "(9999999999, 9999999999)", &[0; 8]), "promises"),
            (npy(9, "<f4", false, "(2,)", &[0; 8]), "version"),
            (npy(1, "<f4", false, "()", &[0; 4]), "no examples"),
            (npy(1, "<f4", false, "(0, 2)", &[]), "no examples"),
        ] {
            let message = NpyArray::open(&dir.write("a.npy", &bytes), "x").err().unwrap().to_string();
            assert!(message.contains(part), "{message}");
        }
        let deep = npy(2, "<f4", false, &format!("({})", "1,".repeat(100_000)), &[0; 8]);
        let message = NpyArray::open(&dir.write("a.npy", &deep), "x").err().unwrap().to_string();
        assert!(message.len() < 400, "{}", message.len());
        for (descr, data, part) in [
            ("<f4", le(&[1f32, 2., 3., f32::NAN].map(f32::to_le_bytes)), "number 1 of example 1 is NaN"),
            ("<f8", le(&[1., 1e300, 3., 4.].map(f64::to_le_bytes)), "number 1 of example 0 is 1000"),
        ] {
            let open =
                || NpyArray::open(&dir.write("x.npy", &npy(1, descr, false, "(2, 2)", &data)), "x").unwrap();
            let message = NpyDataset::new(open(), open(), None).err().unwrap().to_string();
            assert!(message.contains(part), "{message}");
        }
        let plain = npy(1, "<f4", false, "(2,)", &[0; 8]);
        let zipped = zip::tests::archive(&[("y.npy", &plain), ("x.npy", &plain)]);
        for good in [plain, npy(2, "|u1", false, "(1, 2)", &[1, 2]), zipped] {
            torture(&good, |bytes| {
                if let Ok(array) = NpyArray::open(&dir.write("a.npy", bytes), "x") {
                    array.gather(&(0..array.shape[0]).collect::<Vec<_>>(), false).unwrap();
                }
            });
        }
    }
}
