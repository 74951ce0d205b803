//! Finds the image files of folders and their classes.

use std::path::{Path, PathBuf};

use super::file::sorted;
use super::words::{counted, few};
use crate::data::DataError;

/// Image files and their classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageFiles {
    /// The files.
    pub files: Vec<PathBuf>,
    /// The class of each file; empty when unknown.
    pub ids: Vec<u32>,
    /// Names of the classes.
    pub class_names: Vec<String>,
    /// Messages about files that were skipped.
    pub notes: Vec<String>,
}

/// Names of skipped files and folders, by reason.
#[derive(Default)]
struct LeftOut {
    formats: Vec<String>,
    empty: Vec<String>,
    inner: Vec<String>,
    outside: Vec<String>,
}

impl LeftOut {
    fn notes(&self) -> Vec<String> {
        let note = |names: &[String], one: &str, why: &str| {
            let what = counted(names.len(), one);
            (!names.is_empty()).then(|| format!("{what} left out, {why}: {}", few(names)))
        };
        let notes = [
            note(&self.formats, "file", "not .png, .jpg or .bmp"),
            note(&self.outside, "image", "not in the folder of a class"),
            note(&self.inner, "folder", "within the folder of a class"),
            note(&self.empty, "folder", "without images"),
        ];
        notes.into_iter().flatten().collect()
    }
}

impl ImageFiles {
    /// The classes are the sub-folders with images, in ascending order. Hidden files and folders are ignored. With
    /// `known` classes, every folder must be one of them.
    pub fn folders(path: &Path, known: Option<&[String]>) -> Result<ImageFiles, DataError> {
        let mut found =
            ImageFiles { class_names: known.unwrap_or_default().to_vec(), ..ImageFiles::default() };
        let mut left = LeftOut::default();
        for entry in visible(path)? {
            let name = name(&entry);
            if !entry.is_dir() {
                if is_image(&entry) { &mut left.outside } else { &mut left.formats }.push(name);
                continue;
            }
            let before = found.files.len();
            for file in visible(&entry)? {
                let within = || format!("{name}/{}", self::name(&file));
                match (is_image(&file), file.is_dir()) {
                    (true, _) => found.files.push(file),
                    (_, true) => left.inner.push(within()),
                    _ => left.formats.push(within()),
                }
            }
            if found.files.len() == before {
                left.empty.push(name);
                continue;
            }
            let class = match (found.class_names.iter().position(|class| *class == name), known) {
                (Some(class), _) => class,
                (None, None) => {
                    found.class_names.push(name);
                    found.class_names.len() - 1
                }
                (None, Some(known)) => {
                    let what = format!("is no class of the training images; those are: {}", few(known));
                    return Err(DataError::file(&entry, what));
                }
            };
            found.ids.resize(found.files.len(), class as u32);
        }
        if found.files.is_empty() {
            return Err(DataError::file(path, "has no folder per class with .png, .jpg or .bmp images"));
        }
        found.notes = left.notes();
        Ok(found)
    }

    /// These files, and all images at any depth of these folders. The classes are known if every file is in a folder
    /// named like one of `classes`.
    pub fn inputs(paths: &[PathBuf], classes: &[String]) -> Result<ImageFiles, DataError> {
        let mut found = ImageFiles { class_names: classes.to_vec(), ..ImageFiles::default() };
        let mut left = LeftOut::default();
        for path in paths {
            match path.is_dir() {
                true => walk(path, &mut found.files, &mut left, 0)?,
                false => found.files.push(path.clone()),
            }
        }
        if found.files.is_empty() {
            let path = paths.first().map(PathBuf::as_path).unwrap_or(Path::new("no file"));
            return Err(DataError::file(path, "has no .png, .jpg or .bmp images"));
        }
        let class = |file: &PathBuf| {
            let folder = file.parent().map(name)?;
            classes.iter().position(|class| *class == folder).map(|class| class as u32)
        };
        found.ids = found.files.iter().map(class).collect::<Option<_>>().unwrap_or_default();
        found.notes = left.notes();
        Ok(found)
    }
}

