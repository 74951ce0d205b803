//! Images in a folder per class: PNG, JPEG or BMP, decoded when a batch needs them, scaled to cover the wanted size
//! and cropped around the centre.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;

use super::file::regular;
use super::folders::ImageFiles;
use super::words::short;
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_counts, class_tensor, tensor};
use crate::host::HostData;

/// Most pixels of an image; more are refused before decoding.
const MAX_PIXELS: u64 = 1 << 28;

/// x `[b, channels, rows, columns]` f32 and y `[b]` i64.
pub struct ImageFolder {
    found: ImageFiles,
    /// Rows and columns.
    size: [usize; 2],
    channels: usize,
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl ImageFolder {
    /// `normalise` is the mean and deviation of each channel of pixels scaled to 0..1.
    pub fn new(
        found: ImageFiles,
        size: [usize; 2],
        channels: usize,
        normalise: Option<(Vec<f32>, Vec<f32>)>,
    ) -> Result<ImageFolder, DataError> {
        if let Some(side) = size.iter().find(|side| !(1..=4096).contains(*side)) {
            return Err(DataError::option("size", format!("{side} is not from 1 to 4096")));
        }
        if channels != 1 && channels != 3 {
            let what = format!("{channels}; images have 1 (grey) or 3 (colour)");
            return Err(DataError::option("channels", what));
        }
        let (mean, std) = normalise.unwrap_or_default();
        if mean.len() != std.len() || !(mean.is_empty() || mean.len() == channels) {
            let what = format!("{} means and {} deviations for {channels} channels", mean.len(), std.len());
            return Err(DataError::option("mean", what));
        }
        Ok(ImageFolder { found, size, channels, mean, std })
    }

    /// The pixels of one image, 0..1, `[channels, rows, columns]`, normalised.
    fn decode(&self, path: &Path, out: &mut Vec<f32>) -> Result<(), DataError> {
        let io = |source| DataError::Io { path: path.into(), source };
        let bad = |error: image::ImageError| {
            DataError::file(path, format!("cannot be decoded: {}", short(&error.to_string())))
        };
        let open = || {
            let file = BufReader::new(regular(path)?);
            image::ImageReader::new(file).with_guessed_format().map_err(io)
        };
        let (width, height) = open()?.into_dimensions().map_err(bad)?;
        if width == 0 || height == 0 || u64::from(width) * u64::from(height) > MAX_PIXELS {
            return Err(DataError::file(path, format!("{width} x {height} pixels are too few or too many")));
        }
        let whole = open()?.decode().map_err(bad)?;
        let [rows, columns] = self.size.map(|side| side as u32);
        let (wide, high) = covering([height, width], [rows, columns]);
        if wide * high > MAX_PIXELS {
            let what = format!("{width} x {height} is too narrow to scale to {columns} x {rows}");
            return Err(DataError::file(path, what));
        }
        let (wide, high) = (wide as u32, high as u32);
        let (left, top) = ((wide - columns) / 2, (high - rows) / 2);
        let pixels = match self.channels {
            1 => {
                let scaled = image::imageops::resize(&whole.into_luma8(), wide, high, FilterType::Triangle);
                image::imageops::crop_imm(&scaled, left, top, columns, rows).to_image().into_raw()
            }
            _ => {
                let scaled = image::imageops::resize(&whole.into_rgb8(), wide, high, FilterType::Triangle);
                image::imageops::crop_imm(&scaled, left, top, columns, rows).to_image().into_raw()
            }
        };
        for c in 0..self.channels {
            let mean = self.mean.get(c).copied().unwrap_or(0.0);
            let std = self.std.get(c).copied().unwrap_or(1.0);
            out.extend(
                pixels.iter().skip(c).step_by(self.channels).map(|&p| (f32::from(p) / 255.0 - mean) / std),
            );
        }
        Ok(())
    }
}

/// Width and height of the smallest scaled image that covers these rows and columns.
fn covering([height, width]: [u32; 2], [rows, columns]: [u32; 2]) -> (u64, u64) {
    let [height, width, rows, columns] = [height, width, rows, columns].map(u64::from);
    // The side with the larger factor decides.
    let (by, of) = if columns * height >= rows * width { (columns, width) } else { (rows, height) };
    ((width * by).div_ceil(of), (height * by).div_ceil(of))
}

/// The `train` folder and the first of `validation`, `val` and `test` that exists; the folder itself if there is no
/// `train`.
pub fn find(path: &Path) -> (PathBuf, Option<PathBuf>) {
    let train = path.join("train");
    let held = ["validation", "val", "test"].map(|name| path.join(name)).into_iter().find(|p| p.is_dir());
    match train.is_dir() {
        true => (train, held),
        false => (path.into(), None),
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.found.files.len()
    }

    fn class(&self, i: usize) -> Option<u32> {
        self.found.ids.get(i).copied()
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.found.files.len())?;
        let mut x = Vec::new();
        for &i in indices {
            self.decode(&self.found.files[i], &mut x)?;
        }
        let x = tensor(&[indices.len(), self.channels, self.size[0], self.size[1]], HostData::F32(x));
        let known = !self.found.ids.is_empty();
        let y = known.then(|| class_tensor(indices.iter().map(|&i| self.found.ids[i])));
        Ok(Batch::with_target(x, y))
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.found.files.len(),
            classes: Some(self.found.class_names.len()),
            shape: vec![self.channels, self.size[0], self.size[1]],
            class_names: self.found.class_names.clone(),
            mean: self.mean.clone(),
            std: self.std.clone(),
            notes: self.found.notes.clone(),
            class_counts: class_counts(self, Some(self.found.class_names.len())),
            ..DataInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::{ScratchDir, torture};
    use image::{ImageFormat, RgbImage};

    fn png(width: u32, height: u32, colour: [u8; 3]) -> Vec<u8> {
        let mut out = std::io::Cursor::new(Vec::new());
        RgbImage::from_pixel(width, height, image::Rgb(colour)).write_to(&mut out, ImageFormat::Png).unwrap();
        out.into_inner()
    }

    fn open(path: &Path, size: usize, channels: usize) -> ImageFolder {
        ImageFolder::new(ImageFiles::folders(path, None).unwrap(), [size; 2], channels, None).unwrap()
    }

    #[test]
    fn folders_become_classes_and_images_squares() {
        let dir = ScratchDir::new();
        dir.write("dog/b.png", &png(9, 5, [255, 0, 51]));
        dir.write("dog/a.PNG", &png(4, 4, [0, 0, 0]));
        dir.write("cat/c.png", &png(2, 7, [255, 255, 255]));
        dir.write("cat/notes.txt", b"ignored");
        let set = open(&dir, 4, 3);
        assert_eq!(set.info().class_names, ["cat", "dog"]);
        let b = set.batch(&[0, 1, 2]).unwrap();
        let x = b.get("x").unwrap();
        assert_eq!(x.shape(), [3, 3, 4, 4]);
        let planes: Vec<f32> = x.as_f32().unwrap().chunks(16).map(|p| p.iter().sum::<f32>() / 16.0).collect();
        let expected = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.2];
        assert!(planes.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{planes:?}");
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [0, 1, 1]);
        let grey = ImageFolder { mean: vec![0.5], std: vec![0.5], ..open(&dir, 3, 1) };
        assert_eq!(grey.batch(&[0]).unwrap().get("x").unwrap().as_f32().unwrap(), [1.0; 9]);
        assert_eq!(find(&dir), (dir.to_path_buf(), None));
        assert!(ImageFolder::new(ImageFiles::default(), [0, 4], 3, None).is_err());
        assert!(ImageFolder::new(ImageFiles::default(), [4, 4], 2, None).is_err());
    }

