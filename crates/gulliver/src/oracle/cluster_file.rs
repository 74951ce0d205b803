//! Clusters by name, or from a TOML file that names an accelerator and links of the tables and says how many.

use crate::error::{Error, one_line};
use crate::files::read_text;
use crate::units;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::hardware::Accelerator;
use gulliver_oracle::network::ClusterLink;
use serde::Deserialize;
use std::path::Path;

/// Much larger than any such file.
const MOST_BYTES: u64 = 1 << 20;

/// A cluster as a file describes it: fields are those of [`Cluster`]; accelerator and links are names of the tables,
/// memory is text such as `24GiB`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    accelerator: String,
    memory: Option<String>,
    devices: u32,
    #[serde(default = "one")]
    nodes: u32,
    within: String,
    between: Option<String>,
    #[serde(default = "one")]
    adapters: u32,
    oversubscription: Option<f64>,
    leaf: Option<u32>,
    host: Option<String>,
    host_memory: Option<String>,
    loading: Option<f64>,
    price: Option<f64>,
    energy_price: Option<f64>,
}

fn one() -> u32 {
    1
}

/// The cluster of this name, or of the file there.
pub fn cluster(name: &str) -> Result<Cluster, Error> {
    let path = Path::new(name);
    // A name of the table is never a path.
    if !name.ends_with(".toml") && !name.contains('/') && !path.is_file() {
        return Ok(Cluster::named(&one_line(name))?);
    }
    let text = read_text(path, "a description of a cluster", MOST_BYTES)?;
    let wrong = |problem: String| Error::Invalid(format!("{name}: {problem}"));
    let file: ClusterFile = toml::from_str(&text).map_err(|e| {
        let line = e.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        wrong(format!("line {}: {}", line.unwrap_or(1), one_line(e.message())))
    })?;
    let bytes = |text: &str| {
        units::parse_bytes(text)
            .map(|n| n as f64)
            .map_err(|e| wrong(format!("{}: expected {e}", one_line(text))))
    };
    let mut device = Accelerator::named(&file.accelerator)?;
    if let Some(memory) = &file.memory {
        device.memory = bytes(memory)?;
    }
    let within = ClusterLink::named(&file.within)?;
    let between = ClusterLink::named(file.between.as_deref().unwrap_or("10gbe"))?;
    let mut made = Cluster::of(device, (file.nodes, file.devices), within, between);
    made.name = path.file_stem().map_or(name.into(), |stem| stem.to_string_lossy().into_owned());
    made.adapters = file.adapters;
    made.oversubscription = file.oversubscription.unwrap_or(made.oversubscription);
    made.leaf = file.leaf.unwrap_or(made.leaf);
    if let Some(host) = &file.host {
        made.host = ClusterLink::named(host)?;
    }
    if let Some(memory) = &file.host_memory {
        made.host_memory = bytes(memory)?;
    }
    (made.loading, made.price, made.energy_price) = (file.loading, file.price, file.energy_price);
    made.check()?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn clusters_are_read_and_mistakes_named() {
        let dir = TestDir::new("clusters");
        let path = dir.join("box.toml");
        let text =
            "accelerator = \"rtx-3090\"\nmemory = \"12GiB\"\ndevices = 2\nwithin = \"pcie4\"\nprice = 0.5\n";
        std::fs::write(&path, text).unwrap();
        let made = cluster(path.to_str().unwrap()).unwrap();
        assert_eq!((made.size(), made.name.as_str(), made.price), (2, "box", Some(0.5)));
        assert_eq!(made.device.memory, 12.0 * 1073741824.0);
        for (from, to, expected) in [
            ("rtx-3090", "rtx-1", "unknown accelerator `rtx-1`; there are"),
            ("pcie4", "wire", "unknown link `wire`"),
            ("devices = 2", "devices = 0", "give 1 to"),
            ("price", "prize", "line 5: unknown field `prize`"),
            ("12GiB", "12 apples", "expected a size such as"),
        ] {
            std::fs::write(&path, text.replace(from, to)).unwrap();
            let error = cluster(path.to_str().unwrap()).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
        assert!(cluster("dgx-a100").is_ok() && cluster("nowhere").is_err());
    }
}