/// Appends all images below a folder.
fn walk(folder: &Path, files: &mut Vec<PathBuf>, left: &mut LeftOut, depth: usize) -> Result<(), DataError> {
    /// Most levels of folders, because links may form cycles.
    const DEEPEST: usize = 32;
    for entry in visible(folder)? {
        match (is_image(&entry), entry.is_dir()) {
            (true, _) => files.push(entry),
            (_, true) if depth < DEEPEST => walk(&entry, files, left, depth + 1)?,
            (_, true) => return Err(DataError::file(&entry, "is more than 32 folders deep")),
            _ => left.formats.push(format!("{}/{}", name(folder), name(&entry))),
        }
    }
    Ok(())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The entries of a folder in ascending order, without names that start with a dot.
fn visible(folder: &Path) -> Result<impl Iterator<Item = PathBuf>, DataError> {
    Ok(sorted(folder)?.into_iter().filter(|path| !name(path).starts_with('.')))
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    path.is_file() && extension.is_some_and(|e| ["png", "jpg", "jpeg", "bmp"].contains(&&*e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;

    #[test]
    fn hidden_and_empty_folders_are_no_classes_and_left_out_files_are_named() {
        let dir = ScratchDir::new();
        for name in ["cat/b.png", "cat/a.JPG", "dog/c.bmp"] {
            dir.write(name, b"");
        }
        let plain = ImageFiles::folders(&dir, None).unwrap();
        assert_eq!(
            (&plain.class_names[..], &plain.ids[..]),
            (&["cat".into(), "dog".into()][..], &[0, 0, 1][..])
        );
        assert!(plain.notes.is_empty());
        for name in [".git/x.png", "cat/.thumb.png", ".DS_Store"] {
            dir.write(name, b"");
        }
        assert_eq!(ImageFiles::folders(&dir, None).unwrap(), plain);
        for name in ["cat/notes.txt", "cat/x.gif", "bird/readme", "loose.png", "dog/more/d.png"] {
            dir.write(name, b"");
        }
        std::fs::create_dir(dir.join("ant")).unwrap();
        let found = ImageFiles::folders(&dir, None).unwrap();
        assert_eq!((&found.files, &found.class_names), (&plain.files, &plain.class_names));
        assert_eq!(
            found.notes,
            [
                "3 files left out, not .png, .jpg or .bmp: bird/readme, cat/notes.txt, cat/x.gif",
                "1 image left out, not in the folder of a class: loose.png",
                "1 folder left out, within the folder of a class: dog/more",
                "2 folders left out, without images: ant, bird",
            ]
        );
        assert!(ImageFiles::folders(&dir.join("dog/more"), None).is_err());
    }

    #[test]
    fn known_classes_keep_their_ids() {
        let dir = ScratchDir::new();
        dir.write("dog/c.png", b"");
        let known = ["cat".to_string(), "dog".to_string()];
        assert_eq!(ImageFiles::folders(&dir, Some(&known)).unwrap().ids, [1]);
        let message = ImageFiles::folders(&dir, Some(&known[..1])).unwrap_err().to_string();
        assert!(message.contains("dog: is no class of the training images; those are: cat"), "{message}");
    }

    #[test]
    fn inputs_are_files_or_folders_of_any_depth() {
        let dir = ScratchDir::new();
        for name in ["a/cat/1.png", "a/dog/deep/2.png", "a/.hidden/3.png", "a/dog/x.txt", "b.png"] {
            dir.write(name, b"");
        }
        let classes = ["cat".to_string(), "dog".to_string(), "deep".to_string()];
        let both = ImageFiles::inputs(&[dir.join("b.png"), dir.join("a")], &classes).unwrap();
        assert_eq!(both.files, ["b.png", "a/cat/1.png", "a/dog/deep/2.png"].map(|name| dir.join(name)));
        assert!(both.ids.is_empty());
        assert_eq!(both.notes, ["1 file left out, not .png, .jpg or .bmp: dog/x.txt"]);
        assert_eq!(ImageFiles::inputs(&[dir.join("a")], &classes).unwrap().ids, [0, 2]);
        assert!(ImageFiles::inputs(&[dir.join("a/.hidden/..")], &classes).is_ok());
        std::fs::create_dir(dir.join("none")).unwrap();
        assert!(ImageFiles::inputs(&[dir.join("none")], &classes).is_err());
    }
}
