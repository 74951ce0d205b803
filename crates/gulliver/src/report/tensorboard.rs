//! TensorBoard event files: scalar values as protocol-buffer messages in checksummed records.
//! Only what TensorBoard needs to draw curves; the wall clock is the caller's.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// An event file being written.
pub struct TensorBoard {
    file: File,
}

impl TensorBoard {
    /// Creates `events.out.tfevents.<seconds>.gulliver.<n>` in `dir`; `wall_time` is in seconds since
    /// 1970. Files of earlier sessions stay: for a run resumed after `from_step`, viewers are told
    /// to forget what they had from later steps.
    pub fn create(dir: &Path, wall_time: f64, from_step: Option<u64>) -> io::Result<TensorBoard> {
        let mut board = TensorBoard { file: create_new(dir, wall_time as u64)? };
        let version = [time_and_step(wall_time, 0), length_delimited(3, b"brain.Event:2")].concat();
        board.file.write_all(&record(&version))?;
        if let Some(step) = from_step {
            let session_start = length_delimited(7, &varint_field(1, 1));
            board.file.write_all(&record(&[time_and_step(wall_time, step + 1), session_start].concat()))?;
        }
        Ok(board)
    }

    /// Adds one point of the curve `tag`.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f32, wall_time: f64) -> io::Result<()> {
        self.file.write_all(&record(&scalar_event(tag, step, value, wall_time)))
    }
}

/// A file that no other session of the same second has.
fn create_new(dir: &Path, seconds: u64) -> io::Result<File> {
    let mut n = 0;
    loop {
        match File::create_new(dir.join(format!("events.out.tfevents.{seconds:010}.gulliver.{n}"))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n < 1000 => n += 1,
            result => return result,
        }
    }
}

fn scalar_event(tag: &str, step: u64, value: f32, wall_time: f64) -> Vec<u8> {
    let simple_value = [&[key(2, 5)][..], &value.to_le_bytes()].concat();
    let point = [length_delimited(1, tag.as_bytes()), simple_value].concat();
    [time_and_step(wall_time, step), length_delimited(5, &length_delimited(1, &point))].concat()
}

/// The first fields of every event; a step of 0 is the default and left out.
fn time_and_step(wall_time: f64, step: u64) -> Vec<u8> {
    let step = if step == 0 { Vec::new() } else { varint_field(2, step) };
    [&[key(1, 1)][..], &wall_time.to_le_bytes(), &step].concat()
}

/// A field number below 16 and its wire type: 0 varint, 1 eight bytes, 2 length first, 5 four bytes.
fn key(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

fn varint_field(field: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![key(field, 0)];
    push_varint(&mut bytes, value);
    bytes
}

fn length_delimited(field: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![key(field, 2)];
    push_varint(&mut bytes, content.len() as u64);
    bytes.extend_from_slice(content);
    bytes
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A record: length, its checksum, content, its checksum.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend(masked_crc(&length).to_le_bytes());
    bytes.extend_from_slice(content);
    bytes.extend(masked_crc(content).to_le_bytes());
    bytes
}

/// The CRC as records store it: rotated and offset, so that a CRC of data holding CRCs is sound.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32 with the Castagnoli polynomial, bit by bit: records are short and few.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    /// Vectors of RFC 3720, appendix B.4.
    #[test]
    fn crc_matches_the_published_vectors() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (bytes, expected) in [
            (&[0u8; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
            (b"123456789", 0xe306_9283),
        ] {
            assert_eq!(crc32c(bytes), expected);
        }
    }

    #[test]
    fn messages_have_the_documented_bytes() {
        assert_eq!(
            scalar_event("loss", 300, 1.5, 2.0),
            [
                &[0x09, 0, 0, 0, 0, 0, 0, 0, 0x40][..],
                &[0x10, 0xac, 0x02],
                &[0x2a, 13, 0x0a, 11, 0x0a, 4, b'l', b'o', b's', b's', 0x15, 0, 0, 0xc0, 0x3f],
            ]
            .concat()
        );
    }

    #[test]
    fn files_are_whole_records() {
        let dir = TestDir::new("tensorboard");
        let mut board = TensorBoard::create(&dir, 1.7e9, Some(4)).unwrap();
        board.scalar("train/loss", 5, 0.5, 1.7e9).unwrap();
        TensorBoard::create(&dir, 1.7e9, Some(5)).unwrap();
        let bytes = std::fs::read(dir.join("events.out.tfevents.1700000000.gulliver.0")).unwrap();
        // Every file that TensorFlow writes starts so: 24 bytes follow, and the checksum of that.
        assert_eq!(bytes[..13], *b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"\x09");
        let mut rest = &bytes[..];
        let mut contents = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked_crc(&rest[..8]).to_le_bytes());
            let content = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked_crc(content).to_le_bytes());
            contents.push(content.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(contents.len(), 3);
        assert!(contents[0].ends_with(b"brain.Event:2"));
        assert!(contents[1].ends_with(&[0x10, 5, 0x3a, 2, 0x08, 1]));
        assert_eq!(contents[2], scalar_event("train/loss", 5, 0.5, 1.7e9));
    }
}
