//! Small data files in the forms people have them.

/// A `.npy` file of this element type and shape.
pub fn npy(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}\n", shape.join(" "));
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.bytes());
    out.extend(data);
    out
}

/// A `.npy` file of single precision numbers.
pub fn npy_floats(shape: &[usize], value: impl Fn(usize) -> f32) -> Vec<u8> {
    let data: Vec<u8> = (0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect();
    npy("<f4", shape, &data)
}

/// A `.npy` file of whole numbers.
pub fn npy_labels(count: usize, value: impl Fn(usize) -> i64) -> Vec<u8> {
    let data: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    npy("<i8", &[count], &data)
}

/// An IDX file of bytes.
pub fn idx(shape: &[usize], value: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut out = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|&n| out.extend((n as u32).to_be_bytes()));
    out.extend((0..shape.iter().product()).map(value));
    out
}

/// A table of three numbers and a class.
pub fn csv(rows: usize) -> String {
    let row = |i: usize| format!("{},{}.5,-{},{}\n", i % 7, i % 5, i % 3, ["a", "b"][i % 2]);
    std::iter::once("u,v,w,class\n".to_string()).chain((0..rows).map(row)).collect()
}
