//! Round trips, an independent reader, and files damaged in every way that one byte can be.

use super::*;
use crate::host::HostData;
use crate::scratch::ScratchDir;
use std::fs;

fn sample() -> (BTreeMap<String, HostTensor>, BTreeMap<String, String>) {
    let mut tensors = BTreeMap::new();
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        for (shape, suffix) in [(&[3usize, i + 1][..], "matrix"), (&[], "scalar"), (&[2, 0], "empty")] {
            let count: usize = shape.iter().product();
            let bytes: Vec<u8> = (0..count * dtype.size())
                .map(|b| if dtype == DType::Bool { b % 2 } else { b } as u8)
                .collect();
            let tensor = HostTensor::from_le_bytes(dtype, shape, &bytes).unwrap();
            tensors.insert(format!("{dtype}.{suffix}"), tensor);
        }
    }
    let metadata = [("step", "100"), ("quote", "\"\\\n\u{1f980}"), ("", "")];
    (tensors, metadata.map(|(k, v)| (k.to_string(), v.to_string())).into())
}

#[test]
fn round_trip_of_every_dtype() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let (tensors, metadata) = sample();
    let saved = save(&path, &tensors, &metadata).unwrap();
    assert_eq!(saved, fingerprint(&tensors));
    assert!(Stored::is_ours(&path).unwrap());
    let loaded = load(&path).unwrap();
    assert_eq!((&loaded.tensors, &loaded.metadata), (&tensors, &metadata));
    let first = fs::read(&path).unwrap();
    save(&path, &loaded.tensors, &loaded.metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first, "the same content gives the same bytes");

    save(&path, &BTreeMap::new(), &BTreeMap::new()).unwrap();
    assert!(load(&path).unwrap().tensors.is_empty());
}

#[test]
fn the_reference_reader_agrees() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let (tensors, metadata) = sample();
    save(&path, &tensors, &metadata).unwrap();
    let bytes = fs::read(&path).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), tensors.len());
    for (name, tensor) in &tensors {
        let view = theirs.tensor(name).unwrap();
        assert_eq!((view.shape(), view.data()), (tensor.shape(), &tensor.to_le_bytes()[..]), "{name}");
        assert_eq!(view.dtype().to_string(), tensor.dtype().name().to_uppercase());
        let offset = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert!(offset.is_multiple_of(tensor.dtype().size()), "{name} is not aligned");
    }
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["step"], "100");
}

#[test]
fn files_of_the_reference_writer_load() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::I32, vec![2], &[1, 0, 0, 0, 2, 0, 0, 0]);
    fs::write(&path, safetensors::serialize([("w", view.unwrap())], None).unwrap()).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!(loaded.tensors["w"].data(), &HostData::I32(vec![1, 2]));
    assert!(loaded.metadata.is_empty());
}

#[test]
fn fingerprint_is_the_documented_hash() {
    let tensor = HostTensor::new(&[1, 2], HostData::F32(vec![1.0, -0.0])).unwrap();
    let mut bytes = b"w\0f32".to_vec();
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0, 0x80, 0x3f, 0, 0, 0, 0x80]);
    assert_eq!(fingerprint(&BTreeMap::from([("w".into(), tensor)])), hex(&Sha256::digest(&bytes)));
}

#[test]
fn every_truncation_is_an_error() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let (tensors, metadata) = sample();
    save(&path, &tensors, &metadata).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = load(&path).expect_err("a truncated file loaded").to_string();
        assert!(error.contains("a.safetensors: ") && !error.contains('\n'), "{error}");
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("1 bytes after the last tensor"));
}

#[test]
fn every_altered_byte_is_an_error_or_changes_nothing() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let tensor = HostTensor::new(&[2, 2], HostData::F32(vec![1.0, 2.0, 3.0, 4.0])).unwrap();
    let tensors = BTreeMap::from([("weight".to_string(), tensor)]);
    let metadata = BTreeMap::from([("step".to_string(), "7".to_string())]);
    save(&path, &tensors, &metadata).unwrap();
    let whole = fs::read(&path).unwrap();
    let key = CHECKSUM.as_bytes();
    let checksum_at = whole.windows(key.len()).position(|bytes| bytes == key).unwrap();
    for position in 0..whole.len() {
        for flip in [1u8, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut bytes = whole.clone();
            bytes[position] ^= flip;
            fs::write(&path, &bytes).unwrap();
            // The one thing the checksum cannot guard is its own key.
            let in_checksum_key = (checksum_at..checksum_at + CHECKSUM.len()).contains(&position);
            if let Ok(loaded) = load(&path) {
                assert_eq!(loaded.tensors, tensors, "byte {position} ^ {flip}");
                assert!(loaded.metadata == metadata || in_checksum_key, "byte {position} ^ {flip}");
            }
        }
    }
}

#[test]
fn absurd_files_do_not_allocate() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let json =
        br#"{"a":{"dtype":"I64","shape":[2305843009213693951],"data_offsets":[0,18446744073709551608]}}"#;
    for bytes in [
        [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
        [&99_999_999u64.to_le_bytes()[..], b"{}"].concat(),
        [&(json.len() as u64).to_le_bytes()[..], json].concat(),
    ] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(load(&path), Err(CheckpointError::Corrupt { .. })));
    }
    assert!(matches!(load(&dir.join("missing")), Err(CheckpointError::Io { .. })));
    assert!(load(&dir).is_err(), "a directory is not a checkpoint");
}

