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

/// A BMP file of 24 bits a pixel.
pub fn bmp(width: usize, height: usize, colour: impl Fn(usize, usize) -> [u8; 3]) -> Vec<u8> {
    let row = (3 * width).next_multiple_of(4);
    let mut out = b"BM".to_vec();
    for field in
        [54 + row * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, row * height, 2835, 2835, 0, 0]
    {
        out.extend((field as u32).to_le_bytes());
    }
    for y in (0..height).rev() {
        let start = out.len();
        out.extend((0..width).flat_map(|x| {
            let [r, g, b] = colour(x, y);
            [b, g, r]
        }));
        out.resize(start + row, 0);
    }
    out
}
