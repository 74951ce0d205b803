//! Reads members of a zip archive such as an .npz: stored or deflated. Encrypted and multi-part archives are not read.

use std::io::BufReader;
use std::ops::Range;
use std::path::Path;

use super::file::{FileBytes, inflated_limit, read_limited};
use super::words::short;
use crate::data::DataError;

/// A member, as the central directory describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipMember {
    /// Path within the archive.
    pub name: String,
    /// 0 for stored, 8 for deflated.
    method: u16,
    packed: u64,
    size: u64,
    crc: u32,
    header: u64,
}

/// Little-endian number of `N` bytes at `at`; `None` past the end of the file.
fn number<const N: usize>(bytes: &FileBytes, at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let found = bytes.read(at..at.checked_add(N)?).ok()?;
    Some(found.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// All members, in the order of the central directory.
pub fn members(path: &Path, bytes: &FileBytes) -> Result<Vec<ZipMember>, DataError> {
    let end = find_end(bytes).ok_or_else(|| DataError::file(path, "is not a zip archive or is truncated"))?;
    let mut out = Vec::new();
    let mut at = end.directory;
    for _ in 0..end.count {
        let (member, next) = directory_entry(bytes, at)
            .ok_or_else(|| DataError::at(path, at, "zip directory entry is damaged"))?;
        out.push(member);
        at = next;
    }
    Ok(out)
}

/// The content of a member.
pub enum ZipContent {
    /// Uncompressed, at these bytes of the archive.
    Stored(Range<usize>),
    /// Decompressed.
    Inflated(Vec<u8>),
}

/// Finds or inflates a member and verifies its size and checksum.
pub fn content(path: &Path, bytes: &FileBytes, member: &ZipMember) -> Result<ZipContent, DataError> {
    let bad =
        |what: &str| DataError::at(path, member.header, format!("member `{}` {what}", short(&member.name)));
    let start = member_start(bytes, member).ok_or_else(|| bad("has a damaged header"))?;
    let packed = start
        .checked_add(member.packed)
        .and_then(|end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
        .filter(|packed| packed.end <= bytes.len())
        .ok_or_else(|| bad("reaches beyond the end of the file"))?;
    let mut crc = flate2::Crc::new();
    let (size, content) = match member.method {
        0 => {
            bytes.pieces(packed.clone(), |piece| {
                crc.update(piece);
                Ok(())
            })?;
            (packed.len(), ZipContent::Stored(packed))
        }
        8 if member.size > inflated_limit(packed.len()) => return Err(bad("promises an impossible size")),
        8 => {
            let reader = BufReader::with_capacity(1 << 16, bytes.reader(packed));
            let out = read_limited(path, flate2::bufread::DeflateDecoder::new(reader), member.size + 1)?;
            crc.update(&out);
            (out.len(), ZipContent::Inflated(out))
        }
        _ => return Err(bad("uses a compression other than deflate; save it with numpy's savez")),
    };
    match size as u64 == member.size && crc.sum() == member.crc {
        true => Ok(content),
        false => Err(bad("is damaged: size or checksum differs")),
    }
}

fn member_start(bytes: &FileBytes, member: &ZipMember) -> Option<u64> {
    let at = member.header;
    if number::<4>(bytes, at)? != 0x0403_4b50 {
        return None;
    }
    let lengths = number::<2>(bytes, at + 26)? + number::<2>(bytes, at + 28)?;
    Some(at + 30 + lengths)
}

struct End {
    count: u64,
    directory: u64,
}

/// The end record: last in the file except for a comment of up to 65535 bytes.
fn find_end(bytes: &FileBytes) -> Option<End> {
    let last = bytes.len().checked_sub(22)?;
    let first = last.saturating_sub(65535);
    let tail = bytes.read(first..bytes.len()).ok()?;
    let at = (first..=last).rev().find(|&at| {
        let record = &tail[at - first..];
        let comment = u16::from_le_bytes([record[20], record[21]]);
        record.starts_with(b"PK\x05\x06") && usize::from(comment) == last - at
    })? as u64;
    let end = End { count: number::<2>(bytes, at + 10)?, directory: number::<4>(bytes, at + 16)? };
    if end.count != 0xffff && end.directory != 0xffff_ffff {
        return Some(end);
    }
    // Zip64: a locator just before holds the offset of a larger end record.
    let locator = at.checked_sub(20)?;
    if number::<4>(bytes, locator)? != 0x0706_4b50 {
        return Some(end);
    }
    let large = number::<8>(bytes, locator + 8)?;
    let found = number::<4>(bytes, large)? == 0x0606_4b50;
    found.then_some(())?;
    let field = |offset| number::<8>(bytes, large.checked_add(offset)?);
    Some(End { count: field(32)?, directory: field(48)? })
}

fn directory_entry(bytes: &FileBytes, at: u64) -> Option<(ZipMember, u64)> {
    if number::<4>(bytes, at)? != 0x0201_4b50 {
        return None;
    }
    let [name, extra, comment] =
        [number::<2>(bytes, at + 28)?, number::<2>(bytes, at + 30)?, number::<2>(bytes, at + 32)?];
    let text = bytes.read((at + 46) as usize..(at + 46 + name) as usize).ok()?;
    let mut member = ZipMember {
        name: String::from_utf8_lossy(&text).into_owned(),
        method: number::<2>(bytes, at + 10)? as u16,
        crc: number::<4>(bytes, at + 16)? as u32,
        packed: number::<4>(bytes, at + 20)?,
        size: number::<4>(bytes, at + 24)?,
        header: number::<4>(bytes, at + 42)?,
    };
    let next = at + 46 + name + extra + comment;
    // Zip64 extra field: the numbers that did not fit in 32 bits, in this order.
    let mut field = at + 46 + name;
    while field + 4 <= at + 46 + name + extra {
        let (id, size) = (number::<2>(bytes, field)?, number::<2>(bytes, field + 2)?);
        if id == 1 {
            let mut value = field + 4;
            for slot in [&mut member.size, &mut member.packed, &mut member.header] {
                if *slot == 0xffff_ffff {
                    *slot = number::<8>(bytes, value)?;
                    value += 8;
                }
            }
        }
        field += 4 + size;
    }
    // Keeps every later sum of offsets far from overflow.
    (member.header < bytes.len() as u64).then_some((member, next))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::scratch::torture;
    use std::io::Write;

    /// An archive as numpy writes it; every second member is deflated.
    pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (i, (name, content)) in members.iter().enumerate() {
            let mut crc = flate2::Crc::new();
            crc.update(content);
            let mut packed = content.to_vec();
            if i % 2 == 1 {
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(content).unwrap();
                packed = encoder.finish().unwrap();
            }
            let header = out.len() as u32;
            let mut common = vec![20, 0, 0, 0, (i % 2 * 8) as u8, 0, 0, 0, 0, 0];
            for n in [crc.sum(), packed.len() as u32, content.len() as u32] {
                common.extend(n.to_le_bytes());
            }
            common.extend((name.len() as u16).to_le_bytes());
            common.extend([0, 0]);
            out.extend(b"PK\x03\x04");
            out.extend(&common);
            out.extend(name.as_bytes());
            out.extend(packed);
            directory.extend(b"PK\x01\x02\x14\x00");
            directory.extend(&common);
            directory.extend([0; 10]);
            directory.extend(header.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let at = out.len() as u32;
        out.extend(&directory);
        out.extend(b"PK\x05\x06\0\0\0\0");
        out.extend((members.len() as u16).to_le_bytes());
        out.extend((members.len() as u16).to_le_bytes());
        out.extend((directory.len() as u32).to_le_bytes());
        out.extend(at.to_le_bytes());
        out.extend([0, 0]);
        out
    }

    #[test]
    fn members_round_trip_and_damage_is_noticed() {
        let path = Path::new("z");
        let contents: [(&str, &[u8]); 3] = [("a.npy", b"hello"), ("b.npy", &[7; 300]), ("c", b"")];
        let good = archive(&contents);
        let bytes = |content: &[u8]| FileBytes::owned(path, content.to_vec());
        let whole = bytes(&good);
        let found = members(path, &whole).unwrap();
        assert_eq!(found.len(), 3);
        for (member, (name, expected)) in found.iter().zip(contents) {
            assert_eq!(member.name, name);
            let content = match content(path, &whole, member).unwrap() {
                ZipContent::Stored(range) => whole.read(range).unwrap().into_owned(),
                ZipContent::Inflated(content) => content,
            };
            assert_eq!(content, expected);
        }
        torture(&good, |bad| {
            let bad = bytes(bad);
            for member in members(path, &bad).unwrap_or_default() {
                let _ = content(path, &bad, &member);
            }
        });
        let mut flipped = good.clone();
        flipped[36] ^= 1;
        assert!(content(path, &bytes(&flipped), &found[0]).err().unwrap().to_string().contains("checksum"));
    }
}