#[test]
fn long_tensors_come_in_pieces() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    for count in [0, 1, PIECE / 4 - 1, PIECE / 4, PIECE / 4 + 1, PIECE / 2 + 7] {
        let mut numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let tensor = |numbers: &[f32]| HostTensor::new(&[count], HostData::F32(numbers.to_vec())).unwrap();
        let whole = BTreeMap::from([("w".to_string(), tensor(&numbers))]);
        assert_eq!(save(&path, &whole, &BTreeMap::new()).unwrap(), fingerprint(&whole));
        let mut back = Vec::new();
        let mut stored = Stored::open(&path).unwrap();
        let mut take = |first: u64, piece: &[u8]| {
            assert!(first == back.len() as u64 && piece.len() <= PIECE, "{count}");
            back.extend_from_slice(piece);
            Ok(())
        };
        stored.read("w", DType::F32, &[count], &mut take).unwrap();
        assert!(back == whole["w"].to_le_bytes() && load(&path).unwrap().tensors == whole, "{count}");

        let Some(last) = numbers.last_mut() else { continue };
        *last = f32::NAN;
        save(&path, &BTreeMap::from([("w".to_string(), tensor(&numbers))]), &BTreeMap::new()).unwrap();
        let read = Stored::open(&path).unwrap().read("w", DType::F32, &[count], &mut |_, _| Ok(()));
        assert!(matches!(read, Err(CheckpointError::NotFinite { .. })), "{count}");
    }
}

#[test]
fn expectations_explain_themselves() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let tensor = HostTensor::zeros(DType::F32, &[2, 3]);
    let tensors = BTreeMap::from([("blocks.0.weight".into(), tensor.clone()), ("head.bias".into(), tensor)]);
    save(&path, &tensors, &BTreeMap::new()).unwrap();
    let mut stored = Stored::open(&path).unwrap();
    stored.path = "a.safetensors".into();
    for (name, dtype, shape, expected) in [
        ("head.bias", DType::F32, &[2usize, 3][..], ""),
        (
            "head.bias",
            DType::F32,
            &[3, 2],
            "a.safetensors: tensor `head.bias` is f32 [2, 3], but the model needs f32 [3, 2]",
        ),
        (
            "head.bias",
            DType::I64,
            &[2, 3],
            "a.safetensors: tensor `head.bias` is f32 [2, 3], but the model needs i64 [2, 3]",
        ),
        (
            "block.0.weight",
            DType::F32,
            &[2, 3],
            "a.safetensors: no tensor `block.0.weight`; did you mean `blocks.0.weight`?",
        ),
        ("zzz", DType::F32, &[2, 3], "a.safetensors: no tensor `zzz`"),
    ] {
        let read = stored.read(name, dtype, shape, &mut |_, _| Ok(()));
        let message = read.err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(message, expected);
    }
}

#[test]
fn the_reserved_name_is_refused() {
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    let tensors = BTreeMap::from([("__metadata__".to_string(), HostTensor::zeros(DType::U8, &[1]))]);
    assert!(matches!(save(&path, &tensors, &BTreeMap::new()), Err(CheckpointError::Unsaveable { .. })));
    assert!(!path.exists());
}

/// Numbers that f16 has exactly, over several pieces, as the reference writer stores each width.
#[test]
fn other_widths_become_f32() {
    use half::{bf16, f16};
    use safetensors::Dtype;
    let dir = ScratchDir::new();
    let path = dir.join("a.safetensors");
    for count in [3, PIECE / 4 + 5] {
        let numbers: Vec<f32> = (0..count).map(|i| (i % 251) as f32 * 0.5 - 8.0).collect();
        let widths: [(Dtype, Vec<u8>); 4] = [
            (Dtype::F16, numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()),
            (Dtype::BF16, numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()),
            (Dtype::F64, numbers.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect()),
            (Dtype::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
        ];
        for (dtype, bytes) in &widths {
            let view = safetensors::tensor::TensorView::new(*dtype, vec![count], bytes).unwrap();
            fs::write(&path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
            let mut stored = Stored::open(&path).unwrap();
            assert!(!Stored::is_ours(&path).unwrap() && stored.fits("w", DType::F32, &[count]).unwrap().1);
            let mut back = Vec::new();
            let mut take = |first: u64, piece: &[u8]| {
                assert!(
                    first == back.len() as u64 && first.is_multiple_of(PIECE as u64) && piece.len() <= PIECE
                );
                back.extend_from_slice(piece);
                Ok(())
            };
            stored.read("w", DType::F32, &[count], &mut take).unwrap();
            let expected: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
            assert!(back == expected, "{dtype} {count}");
        }
    }
    // What f32 cannot hold is not silently infinite.
    let huge = 1e300f64.to_le_bytes();
    let view = safetensors::tensor::TensorView::new(Dtype::F64, vec![], &huge).unwrap();
    fs::write(&path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
    let read = Stored::open(&path).unwrap().read("w", DType::F32, &[], &mut |_, _| Ok(()));
    assert!(matches!(read, Err(CheckpointError::NotFinite { .. })));
}

#[test]
fn files_of_torch_save_say_how_to_convert_them() {
    let dir = ScratchDir::new();
    for start in [&b"PK\x03\x04\0\0\x08\x08\0\0\0\0"[..], b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j"] {
        fs::write(dir.join("net.pt"), start).unwrap();
        let message = load(&dir.join("net.pt")).unwrap_err().to_string();
        assert!(
            message.contains("torch.load(\"net.pt\"") && message.contains("net.safetensors"),
            "{message}"
        );
    }
}