    #[test]
    fn rectangles_are_covered_and_cropped_around_the_centre() {
        for (image, wanted, scaled) in [
            ([5, 9], [4, 4], (8, 4)),
            ([9, 5], [4, 4], (4, 8)),
            ([10, 10], [24, 32], (32, 32)),
            ([10, 10], [32, 24], (32, 32)),
            ([48, 64], [24, 32], (32, 24)),
            ([100, 1], [3, 2], (2, 200)),
        ] {
            assert_eq!(covering(image, wanted), scaled, "{image:?} {wanted:?}");
        }
        let dir = ScratchDir::new();
        // Ten columns of brightness 0, 20, … 180; all rows alike.
        let mut image = RgbImage::new(10, 4);
        image.enumerate_pixels_mut().for_each(|(x, _, pixel)| *pixel = image::Rgb([x as u8 * 20; 3]));
        let mut file = std::io::Cursor::new(Vec::new());
        image.write_to(&mut file, ImageFormat::Png).unwrap();
        dir.write("a/x.png", &file.into_inner());
        let set = ImageFolder { size: [4, 6], ..open(&dir, 1, 1) };
        assert_eq!(set.info().shape, [1, 4, 6]);
        let x = set.batch(&[0]).unwrap().get("x").unwrap().as_f32().unwrap().to_vec();
        let row: Vec<f32> = (2..8).map(|column| column as f32 * 20.0 / 255.0).collect();
        assert_eq!(x, row.repeat(4));
    }

    #[test]
    fn corrupt_images_are_errors_that_name_the_file() {
        let dir = ScratchDir::new();
        let good = png(3, 3, [1, 2, 3]);
        torture(&good, |bytes| {
            dir.write("a/x.png", bytes);
            if let Err(error) = open(&dir, 2, 3).batch(&[0]) {
                assert!(error.to_string().contains("x.png"), "{error}");
            }
        });
        dir.write("a/x.png", b"not an image");
        assert!(open(&dir, 2, 3).batch(&[0]).is_err());
    }
}
